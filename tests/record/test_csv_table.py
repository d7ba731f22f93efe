"""Reading measurements from a CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import RecordError
from perfgate.record.csv_table import Table, Values, read_table

HEADER = "pair,subject,metric,unit,value"
PAIRED = f"""{HEADER}
0,base,itl_median,ms,5.0
0,head,itl_median,ms,5.1
1,head,itl_median,us,5200
1,base,itl_median,s,0.006
0,base,output_throughput,tok/s,1500
0,head,output_throughput,tokens/s,1400
"""

Read = Callable[[str], Table]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that reads a CSV of this text."""

    def one(text: str) -> Table:
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        return read_table(tmp_path / "t.csv")

    return one


def test_paired(read: Read) -> None:
    """Values come in base units, matched by pair, whatever the order of the lines."""
    table = read(PAIRED)

    assert table.paired
    assert list(table.metrics) == ["itl_median", "output_throughput"]
    assert pytest.approx((0.005, 0.006)) == table.metrics["itl_median"].base
    assert pytest.approx((0.0051, 0.0052)) == table.metrics["itl_median"].head
    assert table.metrics["output_throughput"] == Values((1500.0,), (1400.0,), 1 / 1400)


def test_unpaired(read: Read) -> None:
    """Without a pair column sides may differ in number, and repeated lines are trials of their own."""
    table = read("subject,metric,unit,value\nbase,itl_median,s,1\nbase,itl_median,s,1\nhead,itl_median,s,2\n")

    assert table == Table(paired=False, metrics={"itl_median": Values((1.0, 1.0), (2.0,), 1.0)})


def test_the_order_of_pairs(read: Read) -> None:
    """The place of each trial in its pair tells which side ran first, in the order of the pairs."""
    table = read("""pair,order,subject,metric,unit,value
b,2,base,itl_median,ms,1
a,1,base,itl_median,ms,2
b,1,head,itl_median,ms,3
a, 2 ,head,itl_median,ms,4
b,2,base,kernel_time_per_step[gemm],us,5
b,1,head,kernel_time_per_step[gemm],us,6
""")

    assert table.metrics["itl_median"].head_first == (True, False)
    assert table.metrics["kernel_time_per_step[gemm]"].head_first == (True,)
    assert read(PAIRED).metrics["itl_median"].head_first == ()


@pytest.mark.parametrize(
    ("places", "line", "said"),
    [
        (("1", "3"), 3, "order is '3', expected 1 or 2: the place of the trial in its pair"),
        (("first", "2"), 2, "order is 'first', expected 1 or 2"),
        (("", "2"), 2, "order is '', expected 1 or 2"),
        (("1.0", "2"), 2, "order is '1.0', expected 1 or 2"),
        (("1", "1"), 3, "order is 1 here, and by an earlier line base ran first in pair 0"),
        (("2", "2"), 3, "order is 2 here, and by an earlier line head ran first in pair 0"),
        (("1", "2", "2"), 4, "order is 2 here, and by an earlier line base ran first in pair 0"),
    ],
)
def test_an_order_that_cannot_be(read: Read, places: tuple[str, ...], line: int, said: str) -> None:
    """A place is 1 or 2, the other one on the other side, and one in all lines of a trial; else the line is named."""
    lines = ("base,itl_median,ms,5", "head,itl_median,ms,6", "base,ttft_median,ms,7", "head,ttft_median,ms,7")
    text = "\n".join(f"0,{place},{rest}" for place, rest in zip(places, lines, strict=False))

    with pytest.raises(RecordError) as caught:
        read(f"pair,order,subject,metric,unit,value\n{text}\n")

    assert f"t.csv:{line}: {said}" in str(caught.value)


def test_an_order_without_pairs(read: Read) -> None:
    """In trials that were not taken in pairs a column of that name is a note like any other."""
    table = read("order,subject,metric,unit,value\n7,base,itl_median,s,1\n7,head,itl_median,s,1\n")

    assert not table.paired


@pytest.mark.parametrize(
    ("lines", "share"),
    [
        (["itl_median,ms,5.0", "itl_median,ms,5"], 0.02),
        (["itl_median,ms,5.0", "itl_median,us,4000.00"], 1e-8 / 4e-3),
        (["itl_median,ms,5.00000001", "itl_median,s,4e-3"], 1e-11 / 4e-3),
        (["model_memory,B,1000", "model_memory,B,1000"], 0.0),
        (["model_memory,GiB,15.9", "model_memory,GiB,15.9"], 0.0),
        (["host_slack_per_step,ms,0", "host_slack_per_step,ms,1"], 0.0),
        (["itl_median,ms,0e999", "itl_median,ms,0e99999999999999999999"], 0.0),
        (["itl_median,ms,1e-400", "itl_median,ms,1e-99999999999999999999"], 0.0),
    ],
)
def test_resolution(read: Read, lines: list[str], share: float) -> None:
    """Times are known to the last digit that any of them is written with; exact counts are exact."""
    table = read("\n".join([HEADER, *(f"0,{side},{line}" for side, line in zip(("base", "head"), lines, strict=True))]))

    (values,) = table.metrics.values()
    assert values.resolution == pytest.approx(share)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + PAIRED,
        PAIRED.replace("\n", "\r\n"),
        PAIRED.replace(",", " , "),
        PAIRED.replace("\n", "\n\n"),
        PAIRED.replace("unit,value", "unit,value,note"),
        "\n".join(",".join(reversed(line.split(","))) for line in PAIRED.splitlines()),
    ],
    ids=["bom", "crlf", "spaces", "empty-lines", "more-columns", "other-order"],
)
def test_tolerated_forms(read: Read, text: str) -> None:
    """What spreadsheets do to a CSV changes nothing."""
    assert read(text) == read(PAIRED)


@given(order=st.permutations(PAIRED.splitlines()[1:]))
def test_order_of_lines(tmp_path_factory: pytest.TempPathFactory, order: list[str]) -> None:
    """Lines in any order give the same pairs."""
    file = tmp_path_factory.mktemp("csv") / "t.csv"
    file.write_text("\n".join([HEADER, *order]))

    table = read_table(file)

    values = table.metrics["itl_median"]
    assert sorted(values.base) == [0.005, 0.006]
    heads = {0.005: 0.0051, 0.006: 0.0052}
    assert list(values.head) == pytest.approx([heads[base] for base in values.base])


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", ":1", "has no column 'subject'"),
        ("pair,subject,metric,unit\n", ":1", "has no column 'value'"),
        (f"{HEADER}\n", "", "holds no measurement"),
        (f"{HEADER}\n0,base,itl_medain,ms,5\n", ":2", "did you mean 'itl_median'?"),
        (f"{HEADER}\n0,Base,itl_median,ms,5\n", ":2", "subject is 'Base', expected base or head"),
        (f"{HEADER}\n0,base,itl_median,MiB,5\n", ":2", "'MiB' is not a unit of itl_median (s)"),
        (f"{HEADER}\n0,base,itl_median,,5\n", ":2", "'' is not a unit"),
        (f"{HEADER}\n0,base,itl_median,ms,five\n", ":2", "'five' is not a finite number"),
        (f"{HEADER}\n0,base,itl_median,ms,nan\n", ":2", "'nan' is not a finite number"),
        (f"{HEADER}\n0,base,itl_median,ms,inf\n", ":2", "'inf' is not a finite number"),
        (f"{HEADER}\n0,base,model_memory,GiB,1e308\n", ":2", "'1e308' is not a finite number"),
        (f"{HEADER}\n0,base,itl_median,ms\n", ":2", "'' is not a finite number"),
        (f"{HEADER}\n,base,itl_median,ms,5\n", ":2", "pair is empty"),
        (f"{PAIRED}0,base,itl_median,ms,5\n", ":8", "pair 0 has itl_median of base twice"),
        (f"{PAIRED}7,base,itl_median,ms,5\n", "", "pair 7 has itl_median of base but not of head"),
        (f"{PAIRED}7,head,itl_median,ms,5\n", "", "pair 7 has itl_median of head but not of base"),
    ],
)
def test_refused(read: Read, tmp_path: Path, text: str, place: str, words: str) -> None:
    """A wrong table is refused with the file, the line where there is one, and what was found."""
    with pytest.raises(RecordError) as caught:
        read(text)

    assert str(caught.value).startswith(f"{tmp_path / 't.csv'}{place}: ")
    assert words in str(caught.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A file that is not there, is a folder, or holds bytes that are no UTF-8 is an error of perfgate's own."""
    (tmp_path / "t.csv").write_bytes(b"pair,subject\xff\xfe")

    with pytest.raises(RecordError, match="does not exist"):
        read_table(tmp_path / "none.csv")
    for file in (tmp_path, tmp_path / "t.csv"):
        with pytest.raises(RecordError, match="cannot be read as CSV"):
            read_table(file)

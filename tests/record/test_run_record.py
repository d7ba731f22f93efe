"""That a record keeps what was measured, shows every change made to it, and becomes tables without loss."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from perfgate.errors import ExitStatus, NotMeasuredError, RecordError
from perfgate.machine.atomic_files import canonical_json, sha256_hex, write_atomically
from perfgate.machine.fingerprint import Machine
from perfgate.machine.json_text import RECORD, Size
from perfgate.metrics.catalogue import METRICS, trial_value
from perfgate.metrics.trial import Artifact, Failure, Iteration, Probes, Startup, Trial
from perfgate.reasons import CODE
from perfgate.record.run_record import (
    Record,
    Run,
    Visit,
    read_record,
    read_records,
    read_run,
    record_digest,
    record_file,
    write_record,
    write_run,
)
from perfgate.scenario.declaration import loads
from perfgate.scenario.plan import Cell, Plan, resolve_cells
from perfgate.scenario.subject import Subject

SCENARIO = """\
schema: 1
name: x
engine: {model: {hub: a/b, revision: 0123abc}, args: {x: 0.1, y: [1, null], z: "é"}}
workload: {batch: 2, input_tokens: 4, output_tokens: 4}
measure: {iterations: 2, looks: [6, 9], spend: {block: [0.1, 0.2], pass: [0.3, 0.3]}, start_timeout: 1.5min}
gates: [{metric: itl_median, ignorable: 0.07%, must_catch: 2%, floor: 1us}]
matrix: {batch: [1, 2]}
"""
CELLS = resolve_cells(loads(SCENARIO, Path("s.yaml")))
BASE = Subject(python="/p", env={"A": "1"})
MACHINE = Machine(architecture="x86_64", cpu="EPYC", cores=2)


def iteration(itl_ns: tuple[int, ...] = (5, 7, 9)) -> Iteration:
    """One iteration of two requests."""
    return Iteration(
        ttft_ns=(10, 20), e2e_ns=(40, 50), itl_ns=itl_ns, output_tokens=5, elapsed_ns=50, tokens_digest="ab", begin_ns=7
    )


def trial(index: int, **fields: Any) -> Trial:
    """A timed trial of the base in pair 0."""
    plain = {
        "index": index, "pair": 0, "position": 0, "subject": "base", "visit": 0, "t0_utc": "2026-11-20T00:00:00Z",
        "duration_ns": 10**10, "iterations": (iteration(),),
    }  # fmt: skip
    return Trial(**{**plain, **fields})


def record(*trials: Trial, cell: Cell = CELLS[0]) -> Record:
    """A record of these trials in one visit."""
    return Record(
        cell=cell,
        subjects={"base": BASE, "head": BASE},
        seed=7,
        visits=(Visit(machine=MACHINE, t0_utc="2026-11-20T00:00:00Z", environment=("HOME",)),),
        trials=trials,
    )


FULL = record(
    trial(0, pair=None, startup=Startup(import_ns=1, engine_ns=2, ready_ns=3_000_000_000, kv_token_capacity=9)),
    trial(1, versions={"vllm": "0.25.1"}, timeline=Artifact(path="trials/001.jsonl.gz", sha256="00"), gpus=("GPU-1",)),
    trial(2, subject="head", position=1, cautions=("preemptions-unknown",)),
    trial(3, subject="head", pair=1, failure=Failure(code="engine-failed", text="é \u2028"), iterations=()),
    trial(4, pair=1, position=1),
)

NS = st.integers(0, 2**62)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CODES = st.from_regex(CODE, fullmatch=True).map(str.strip)
NS_TUPLES = st.lists(NS, max_size=4).map(tuple)
REQUESTS = st.lists(st.tuples(NS, NS), min_size=1, max_size=4).map(lambda found: tuple(zip(*found, strict=True)))
ITERATIONS = st.builds(
    lambda requests, **others: Iteration(ttft_ns=requests[0], e2e_ns=requests[1], **others), REQUESTS,
    itl_ns=NS_TUPLES, output_tokens=NS, elapsed_ns=NS, begin_ns=NS, tokens_digest=TEXT, multi_token=st.booleans(),
    probe_ns=st.none() | st.builds(lambda n: Probes(n, n[::-1]), st.lists(NS, min_size=1, max_size=4).map(tuple)),
)  # fmt: skip
TRIALS = st.builds(
    Trial, index=NS, pair=st.none() | st.integers(0, 9), position=st.integers(0, 1),
    subject=st.sampled_from(["base", "head"]), visit=st.just(0), gpus=st.lists(TEXT, max_size=2).map(tuple),
    t0_utc=TEXT, duration_ns=NS, failure=st.none() | st.builds(Failure, code=CODES, text=TEXT),
    versions=st.dictionaries(TEXT, TEXT, max_size=2),
    startup=st.none() | st.builds(Startup, import_ns=NS, engine_ns=NS, ready_ns=NS, model_memory_bytes=st.none() | NS),
    iterations=st.lists(ITERATIONS, max_size=2).map(tuple), cautions=st.lists(CODES, max_size=2).map(tuple),
    timeline=st.none() | st.builds(Artifact, path=st.sampled_from(["a", "trials/\u00e9..gz"]), sha256=TEXT),
)  # fmt: skip
RECORDS = st.builds(
    Record, cell=st.sampled_from(CELLS), subjects=st.just({"base": BASE}), seed=NS,
    orders=st.sampled_from(["blocks", "coins"]),
    visits=st.lists(st.builds(Visit, machine=st.just(MACHINE), t0_utc=TEXT), max_size=2).map(tuple),
    trials=st.lists(TRIALS, max_size=3).map(tuple), further_looks=st.sampled_from([(), (13,), (13, 20)]),
    stopped=st.none() | st.builds(Failure, code=CODES, text=TEXT),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS)
def test_a_record_reads_back_as_it_was_written(tmp_path: Path, written: Record) -> None:
    """Nothing is lost or changed on the way through the file, and the digest stays the same."""
    write_record(tmp_path / "r.json", written)
    read = read_record(tmp_path / "r.json")
    assert read == written
    assert record_digest(read) == record_digest(written) == json.loads((tmp_path / "r.json").read_text())["digest"]


def test_readings_of_the_probe_are_kept_where_there_are_some() -> None:
    """An iteration without readings has no key for them, so that a record from before them keeps its digest."""
    probed = iteration().model_copy(update={"probe_ns": Probes((1, 2), (3, 4))})

    assert "probe_ns" not in iteration().model_dump()
    assert json.loads(probed.model_dump_json())["probe_ns"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("readings", [[[], []], [[1], [1, 2]], [[1]], [[-1], [1]]])
def test_readings_of_other_ranks_are_refused(readings: list[list[int]]) -> None:
    """A record cannot hold a reading after an iteration of a rank that has none before it."""
    content = {**iteration().model_dump(), "probe_ns": readings}

    with pytest.raises(ValidationError, match=r"probe_ns|each rank"):
        Iteration.model_validate_json(json.dumps(content))


def test_orders_by_blocks_are_not_written() -> None:
    """A record and a manifest that do not say how orders were drawn are of blocks, and keep their digests."""
    old, new = (FULL.model_copy(update={"orders": orders}) for orders in ("blocks", "coins"))

    assert "orders" not in old.model_dump()
    assert Record.model_validate_json(old.model_dump_json(by_alias=True)).orders == "blocks"
    assert json.loads(new.model_dump_json(by_alias=True))["orders"] == "coins"
    assert "orders" not in Plan(cells=(), seed=0).model_dump()


def test_equal_records_are_equal_files(tmp_path: Path) -> None:
    """The form is canonical: the order in which subjects were named does not show."""
    turned = FULL.model_copy(update={"subjects": dict(reversed(FULL.subjects.items()))})
    write_record(tmp_path / "a.json", FULL)
    write_record(tmp_path / "b.json", turned)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@settings(max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_changed_byte_changes_what_is_read(tmp_path: Path, data: st.DataObject) -> None:
    """A record with one other byte is refused, or, where only the spacing changed, is the very same record."""
    file = tmp_path / "r.json"
    write_record(file, FULL)
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(content))
    try:
        read = read_record(file)
    except RecordError:
        return
    assert read == FULL


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "trials/../../x", "a\0b"])
def test_artifacts_lie_in_the_run_folder(path: str) -> None:
    """A record that names a file outside its run folder is refused before anything is opened."""
    with pytest.raises(ValueError, match="expected a file of the run folder"):
        Artifact(path=path, sha256="00")


@pytest.mark.parametrize("alpha", [-5.0, 0.0, 0.5, 2.0, float("nan"), float("inf")])
def test_error_rates_are_below_one_half(alpha: float) -> None:
    """A plan with an error rate that decides nothing is refused, for alpha and beta alike."""
    for rate in ("alpha", "beta"):
        with pytest.raises(ValueError, match=f"{rate}\n"):
            Plan.model_validate({"cells": (), "seed": 0, rate: alpha})


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_record_is_refused_with_its_place(tmp_path: Path, share: float) -> None:
    """Half a file is no record, and the error names line and column."""
    file = tmp_path / "r.json"
    write_record(file, FULL)
    content = file.read_text()
    file.write_text(content[: int(len(content) * share)])
    with pytest.raises(RecordError, match=r"r\.json:1:\d+: invalid JSON, or truncated"):
        read_record(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"\xff", "is not JSON that perfgate wrote: it is not UTF-8"),
        (b"[]", "not a perfgate-record: expected a JSON object"),
        (b"{}", "not a perfgate-record: format is None, expected 'perfgate-record/1'"),
        (b'{"format": "perfgate-run/1"}', "not a perfgate-record: format is 'perfgate-run/1'"),
        (b'{"format": "perfgate-record/2"}', "has format perfgate-record/2, this version reads up to perfgate-record"),
        (b'{"format": "perfgate-record/0"}', "has format perfgate-record/0, of an earlier perfgate; this version"),
        (b'{"format": "perfgate-record/1"}', "the digest does not fit the content"),
        (b'{"format": "perfgate-record/1", "seed": NaN}', "is not JSON that perfgate wrote: it holds NaN"),
        (b'{"format": "perfgate-record/1", "seed": "\\ud800"}', "the digest does not fit the content"),
        (b'{"format": ' + b"9" * 5000 + b"}", "is not JSON that perfgate wrote"),
        (b"[" * 100_000, "is not JSON that perfgate wrote"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """Every such file is a RecordError that names it and means exit status 2."""
    file = tmp_path / "r.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        read_record(file)
    assert str(caught.value).startswith(f"{file}: {problem}")
    assert caught.value.exit_status is ExitStatus.USAGE


def sealed(folder: Path, content: dict[str, Any]) -> Path:
    """A file with this content and its digest."""
    file = folder / "r.json"
    file.write_text(json.dumps({**content, "digest": sha256_hex(canonical_json(content))}))
    return file


def test_a_record_with_a_fitting_digest_but_wrong_fields_is_refused(tmp_path: Path) -> None:
    """The digest proves origin, not sense: fields are checked too, and named."""
    file = sealed(tmp_path, FULL.model_dump(mode="json") | {"seed": "seven"})
    with pytest.raises(RecordError, match="seed: Input should be a valid integer"):
        read_record(file)


def test_a_record_without_further_looks_is_whole(tmp_path: Path) -> None:
    """A record written before looks could be added reads as one to which none was."""
    content = FULL.model_dump(mode="json")
    del content["further_looks"]

    assert read_record(sealed(tmp_path, content)) == FULL


def test_a_record_of_an_older_version_keeps_the_digest_that_it_carries(tmp_path: Path) -> None:
    """A record of 0.1.0, whose visits say nothing of processes: baselines and verdicts name it by that digest."""
    visit = {"machine": MACHINE.model_dump(mode="json"), "t0_utc": "2026-11-01T00:00:00Z", "environment": []}
    whole = Record(cell=CELLS[0], subjects={"base": BASE}, seed=1).model_dump(mode="json")
    file = sealed(tmp_path, {**whole, "visits": [visit]})
    assert record_digest(read_record(file)) == json.loads(file.read_text())["digest"]


def test_a_run_folder_yields_its_records_in_the_plans_order(tmp_path: Path) -> None:
    """Cells without a record are left out; a record moved to the place of another cell does not count for it."""
    run = Run(name="r", plan=Plan(cells=CELLS, seed=7), subjects={"base": BASE, "head": BASE}, perfgate="0.1.0")
    with pytest.raises(RecordError, match=r"not a run folder: it has no run\.json"):
        read_run(tmp_path)
    (tmp_path / "records").mkdir()
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run
    assert list(read_records(tmp_path, run)) == []
    for cell in reversed(CELLS):
        write_record(record_file(tmp_path, cell), record(cell=cell))
    assert [r.cell for r in read_records(tmp_path, run)] == list(CELLS)
    write_record(record_file(tmp_path, CELLS[0]), record(cell=CELLS[1]))
    with pytest.raises(RecordError, match="holds another cell than the run's manifest names"):
        list(read_records(tmp_path, run))


def test_the_old_file_stays_when_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the earlier record whole and no remains beside it."""
    file = tmp_path / "r.json"
    write_record(file, FULL)
    before = file.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_record(file, record())
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that grew too large leaves the one before it, which can be judged."""
    write_record(tmp_path / "r.json", FULL)
    monkeypatch.setattr("perfgate.record.run_record.RECORD", Size(1, 10))

    with pytest.raises(NotMeasuredError, match=r"r\.json: cannot be written, .*values; such a file has at most 10"):
        write_record(tmp_path / "r.json", record())

    monkeypatch.undo()
    assert read_record(tmp_path / "r.json") == FULL


def test_the_largest_planned_record_can_be_read(tmp_path: Path) -> None:
    """Trials with as many figures as a scenario may ask for leave half of a record's room."""
    figures = {"ttft_ns": (10**8,) * 256, "e2e_ns": (10**10,) * 256, "itl_ns": (10**7,) * 2047}
    large = iteration().model_copy(update=figures)
    write_record(tmp_path / "r.json", record(trial(0, iterations=(large,) * 10)))
    text = (tmp_path / "r.json").read_text()

    share = sum(map(text.count, ",[{")) / RECORD.values
    assert share * 24 * 10 < 0.5  # twelve pairs of a hundred iterations
    assert len(text) / (RECORD.mib << 20) < share  # the number of values is what bounds it


def test_a_written_record_and_its_name_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the file and the folder that names it are synchronised, in this order."""
    synchronised = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synchronised.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    write_record(tmp_path / "r.json", FULL)
    assert synchronised == [False, True]


def test_a_missing_folder_is_the_file_systems_error(tmp_path: Path) -> None:
    """Nothing is created where the folder does not exist."""
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "r.json", "{}")


def test_only_whole_pairs_are_judged() -> None:
    """A pair counts when both its trials are valid; a warm-up trial never does."""
    assert [(base.index, head.index) for base, head in FULL.pairs()] == [(1, 2)]
    assert {pair: t.index for pair, t in FULL.dropped_pairs().items()} == {1: 3}
    assert [t.index for t in FULL.judged_trials("base")] == [1, 4]
    assert [t.index for t in FULL.judged_trials("head")] == [2]


def test_of_two_failures_in_a_pair_the_first_is_named() -> None:
    """The pair was dropped for what failed first."""
    failure = Failure(code="engine-failed", text="")
    both = record(trial(5, failure=failure), trial(6, subject="head", position=1, failure=failure))
    assert both.dropped_pairs()[0].index == 5


def test_the_frame_has_a_row_a_trial_and_a_column_a_metric() -> None:
    """Values are those of the metrics, in base units; missing ones are NaN in columns of floats."""
    frame = FULL.frame()
    assert list(frame["trial"]) == [0, 1, 2, 3, 4]
    assert str(frame["pair"].dtype) == "Int64"
    assert frame["pair"].isna().tolist() == [True, False, False, False, False]
    assert [failure for failure in frame["failure"] if isinstance(failure, str)] == ["engine-failed"]
    for name in METRICS:
        assert str(frame[name].dtype) == "float64"
        values = [trial_value(name, t) for t in FULL.trials]
        assert [None if pd.isna(v) else v for v in frame[name]] == values


def test_the_iteration_frame_keeps_nanoseconds_whole() -> None:
    """Medians are integers of 64 bits, exact beyond what a float holds, and missing where a step never was."""
    large = 2**60 + 1
    frame = record(trial(0, iterations=(iteration((large,)), iteration(()))), trial(1, pair=None)).iteration_frame()
    assert [str(frame[name].dtype) for name in ("ttft_ns", "itl_ns", "e2e_ns", "pair")] == ["Int64"] * 4
    assert frame["itl_ns"].iloc[0] == large
    assert frame["itl_ns"].isna().tolist() == [False, True, False]
    assert frame["ttft_ns"].tolist() == [10, 10, 10]
    assert frame["iteration"].tolist() == [0, 1, 0]


def test_frames_of_an_empty_record_have_their_columns() -> None:
    """A record without trials is an empty table, ready to be joined with others."""
    empty = record()
    assert set(empty.frame().columns) == set(FULL.frame().columns)
    assert empty.frame().dtypes["itl_median"] == "float64"
    assert empty.iteration_frame().dtypes.to_dict() == {
        **FULL.iteration_frame().dtypes.to_dict(), "subject": object, "tokens_digest": object
    }  # fmt: skip
    assert len(empty.frame()) == len(empty.iteration_frame()) == 0

"""The history: what is read, what is left out and named, and what the pages say of a generated year."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import generated_year
import pytest
from browser import NARROW, WIDE, opened
from git_project import GitProject
from hand_made import cell, judged, record, spread, trials
from hand_made import record as record_of
from playwright.sync_api import Browser
from shown_history import INDEX, history, left_out, the_page, write_a_run

from perfgate.baseline.lineage import draft
from perfgate.history.points import _points_of_record, typical

pytestmark = pytest.mark.skipif(find_spec("ruptures") is None, reason="ruptures has no wheels for this Python yet")
HOSTILE = """</title></style><script>alert(1)</script><img src=x onerror=alert(1)> "' {{ 7*7 }} \u202e"""


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated year's baselines."""
    folder = tmp_path_factory.mktemp("year") / "heads"
    generated_year.write_year(folder)
    return folder


@pytest.fixture(scope="module")
def pages(year: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its pages."""
    site = tmp_path_factory.mktemp("site")
    shown = history(year, output=site, cache=site.parent / "cache.duckdb", more=["--metric", "itl_median"])
    assert shown.exit_code == 0, shown.output
    return site


def test_two_changes_and_a_drift_are_found(browser: Browser, pages: Path, golden: Callable[[str, str], None]) -> None:
    """The page of the year has its parts, tells the changes with the builds they came with, and asks for nothing."""
    with opened(browser, the_page(pages), scripts=False) as shown:
        golden("page-history.txt", shown.structure())
        changes = shown.page.locator("table").filter(has_text="between").last.inner_text().replace("\u00a0", " ")

        assert "\n2026-02-26\tchange\t+0.29 % (" in changes
        assert "vllm 0.26.0.dev95 (2026-02-25) and vllm 0.26.0.dev96 (2026-02-26)" in changes
        assert "\tdrift\t+0.5" in changes
        assert shown.layout_faults() == []
        assert (shown.reported, shown.asked) == ([], [the_page(pages).as_uri()])


def test_the_first_page_tells_of_all(browser: Browser, pages: Path, golden: Callable[[str, str], None]) -> None:
    """Every series is a row, and every cell a link."""
    with opened(browser, pages / INDEX) as shown:
        golden("page-history-index.txt", shown.structure())
        shown.page.get_by_role("link", name="llama-8b-decode").click()

        assert shown.page.url == the_page(pages).as_uri()
        assert shown.reported == []


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_everybody_can_read_it(width: int, scheme: Any, browser: Browser, pages: Path) -> None:
    """With its script and unfolded, axe-core finds nothing serious, and no word is cut off."""
    with opened(browser, the_page(pages), width=width, scheme=scheme) as shown:
        shown.unfold()

        assert shown.layout_faults() == []
        assert shown.violations() == []
        assert shown.reported == []


def test_any_two_nights_are_compared(browser: Browser, pages: Path) -> None:
    """Two rows chosen tell their change, its interval and their builds; a third takes the place of the first."""
    with opened(browser, the_page(pages)) as shown:
        shown.unfold()
        told = shown.page.locator(".compared")
        boxes = shown.page.locator("table[data-spread] input")
        before = told.inner_text()
        boxes.nth(300).check()
        boxes.nth(0).check()
        first = told.inner_text()
        boxes.nth(1).check()

        assert before.startswith("Choose two nights")
        assert first.startswith("2026-01-14 02:28 to 2026-11-22 02:04: +0.22 % (95 %: +0.02 % to +0.42 %). ")
        assert "chance" not in first
        assert first.endswith("to vllm 0.26.0.dev365")
        assert "which chance may be" in told.inner_text()
        assert [boxes.nth(n).is_checked() for n in (0, 1, 300)] == [True, True, False]


def test_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    """Cells, builds, authors and files of somebody else become no markup and run nothing."""
    kept = record_of(cell().model_copy(update={"name": HOSTILE}), trials([0.0] * 6))
    kept = kept.model_copy(update={"trials": tuple(t.model_copy(update={"versions": {HOSTILE: HOSTILE}})
                                                   for t in kept.trials)})  # fmt: skip
    entry = draft(kept, "head", anchored=True).model_copy(update={"author": HOSTILE, "reason": HOSTILE}).sealed()
    content = {"format": "perfgate-baseline/1", "entries": [entry.content], "tip": entry.digest}
    source = tmp_path / "heads"
    source.mkdir()
    (source / "a.json").write_text(json.dumps(content))
    (source / "<img src=x onerror=alert(1)>.json").write_text("{}")

    told = history(source, output=tmp_path / "site", cache=tmp_path / "c")

    assert told.exit_code == 0
    for file in (tmp_path / "site").iterdir():
        with opened(browser, file, width=NARROW) as shown:
            assert shown.page.locator("img, iframe, object").count() == 0
            assert "<script>alert(1)</script>" in shown.page.locator("body").inner_text()
            assert shown.page.locator("script").count() <= 1
            assert shown.reported == []
            assert "\u202e" not in shown.page.content()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An incomplete run, a changed record, a drill and files of others are left out, each with its reason."""
    runs = tmp_path / ("a" * 80) / "runs"
    write_a_run(runs / "good")
    for name in ("no-verdict", "changed", "other-verdict"):
        write_a_run(runs / name, 0.002)
    (runs / "no-verdict" / "verdict.json").unlink()
    (file,) = (runs / "changed" / "records").iterdir()
    file.write_text(file.read_text().replace("1.0", "1.1", 1))
    shutil.copy(runs / "good" / "verdict.json", runs / "other-verdict" / "verdict.json")
    (runs / "a-drill").mkdir()
    (runs / "a-drill" / "drill.json").write_text("{}")
    write_a_run(runs / "a-drill" / "plant" / "run")
    (runs / "package.json").write_text("{}")
    (runs / "half.zip").write_bytes(b"PK\x03\x04 and no more")

    told = history(runs, output=tmp_path / "site", cache=tmp_path / "c")
    again = history(runs, output=tmp_path / "site", cache=tmp_path / "c")

    assert [line.removeprefix(f"{runs}/") for line in left_out(told)] == [
        "a-drill: a drill: its heads are slow on purpose",
        "changed: the digest does not fit the content: the record was truncated or changed",
        "half.zip: cannot be unpacked: File is not a zip file",
        "no-verdict: not a whole run: it has no verdict.json",
        "other-verdict: its verdict.json is not of its records",
        "package.json: not a run, a baseline or an artifact",
    ]
    assert again.stderr == told.stderr
    assert "1 series of 1 visits; 6 left out" in told.stdout
    assert "package.json: not a run" in (tmp_path / "site" / INDEX).read_text()


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    """A folder without a measurement makes a page that says so, and ends with 21."""
    (tmp_path / "runs").mkdir()

    told = history(tmp_path / "runs", output=tmp_path / "site", cache=tmp_path / "c")
    wrong = history(tmp_path / "other", output=tmp_path / "site", cache=tmp_path / "c")

    assert told.exit_code == 21
    assert "no data" in told.stderr
    assert "No data: nothing that was named holds a measurement." in (tmp_path / "site" / INDEX).read_text()
    assert (wrong.exit_code, wrong.stderr) == (2, f"perfgate: {tmp_path / 'other'}: does not exist\n")


def test_an_artifact_is_read_packed(tmp_path: Path) -> None:
    """A night's runs are read from the archive that GitHub gives; what is in a folder too counts once."""
    night = tmp_path / "night-1"
    write_a_run(night / "head" / "run-1")
    write_a_run(night / "reference" / "run-2", 0.0)
    (night / "night.json").write_text("{}")
    with zipfile.ZipFile(tmp_path / "night.zip", "w") as packed:
        for file in sorted(night.rglob("*")):
            packed.write(file, file.relative_to(tmp_path))
        packed.writestr("night-1/head/run-1/trials/0/large.bin", b"0" * 1000)

    packed_only = history(tmp_path / "night.zip", output=tmp_path / "a", cache=tmp_path / "c")
    both = history(tmp_path / "night.zip", night, output=tmp_path / "b", cache=tmp_path / "c")

    assert "1 series of 2 visits; 0 left out" in packed_only.stdout
    assert "1 series of 2 visits; 0 left out" in both.stdout


def test_what_was_removed_from_a_baseline_is_in_git(tmp_path: Path) -> None:
    """Entries of a file that was removed and begun anew count, each once."""
    project = GitProject(tmp_path / "project")
    for nights, seed in ((3, 1), (5, 1), (4, 2)):
        project.write({"heads/m/cell.json": generated_year.heads(nights, seed).text})
        project.git("add", "--all")
        project.git("commit", "--quiet", "--message", f"{nights} nights")

    told, again = (history(project.folder / "heads", output=tmp_path / "site", cache=tmp_path / "c",
                           more=["--metric", "itl_median"]) for _ in range(2))  # fmt: skip

    assert "1 series of 9 visits" in told.stdout
    assert again.stdout == told.stdout


def test_a_promoted_run_is_one_visit(tmp_path: Path) -> None:
    """The run and the entry that it became are one point, with the verdict of one and the promotion of the other."""
    folder = write_a_run(tmp_path / "runs" / "one")
    (file,) = (folder / "records").iterdir()
    kept = record_of(cell(), trials([0.001 + 0.0001 * n for n in range(6)]))
    entry = draft(kept, "head").model_copy(update={"author": "A Tester", "reason": "why"}).sealed()
    content = {"format": "perfgate-baseline/1", "entries": [entry.content], "tip": entry.digest}
    (tmp_path / "baseline.json").write_text(json.dumps(content))

    told = history(tmp_path / "runs", tmp_path / "baseline.json", output=tmp_path / "site", cache=tmp_path / "c")

    page = the_page(tmp_path / "site").read_text()
    assert file.exists()
    assert "1 series of 1 visits; 0 left out" in told.stdout
    assert "A Tester" in page
    assert "pass" in page


def test_without_the_extra_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DuckDB or ruptures is not installed, the command names both the package and the extra."""
    monkeypatch.setattr("perfgate.history.commands.NEEDED", ("duckdb", "not_there"))

    told = history(tmp_path, output=tmp_path / "site", cache=tmp_path / "c")

    assert told.exit_code == 2
    assert told.stderr.startswith("perfgate: perfgate history needs not_there\n  Install perfgate with its extra")


def test_intervals_are_of_order_statistics() -> None:
    """Six values have an interval from the least to the largest, twelve one between the third of either end."""
    assert typical([5.0, 1.0, 3.0]) == (3.0, None, None)
    assert typical([6.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == (3.5, 1.0, 6.0)
    assert typical([float(n) for n in range(12)]) == (5.5, 2.0, 9.0)


def test_of_several_states_a_point_has_the_worst() -> None:
    """A page of nights shows a gate that is blocked in a state of its GPU, whatever the mean over both says."""
    kept = record(cell(), trials(spread(0.0, 0.0002, 6)))
    outcome = judged(kept.trials).cells[0]
    (own,) = outcome.gates
    states = [("slow", "regressed", 0.03), ("fast", "pass", 0.0), ("both", "inconclusive", 0.01)]
    gates = tuple(own.model_copy(update={"state": state, "verdict": verdict, "change": change})
                  for state, verdict, change in states)  # fmt: skip
    points = _points_of_record(kept, outcome.model_copy(update={"gates": gates}), "d", {}, pinned=False)
    assert {(point.verdict, point.change) for point in points if point.metric == own.metric} == {("regressed", 0.03)}

"""What others put where a history is read from, and what became of it since: named, left out, or read anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import generated_year
import pytest
from git_project import GitProject
from hand_made import MACHINE, cell, trials
from shown_history import INDEX, history, left_out, the_page, write_a_run
from test_heads import OfHeads, measure

from perfgate.baseline.stored_visit import Build
from perfgate.history.point_table import PointTable, opened
from perfgate.history.points import Point, all_series
from perfgate.record.run_record import Visit

pytestmark = pytest.mark.skipif(find_spec("ruptures") is None, reason="ruptures has no wheels for this Python yet")
METRIC = ["--metric", "itl_median"]


def visit(begun: str) -> Visit:
    """A visit of the usual machine."""
    return Visit(machine=MACHINE, t0_utc=begun)


def test_each_fault_is_named_where_it_is(tmp_path: Path) -> None:
    """Equal files are told of at their own places, and after a move at the new one, whatever the cache knows."""
    before, after, cache = tmp_path / "before", tmp_path / "after", tmp_path / "c"
    before.mkdir()
    for name in ("a.json", "b.json"):
        (before / name).write_text("{}")

    first = left_out(history(before, output=tmp_path / "s", cache=cache))
    before.rename(after)
    second = left_out(history(after, output=tmp_path / "s", cache=cache))

    why = "not a run, a baseline or an artifact"
    assert first == [f"{before}/a.json: {why}", f"{before}/b.json: {why}"]
    assert second == [f"{after}/a.json: {why}", f"{after}/b.json: {why}"]


def test_names_and_kinds_of_files(tmp_path: Path) -> None:
    """A name with a line end or without an encoding is one line; a pipe is not opened, and a link not followed."""
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "a\nperfgate: all is well.json").write_text("{}")
    with open(os.fsencode(runs) + b"/b\xff.json", "w") as file:  # noqa: PTH123 (no text is this name)
        file.write("{}")
    os.mkfifo(runs / "c.json")
    (runs / "d").symlink_to(tmp_path)

    told = history(runs, output=tmp_path / "s", cache=tmp_path / "c")

    assert left_out(told) == [
        f"{runs}/a perfgate: all is well.json: not a run, a baseline or an artifact",
        f"{runs}/b\ufffd.json: not a run, a baseline or an artifact",
        f"{runs}/c.json: neither a file nor a folder",
        f"{runs}/d: a link, which is not followed: name where it leads",
    ]
    assert told.exit_code == 21


def test_a_file_that_was_changed_is_read_anew(tmp_path: Path) -> None:
    """Also where its size and its time of change were put back, as unpacking an archive does."""
    folder = write_a_run(tmp_path / "runs" / "one")
    words: dict[str, Any] = {"output": tmp_path / "s", "cache": tmp_path / "c"}
    file = folder / "verdict.json"
    was = file.stat()

    first = history(tmp_path / "runs", **words)
    file.write_text(file.read_text().replace("{", "[", 1))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    is_now = file.stat()
    changed = history(tmp_path / "runs", **words)
    shutil.rmtree(folder)
    gone = history(tmp_path / "runs", **words)

    assert "1 series of 1 visits; 0 left out" in first.stdout
    assert (is_now.st_size, is_now.st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    assert "invalid JSON" in changed.stderr
    assert "0 series of 0 visits; 0 left out" in gone.stdout


def test_what_ends_while_it_is_kept_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is known to the cache only with all its points."""
    write_a_run(tmp_path / "runs" / "one")
    words: dict[str, Any] = {"output": tmp_path / "s", "cache": tmp_path / "c"}
    insert = PointTable._insert

    def killed(self: PointTable, table: str, rows: Any, columns: Any, how: str = "") -> None:
        if table == "points":
            raise KeyboardInterrupt
        insert(self, table, rows, columns, how)

    with monkeypatch.context() as patch:
        patch.setattr(PointTable, "_insert", killed)
        stopped = history(tmp_path / "runs", **words)
    again = history(tmp_path / "runs", **words)

    assert stopped.exit_code == 130
    assert "1 series of 1 visits; 0 left out" in again.stdout


def test_a_database_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    """Another file, or a DuckDB file with other tables, is refused and not changed."""
    write_a_run(tmp_path / "runs" / "one")
    theirs, old = tmp_path / "theirs", tmp_path / "old"
    with duckdb.connect(str(theirs)) as connection:
        connection.execute("CREATE TABLE precious (a INTEGER)")
    with duckdb.connect(str(old)) as connection:
        connection.execute("CREATE TABLE files (path VARCHAR, size BIGINT)")

    (tmp_path / "text").write_text("mine")
    no_database = history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "text")
    refused = history(tmp_path / "runs", output=tmp_path / "s", cache=theirs)
    taken = history(tmp_path / "runs", output=tmp_path / "s", cache=old)

    assert (no_database.exit_code, "cannot be opened as a cache" in no_database.stderr) == (2, True)
    assert (tmp_path / "text").read_text() == "mine"
    assert (refused.exit_code, "it has a table precious" in refused.stderr) == (2, True)
    with duckdb.connect(str(theirs)) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == [("precious",)]
    assert "1 series of 1 visits; 0 left out" in taken.stdout


@pytest.mark.parametrize("why", ["no folder", "another process"])
def test_without_its_usual_cache(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the usual cache cannot be had, that is said and the pages are made all the same."""
    write_a_run(tmp_path / "runs" / "one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    connect: Any = duckdb.connect

    def busy(file: str) -> Any:
        if file != ":memory:":
            raise duckdb.IOException("Could not set lock on file: Conflicting lock is held")
        return connect(file)

    if why == "no folder":
        (tmp_path / "home").write_text("a file")
    else:
        monkeypatch.setattr("perfgate.history.point_table.duckdb.connect", busy)
    told = history(tmp_path / "runs", output=tmp_path / "s")

    assert told.exit_code == 0
    assert "cannot be opened as a cache" in told.stderr
    assert "everything is read anew" in told.stderr
    assert "1 series of 1 visits; 0 left out" in told.stdout


def test_folders_of_any_name_are_in_git(tmp_path: Path) -> None:
    """What was removed from a folder whose name git would quote counts too."""
    project = GitProject(tmp_path / "project")
    file = 'heads/n\u00e4chte "a"/cell.json'
    project.write({file: generated_year.heads(3, 1).text, "heads/other.json": generated_year.heads(2, 2).text})
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "both")
    (project.folder / file).unlink()
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "one")

    told = history(project.folder / "heads", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)

    assert "1 series of 5 visits; 0 left out" in told.stdout


def committed(project: GitProject, *texts: bytes, name: str = "heads/cell.json") -> list[str]:
    """Versions of a file, each a commit; the names of their blobs."""
    for text in texts:
        project.write({name: ""})
        (project.folder / name).write_bytes(text)
        project.git("add", "--all")
        project.git("-c", "core.autocrlf=false", "commit", "--quiet", "--message", "a version")
    return [project.git("rev-parse", f"HEAD~{back}:{name}") for back in reversed(range(len(texts)))]


def test_line_ends_in_git_are_bytes(tmp_path: Path) -> None:
    """A file with carriage returns is found whole, and so is what follows it."""
    project = GitProject(tmp_path / "project")
    foreign, nights = b'{"a":\r\n1}\r\n' * 99, [generated_year.heads(n, n).text.encode() for n in (2, 3)]
    committed(project, nights[0], foreign, nights[1].replace(b"\n", b"\r\n"), foreign)

    told = history(project.folder / "heads", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)

    assert "1 series of 5 visits; 1 left out" in told.stdout
    assert "not a run, a baseline or an artifact" in told.stderr


@pytest.mark.parametrize("wrong", ["no JSON", "another digest", "no text", "half of a pair"])
def test_a_bad_version_in_git_is_named_and_hides_nothing(wrong: str, tmp_path: Path) -> None:
    """What an older version holds counts, though a broken newer one or the file itself names the same entries."""
    project = GitProject(tmp_path / "project")
    good = generated_year.heads(3, 1).text.encode()
    bad = {
        "no JSON": good.replace(b'"entries": [', b'"entries": [[', 1),
        "another digest": good.replace(b'"author": "', b'"author": "x', 1),
        "no text": good.replace(b'"author": "', b'"author": "\xff', 1),
        "half of a pair": good.replace(b'"author": "', b'"author": "\\ud800', 1),
    }[wrong]
    _, blob, _ = committed(project, good, bad, bad + b"\n")

    told = history(project.folder / "heads", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)
    again = history(project.folder / "heads", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)

    assert "1 series of 3 visits; 2 left out" in told.stdout
    assert f"heads/cell.json at {blob[:12]}" in told.stderr
    assert (again.stdout, again.stderr) == (told.stdout, told.stderr)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_what_git_cannot_read_is_named(damage: str, tmp_path: Path) -> None:
    """An object that is damaged or missing is one version less, and its blob is named."""
    project = GitProject(tmp_path / "project")
    texts = [generated_year.heads(nights, nights).text.encode() for nights in (2, 3, 4)]
    _, blob, _ = committed(project, *texts)
    file = project.folder / ".git" / "objects" / blob[:2] / blob[2:]
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])

    told = history(project.folder / "heads", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)

    assert "1 series of 6 visits; 1 left out" in told.stdout
    assert f"heads/cell.json at {blob[:12]} in git is not read: " in told.stderr


def test_a_clone_without_old_files_says_so(tmp_path: Path) -> None:
    """Of many versions that are not there ten are named, and then their number."""
    project = GitProject(tmp_path / "project")
    committed(project, *(generated_year.heads(1, nights).text.encode() for nights in range(1, 15)))
    project.git("config", "uploadpack.allowFilter", "true")
    project.git("clone", "--quiet", "--filter=blob:none", f"file://{project.folder}", str(tmp_path / "clone"))

    told = history(tmp_path / "clone" / "heads", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)

    assert "1 series of 1 visits; 11 left out" in told.stdout
    assert "13 versions in git are not read, of which the first 10 are named" in told.stderr


@pytest.mark.parametrize("begun", ["garbage", "2026-01-02T00:00:00", "1970-01-01T00:00:05+00:00"])
def test_a_visit_at_no_time_is_named(begun: str, tmp_path: Path) -> None:
    """Without a zone, or of a clock that was never set."""
    write_a_run(tmp_path / "runs" / "one", visits=(visit(begun),))

    (fault,) = left_out(history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "c"))

    assert f"a visit began at {begun!r}, and that is not a time with its zone" in fault


def test_a_visit_yet_to_come_is_named(tmp_path: Path) -> None:
    """One clock that was ahead neither is the newest night nor stretches the chart."""
    ahead = (datetime.now(UTC) + timedelta(days=400)).isoformat(timespec="seconds")
    write_a_run(tmp_path / "runs" / "now")
    write_a_run(tmp_path / "runs" / "ahead", visits=(visit(ahead),))

    told = history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "c")

    assert f"began at {ahead}, which is yet to come" in left_out(told)[0]
    assert "1 series of 1 visits; 1 left out" in told.stdout
    assert ahead[:10] not in the_page(tmp_path / "s").read_text()


def test_each_of_several_heads_is_shown(tmp_path: Path) -> None:
    """Of a run of several heads each is a point; as they are of the same hours, one is the night."""
    measure(tmp_path, OfHeads())

    told = history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "c", more=METRIC)

    page = the_page(tmp_path / "s").read_text()
    assert "1 series of 1 visits; 0 left out" in told.stdout
    assert "<dt>not among them</dt><dd>1\u00a0visit" in page.replace("1 visit", "1\u00a0visit")
    assert page.count("<td>regressed</td>") + page.count("<td>pass</td>") == 1


def test_a_run_that_went_on_counts_each_visit_once(tmp_path: Path) -> None:
    """What an attempt left and what was measured after it are two visits, though the first is in both records."""
    measured, begun = cell(), ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")
    early = trials([0.001, 0.002, 0.003, 0.004])
    late = [one.model_copy(update={"index": one.index + 8, "pair": 4 + n // 2, "visit": 1})
            for n, one in enumerate(trials([0.002, 0.003]))]  # fmt: skip
    write_a_run(tmp_path / "runs" / "attempt-1", measured=measured, taken=early, visits=(visit(begun[0]),))
    write_a_run(tmp_path / "runs" / "attempt-2", measured=measured, taken=(*early, *late),
                visits=tuple(map(visit, begun)))  # fmt: skip

    told = history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "c")

    assert "1 series of 2 visits; 0 left out" in told.stdout


def test_cells_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """By their ids, in the table and in the links."""
    for name in ("0123456789", "abcdef0123"):
        write_a_run(tmp_path / "runs" / name, measured=cell("same").model_copy(update={"cell_id": name}))

    history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "c")

    index = (tmp_path / "s" / INDEX).read_text()
    assert all(index.count(f"same ({name[:8]})") == 2 for name in ("0123456789", "abcdef0123"))


def nights(count: int, anchor: str, first: int = 0, level: float = 0.0) -> Iterable[Point]:
    """So many nights beside an anchor, each of another build, but for the first, which is every anchor's."""
    for n in range(count):
        begun = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=first + n)).isoformat(timespec="seconds")
        build = Build(versions={"vllm": "shared" if n == 0 else f"{anchor}.{n}"}).model_dump_json()
        beside = Build(versions={"vllm": anchor}).model_dump_json()
        yield Point("id", "cell", "m", "itl_median", begun, f"{anchor}{n}", "head", build, 0.005, None, None, 6,
                    beside=beside, pinned=True, ratio=level + 1e-4 * (n % 3), beside_value=0.005)  # fmt: skip


def test_an_anchor_that_was_exchanged_lately() -> None:
    """Changes found beside the anchor before still count while there are few nights beside the new one."""
    old = [*nights(20, "1.0"), *nights(20, "1.0", 20, 0.01)]
    (found,) = all_series([*old, *nights(3, "2.0", 40, 0.002)])

    assert found.anchor == "vllm 2.0"
    assert [change.first for change in found.course.changes] == [20]
    assert found.course.looked
    assert found.course.night_sd > 0
    assert len(found.course.fitted) == len(found.nights) == 43


def test_an_anchor_a_night_is_no_series() -> None:
    """However many anchors there were, the newest one counts, and nothing is sought."""
    (found,) = all_series([one for n in range(1500) for one in [*nights(2, f"{n}.0", n)][1:]])

    assert (len(found.points), len(found.nights), found.course.looked) == (1500, 1, False)


def test_a_cache_is_refused_while_it_is_used(tmp_path: Path) -> None:
    """What DuckDB refuses after the file was opened is told like what it refuses before."""
    write_a_run(tmp_path / "runs" / "one")
    with opened(tmp_path / "c"):
        pass
    with duckdb.connect(str(tmp_path / "c")) as connection:
        connection.execute("DROP TABLE points; CREATE TABLE points (a INTEGER)")

    told = history(tmp_path / "runs", output=tmp_path / "s", cache=tmp_path / "c")

    assert told.exit_code == 2
    assert "cannot be used as a cache" in told.stderr

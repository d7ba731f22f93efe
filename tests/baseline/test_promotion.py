"""Promotion: what may become a baseline, what is free and what needs a reason, and how git keeps it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from hand_made import HEAD, MACHINE, cell, keep_scenario, record, run, spread, trial, trials
from hypothesis import given
from hypothesis import strategies as st
from stored import alone, lineage, measured, said, visit

from perfgate.baseline.baseline_page import baseline_document, diff_document
from perfgate.baseline.lineage import Baseline, Entry, parse
from perfgate.baseline.promotion import Promoted, promote
from perfgate.baseline.store import baseline_path, files, read
from perfgate.baseline.stored_visit import Anchored, BaselineVisit
from perfgate.cli.main import main
from perfgate.errors import NotMeasuredError, RecordError, UsageError
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.fingerprint import machine_class
from perfgate.machine.json_text import Size
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure
from perfgate.record.identity import Measured
from perfgate.record.run_record import Record, record_file, write_record, write_run
from perfgate.report.text import to_text
from perfgate.scenario.subject import Source, Subject

SAME = [0.0, 0.001, -0.001, 0.0, 0.001, -0.001]
OTHER_BUILD = {"versions": {"vllm": "2.0"}}

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A function that writes a run folder of these records."""
    made: list[Path] = []

    def one(*records: Record, **changes: Any) -> Path:
        folder = tmp_path / f"run-{len(made)}"
        made.append(folder)
        (folder / "records").mkdir(parents=True)
        records = tuple(kept.model_copy(update={"cell": keep_scenario(folder, kept.cell)}) for kept in records)
        subjects = records[0].subjects
        write_run(folder, run([kept.cell for kept in records], subjects=subjects, **changes))
        for kept in records:
            write_record(record_file(folder, kept.cell), kept)
        return folder

    return one


def shifted(by: float) -> list[float]:
    """A side whose every restart is slower by a log ratio."""
    return [one + by for one in SAME]


def of_build(side: Record, **changes: Any) -> Record:
    """The record with every trial of another build."""
    return side.model_copy(update={"trials": tuple(one.model_copy(update=changes) for one in side.trials)})


def only(promoted: Sequence[Promoted]) -> Promoted:
    """The one cell."""
    (one,) = promoted
    return one


def as_an_earlier_version_has_it(stored: Promoted, baselines: Path) -> Path:
    """A baseline moved to where it lies if its class does not tell guests apart."""
    file = baselines / machine_class(MACHINE, "observe") / "cell.json"
    file.parent.mkdir(exist_ok=True)
    return stored.file.rename(file)


def visits(save: Save, root: Path, means: Sequence[float]) -> Baseline:
    """Promote visits of one build; the baseline they make."""
    for day, by in enumerate(means, 1):
        done = promote(save(alone(shifted(by), visits=(visit(day),))), root, reason="more")
    return only(done).baseline


FOUR = (0.0, 0.002, -0.002, 0.001)


# --- what is free, and what is not


def test_first(save: Save, tmp_path: Path) -> None:
    """The first needs a reason, and lies where its machine and scenario say."""
    folder = save(alone(SAME))

    with pytest.raises(UsageError, match="cell: first: there was none"):
        promote(folder, tmp_path / "b")
    done = only(promote(folder, tmp_path / "b", reason="the beginning"))

    assert (done.kind, done.side) == ("first", "head")
    assert done.file.relative_to(tmp_path / "b").as_posix() == f"{done.baseline.machine_class}/cell.json"
    assert read(done.file).baseline == done.baseline
    assert done.baseline.entries[0].reason == "the beginning"


@pytest.mark.parametrize("by", [0.0, 0.03, -0.2])
def test_the_same_build_is_free_wherever_it_lies(save: Save, tmp_path: Path, by: float) -> None:
    """A second visit of the same build accumulates, however far from the first: that distance is the spread."""
    visits(save, tmp_path / "b", [0.0])

    done = only(promote(save(alone(shifted(by), visits=(visit(2),))), tmp_path / "b"))

    assert (done.kind, len(done.baseline.visits)) == ("equivalent", 2)
    assert done.baseline.entries[1].reason == "the build that was promoted last, measured once more"


def test_the_same_build_that_is_blocked_widens_the_spread(save: Save, tmp_path: Path) -> None:
    """A visit that the others block is how far visits are apart: leaving it out would make every later one suspect."""
    visits(save, tmp_path / "b", FOUR)

    done = only(promote(save(alone(shifted(0.2), visits=(visit(9),))), tmp_path / "b"))

    assert (done.kind, len(done.baseline.visits)) == ("equivalent", 5)
    assert [said(gate) for gate in done.moved] == ["regressed"]


def test_a_machine_that_was_repaired_begins_anew(save: Save, tmp_path: Path) -> None:
    """Who says why may leave the visits before it behind, whatever the run is equivalent to."""
    visits(save, tmp_path / "b", FOUR)
    folder = save(alone(shifted(0.2), visits=(visit(9),)))

    with pytest.raises(UsageError, match="--anew needs a reason"):
        promote(folder, tmp_path / "b", claim="anew")
    done = only(promote(folder, tmp_path / "b", claim="anew", reason="another rack"))

    assert (done.kind, len(done.baseline.visits), len(done.baseline.entries)) == ("changed", 1, 5)


@pytest.mark.parametrize(
    ("by", "before", "kind"),
    [
        (0.0, 8, "equivalent"),
        (0.012, 8, "equivalent"),
        (0.045, 8, "changed"),
        (-0.1, 8, "changed"),
        (0.0, 7, "changed"),
        (0.0, 1, "changed"),
    ],
)
def test_another_build_must_be_equivalent(save: Save, tmp_path: Path, by: float, before: int, kind: str) -> None:
    """Another build is free where it passes every gate, of eight visits; faster is a change as slower is."""
    visits(save, tmp_path / "b", [*FOUR, *FOUR][:before])

    done = only(
        promote(save(of_build(alone(shifted(by), visits=(visit(19),)), **OTHER_BUILD)), tmp_path / "b", reason="new")
    )

    assert done.kind == kind


def test_somebody_may_vouch_for_it(save: Save, tmp_path: Path) -> None:
    """Who says why may call such a build the same, as long as nothing that can be told of it differs."""
    opaque: dict[Side, Subject] = {"head": HEAD.model_copy(update={"path": ("/plugin",)})}
    promote(save(alone(SAME, subjects=opaque)), tmp_path / "b", reason="first")
    again, later = (alone(shifted(by), subjects=opaque) for by in (0.001, 0.3))

    with pytest.raises(UsageError, match="it is another build, and not shown to be equivalent"):
        promote(save(again), tmp_path / "b")
    with pytest.raises(UsageError, match="--same-build needs a reason"):
        promote(save(again), tmp_path / "b", claim="same-build")
    vouched = only(promote(save(again), tmp_path / "b", claim="same-build", reason="the same wheel"))
    other = only(promote(save(of_build(later, **OTHER_BUILD)), tmp_path / "b", claim="same-build", reason="it is not"))

    assert (vouched.kind, len(vouched.baseline.visits)) == ("equivalent", 2)
    assert vouched.baseline.entries[1].reason == "the same wheel"
    assert other.kind == "changed"


@pytest.mark.parametrize(("commit", "free"), [("a" * 40, True), ("b" * 40, False)])
def test_a_build_from_a_ref_is_known_by_its_source(save: Save, tmp_path: Path, commit: str, *, free: bool) -> None:
    """What perfgate built is the same build where commit and recipe are, though it stands on the module path."""

    def built(by: float, made_from: str) -> Path:
        source = Source(ref="main", commit=made_from, changes="", recipe="c" * 64, folder="/cache/build")
        subject = HEAD.model_copy(update={"path": ("/cache/build/tree",), "built_from": source})
        return save(alone(shifted(by), subjects={"head": subject}))

    first = only(promote(built(0.0, "a" * 40), tmp_path / "b", reason="first"))
    second = only(promote(built(0.001, commit), tmp_path / "b", reason="again"))

    assert first.baseline.build.source == f"{'a' * 12} by {'c' * 12}"
    assert "/cache" not in first.baseline.text
    assert second.kind == ("equivalent" if free else "changed")


def test_a_pair_is_evidence(save: Save, tmp_path: Path) -> None:
    """A head that passed in pairs against the build that lies there is equivalent, whatever the day was like."""
    visits(save, tmp_path / "b", [0.3])
    paired = record(measured(), trials(spread(0.0, 0.001, 4)))
    head = tuple(one.model_copy(update=OTHER_BUILD if one.subject == "head" else {}) for one in paired.trials)

    done = only(promote(save(paired.model_copy(update={"trials": head})), tmp_path / "b"))

    assert (done.kind, done.side, done.why) == (
        "equivalent", "head", "it passed in pairs against the build that was promoted last",
    )  # fmt: skip
    assert done.baseline.build.versions == {"vllm": "2.0"}


def test_a_head_that_regressed_is_not_promoted_unasked(save: Save, tmp_path: Path) -> None:
    """Its base is; the head only where it is named, with a reason, though its packages look the same."""
    visits(save, tmp_path / "b", [0.0])
    folder = save(record(measured(), trials(spread(0.2, 0.001, 6))))

    with pytest.raises(UsageError, match="cell: changed"):
        promote(folder, tmp_path / "b", side="head")
    assert only(promote(folder, tmp_path / "b")).side == "base"
    with pytest.raises(UsageError, match="the run measured no head"):
        promote(save(alone(SAME, "base")), tmp_path / "b", side="head")


def test_another_cell_begins_anew(save: Save, tmp_path: Path) -> None:
    """A scenario that measures something else keeps its file and its lineage, and what changed is said."""
    visits(save, tmp_path / "b", FOUR)
    batch = measured().workload.model_copy(update={"batch": 4})
    other = measured().model_copy(update={"cell_id": "other", "workload": batch})

    with pytest.raises(UsageError, match=r"workload\.batch: 1 against 4"):
        promote(save(alone(shifted(0.001), of=other)), tmp_path / "b")
    done = only(promote(save(alone(shifted(0.001), of=other)), tmp_path / "b", reason="batch 4"))

    assert (done.kind, len(done.baseline.entries), len(done.baseline.visits)) == ("changed", 5, 1)


def test_another_machine_has_a_file_of_its_own(save: Save, tmp_path: Path) -> None:
    """Machines of two classes never share visits."""
    visits(save, tmp_path / "b", [0.0])
    promote(save(alone(SAME, visits=(visit(2, cpu="Other"),))), tmp_path / "b", reason="a second machine")

    assert len(files(tmp_path / "b")) == 2
    assert all(len(read(file).baseline.visits) == 1 for file in files(tmp_path / "b"))


@pytest.mark.parametrize(
    "kinds", [({"virtual": "none"}, {"virtual": "Amazon EC2"}), ({"usable_cores": 2}, {"usable_cores": 1})]
)
def test_two_kinds_of_runner_do_not_end_each_others_epochs(
    save: Save, tmp_path: Path, kinds: Sequence[dict[str, Any]]
) -> None:
    """Guests and bare metal, or runners of fewer cores, keep baselines of their own, however they take turns."""
    done = [
        only(promote(save(alone(SAME, visits=(visit(day, **kinds[day % 2]),))), tmp_path / "b", reason="more"))
        for day in range(1, 9)
    ]

    assert [one.kind for one in done] == ["first", "first", *["equivalent"] * 6]
    assert [len(one.baseline.visits) for one in done[-2:]] == [4, 4]


@pytest.mark.parametrize(("told", "kept"), [({}, 3), ({"virtual": "QEMU"}, 3), ({"virtual": "none"}, 1)])
def test_a_file_of_a_wider_class_is_gone_on_with(save: Save, tmp_path: Path, told: dict[str, Any], kept: int) -> None:
    """What an earlier version stored where its class did not tell guests apart stays in use, if it fits."""
    for day in (1, 2):
        stored = only(promote(save(alone(SAME, visits=(visit(day, **told),))), tmp_path / "b", reason="more"))
    file = as_an_earlier_version_has_it(stored, tmp_path / "b")

    done = only(promote(save(alone(SAME, visits=(visit(5, virtual="QEMU"),))), tmp_path / "b", reason="one more"))

    assert (len(done.baseline.visits), done.file == file) == (kept, kept > 1)


def test_a_guests_baseline_is_not_ended_by_bare_metal(save: Save, tmp_path: Path) -> None:
    """Where an earlier version keeps a guest in the file of its host's class, that file has to be moved first."""
    stored = only(promote(save(alone(SAME, visits=(visit(1, virtual="QEMU"),))), tmp_path / "b", reason="begin"))
    file = as_an_earlier_version_has_it(stored, tmp_path / "b")
    bare = save(alone(SAME, visits=(visit(5, virtual="none"),)))

    with pytest.raises(UsageError, match=r"holds the visits of other machines .*QEMU") as caught:
        promote(bare, tmp_path / "b", reason="one more")

    assert caught.value.remedy == f"Move it to where these belong, and promote again: git mv {file} {stored.file}"
    file.rename(stored.file)
    assert only(promote(bare, tmp_path / "b", reason="one more")).file == file


def test_a_record_counts_once(save: Save, tmp_path: Path) -> None:
    """The same record again would be a visit that never was; so would a visit of a run that was gone on with."""
    first = alone(SAME)
    promote(folder := save(first), tmp_path / "b", reason="one")
    more = tuple(trial(6 + n, 6 + n, "head", visit=1) for n in range(2))
    both = {"visits": (*first.visits, visit(2)), "trials": (*first.trials, *more)}

    with pytest.raises(RecordError, match="this record is already in it"):
        promote(folder, tmp_path / "b", reason="two")
    with pytest.raises(RecordError, match=r"the visit of 2026-01-01.* is already in it"):
        promote(save(first.model_copy(update=both)), tmp_path / "b", reason="two")


@pytest.mark.parametrize(
    ("side", "changes", "code"),
    [
        (alone(SAME), {"quick": True}, "quick-run"),
        (alone(SAME, stopped=Failure(code="gpu-busy", text="busy")), {}, "gpu-busy"),
        (alone(SAME[:3]), {}, "too-few-pairs"),
        (record(measured(), trials(spread(0.03, 0.03, 12))), {}, "undecided"),
    ],
    ids=["quick", "stopped", "unfinished", "inconclusive"],
)
def test_what_is_no_valid_record(save: Save, tmp_path: Path, side: Record, changes: dict[str, Any], code: str) -> None:
    """Only what was measured to its end and decided is promoted."""
    with pytest.raises(NotMeasuredError) as caught:
        promote(save(side, **changes), tmp_path / "b", reason="please")

    assert caught.value.code == code
    assert not (tmp_path / "b").exists()


def test_all_cells_or_none(save: Save, tmp_path: Path) -> None:
    """Where one cell needs a reason none is written; one can be named alone."""
    first = measured("first")
    promote(save(alone(SAME, of=first)), tmp_path / "b", reason="one")
    both = save(alone(shifted(0.001), of=first), alone(SAME, of=measured("second")))

    with pytest.raises(UsageError, match="second: first"):
        promote(both, tmp_path / "b")
    assert len(files(tmp_path / "b")) == 1
    with pytest.raises(UsageError, match="no cell third"):
        promote(both, tmp_path / "b", cells=["third"])
    assert only(promote(both, tmp_path / "b", cells=["first"])).kind == "equivalent"


def test_a_disk_that_is_full(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one file cannot be written the others are as they were, new ones gone: half a promotion is none."""
    cells = [measured(name) for name in ("first", "second", "third")]
    promote(save(alone(SAME, of=cells[0])), tmp_path / "b", reason="one")
    (kept,) = files(tmp_path / "b")
    before = kept.read_text()
    run_folder = save(*(alone(shifted(0.001), of=one) for one in cells))

    def full(file: Path, text: str) -> None:
        if file.stem == "third":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_atomically(file, text)

    monkeypatch.setattr("perfgate.baseline.store.write_atomically", full)
    with pytest.raises(RecordError, match=r"third\.json: cannot be written, .* No space left on device"):
        promote(run_folder, tmp_path / "b", reason="three")
    assert files(tmp_path / "b") == [kept]
    assert kept.read_text() == before

    monkeypatch.setattr("perfgate.baseline.store.write_atomically", write_atomically)
    assert len(promote(run_folder, tmp_path / "b", reason="three")) == 3


def test_cells_of_a_matrix_have_files_of_their_own() -> None:
    """Labels make readable names that differ even where only characters differ that a file cannot have."""
    cells = [measured().model_copy(update={"name": f"cell[{label}]"}) for label in ("batch=1", 'a="x y"', 'a="x/y"')]

    paths = [baseline_path(cell, "class").as_posix() for cell in cells]

    assert paths[0] == "class/cell/batch=1.json"
    assert len({*paths}) == 3
    assert all(one.startswith("class/cell/a=-x-y-") for one in paths[1:])


# --- in a repository


def git(folder: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, as a person with a name."""
    person = ["-c", "user.name=A Tester", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *person, *words]
    return subprocess.run(command, check=check, capture_output=True, text=True)


def perfgate(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What perfgate's command line does in a folder, for a person with a name and with no other variables."""
    person = {"GIT_AUTHOR_NAME": folder.name, "GIT_AUTHOR_EMAIL": "t@example.org", "PATH": "/usr/bin:/bin"}
    variables = {**person, "PERFGATE_STATE": str(folder.parent), "HOME": str(folder.parent), **environment}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, variables, clear=True):
        ended = CliRunner().invoke(main, words)
    return subprocess.CompletedProcess(words, ended.exit_code, ended.stdout, ended.stderr)


@pytest.fixture
def clones(tmp_path: Path, save: Save) -> tuple[Path, Path]:
    """Two clones of a bare remote that holds a baseline of one visit."""
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(remote))
    pair = tmp_path / "ann", tmp_path / "bob"
    git(tmp_path, "clone", "-q", str(remote), str(pair[0]))
    git(pair[0], "checkout", "-q", "-b", "main")
    done = perfgate(pair[0], "baseline", "promote", str(save(alone(SAME))), "--reason", "the first")
    assert done.returncode == 0, done.stderr
    push(pair[0])
    git(tmp_path, "clone", "-q", str(remote), str(pair[1]))
    return pair


def push(clone: Path) -> int:
    """Commit the baselines and push them; git's exit status."""
    git(clone, "add", "baselines")
    git(clone, "commit", "-q", "-m", "Promote a visit")
    return git(clone, "push", "-q", "origin", "HEAD:main", check=False).returncode


def test_two_promotions_at_once_lose_nothing(clones: tuple[Path, Path], save: Save) -> None:
    """The second push is refused, the merge conflicts with both entries readable, and promoting again keeps both."""
    ann, bob = clones
    theirs, mine = save(alone(shifted(0.001))), save(alone(shifted(0.002)))
    assert perfgate(ann, "baseline", "promote", str(theirs)).returncode == 0
    assert perfgate(bob, "baseline", "promote", str(mine)).returncode == 0
    assert push(ann) == 0
    assert push(bob) != 0

    assert git(bob, "pull", "-q", "--no-rebase", "origin", "main", check=False).returncode != 0
    (file,) = (bob / "baselines").glob("*/*.json")
    text = file.read_text()
    refused = perfgate(bob, "baseline", "verify")
    git(bob, "checkout", "-q", "--theirs", str(file))
    again = perfgate(bob, "baseline", "promote", str(mine))
    git(bob, "add", "baselines")
    git(bob, "commit", "-q", "-m", "Merge")

    assert all(f'"author": "{name} <t@example.org>"' in text for name in ("ann", "bob"))
    assert text.count("<<<<<<<") == text.count(">>>>>>>") <= 4
    assert refused.returncode == 2
    assert "two promotions were made at once" in refused.stderr
    assert again.returncode == 0, again.stderr
    assert git(bob, "push", "-q", "origin", "HEAD:main").returncode == 0
    git(ann, "pull", "-q", "origin", "main")
    (merged,) = (ann / "baselines").glob("*/*.json")
    assert [entry.author.split()[0] for entry in read(merged).baseline.entries] == ["ann", "ann", "bob"]
    assert len(read(merged).baseline.visits) == 3
    assert perfgate(ann, "baseline", "verify").returncode == 0


def test_verify_in_a_hook_of_a_linked_worktree(clones: tuple[Path, Path], tmp_path: Path) -> None:
    """The variables that git gives to hooks name a repository; which one is asked is the folder's own matter."""
    ann, bob = clones
    git(ann, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "linked")
    hook = {"GIT_DIR": str(ann / ".git" / "worktrees" / "linked"), "GIT_INDEX_FILE": str(bob / ".git" / "index")}

    told = [perfgate(tmp_path / "linked", "baseline", "verify", **more) for more in ({}, hook)]

    assert [(one.returncode, one.stderr) for one in told] == [(0, "")] * 2
    assert told[0].stdout == told[1].stdout


def test_a_lineage_written_anew_is_found(clones: tuple[Path, Path], save: Save) -> None:
    """A chain that is whole in itself but not what was committed is found, as is one cut short or taken away."""
    ann, _ = clones
    assert perfgate(ann, "baseline", "promote", str(save(alone(shifted(0.001))))).returncode == 0
    (file,) = (ann / "baselines").glob("*/*.json")
    assert perfgate(ann, "baseline", "verify").returncode == 0
    push(ann)
    entries = read(file).baseline.entries
    forged = entries[1].model_copy(update={"reason": "forged"}).sealed()

    found = []
    for forgery in (Baseline(entries=(entries[0], forged)), Baseline(entries=entries[:1])):
        file.write_text(forgery.text)
        found.append(perfgate(ann, "baseline", "verify"))
        git(ann, "commit", "-q", "-a", "-m", "Tamper")
        assert perfgate(ann, "baseline", "verify").returncode == 0
        found.append(perfgate(ann, "baseline", "verify", "--since", "origin/main"))
    file.unlink()
    gone = perfgate(ann, "baseline", "verify", "--since", "origin/main")

    shutil.rmtree(ann / "baselines")
    all_gone = perfgate(ann, "baseline", "verify"), perfgate(ann, "baseline", "verify", "--since", "origin/main")

    assert [one.returncode for one in (*found, gone, *all_gone)] == [2] * 7
    assert all("entry 2 (equivalent, " in one.stderr for one in found[:2] + found[3:])
    assert all(f"{file.relative_to(ann)}: was there at " in one.stderr for one in (gone, *all_gone))
    assert perfgate(ann, "baseline", "verify", "--since", "nowhere").returncode == 2


def made_up(folder: Path, changes: Callable[[Entry], dict[str, Any]]) -> Path:
    """A file whose only entry is changed and sealed again."""
    (entry,) = lineage([[0.0, 0.001]]).entries
    file = folder / "cell.json"
    file.write_text(Baseline(entries=(entry.model_copy(update=changes(entry)).sealed(),)).text)
    return file


BEGUN, made = "2026-01-01T00:00:00", BaselineVisit.model_construct


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"visits": ()}, "visits: "),
        ({"visits": (made(t0_utc=f"{BEGUN}Z", values={"itl_median": ()}),)}, "visits.0.values.itl_median: "),
        ({"visits": (made(t0_utc=BEGUN, values={"itl_median": (1.0,)}),)}, "visits.0.t0_utc: expected a time zone"),
        ({"cell": Measured.of(cell()).model_copy(update={"clocks": {}})}, "cell.clocks: expected a mode"),
    ],
    ids=["visits", "values", "time", "mode"],
)
def test_a_lineage_that_was_made_up_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Its digests fit, but perfgate writes no entry without visits, values or a clock mode."""
    file = made_up(tmp_path, lambda _: changes)

    for words in (["baseline", "show", str(file)], ["verify", str(file)]):
        ended = CliRunner().invoke(main, words)
        assert (ended.exit_code, said in ended.output) == (2, True), ended.output


@pytest.mark.parametrize("figure", [1e308, -1e308, 1e31, 1e-320])
@pytest.mark.parametrize("where", ["values", "anchor.values", "anchor.in_states"])
def test_a_figure_that_no_trial_has_is_refused(tmp_path: Path, figure: float, where: str) -> None:
    """Its ratio to others would be no number; whoever wrote it, the place is named."""
    told: dict[str, tuple[float, ...]] = {"itl_median": (figure,)}
    values, in_states = (told if where.endswith(name) else {} for name in ("r.values", "in_states"))

    def spoilt(entry: Entry) -> dict[str, Any]:
        (visit,) = entry.visits
        anchor = Anchored.model_construct(build=entry.build, values=values or visit.values, in_states=in_states)
        return {"visits": (visit.model_copy(update={"values": told} if where == "values" else {"anchor": anchor}),)}

    file = made_up(tmp_path, spoilt)

    for words in (["show", str(file)], ["diff", str(file), str(file)]):
        ended = CliRunner().invoke(main, ["baseline", *words])
        assert ended.exit_code == 2
        assert f"visits.0.{where}.itl_median.0: {figure:g} is beyond any figure of a trial" in ended.output


@given(figures=st.lists(st.floats(1e-30, 1e30) | st.just(0.0) | st.floats(-1e30, -1e-30), min_size=2, max_size=2))
def test_every_figure_that_is_read_is_shown(figures: list[float]) -> None:
    """However far apart the figures of a visit, its anchor's and the next visit's are."""
    first, second = lineage([[0.0], [0.1]]).entries
    anchored = []
    for entry, one, other in zip((first, second), figures, reversed(figures), strict=True):
        anchor = Anchored(build=first.build, values={"itl_median": (other,)})
        anchored.append(entry.visits[0].model_copy(update={"values": {"itl_median": (one,)}, "anchor": anchor}))
    begun = first.model_copy(update={"visits": (anchored[0],)}).sealed()
    follows = second.model_copy(update={"visits": (anchored[1],), "parent": begun.digest}).sealed()
    baseline = parse(Baseline(entries=(begun, follows)).text, "b.json")

    assert "itl_median" in to_text(baseline_document(baseline)) or min(figures) <= 0
    assert to_text(diff_document(parse(lineage([[0.0]]).text, "b.json"), baseline))


@pytest.mark.parametrize("name", ["of_a_newer_version", "itl_median[gemm]", "kernel_time_per_step"])
def test_a_metric_that_this_version_does_not_know_is_named(tmp_path: Path, name: str) -> None:
    """A newer version may have written it; the others are shown and compared as always."""

    def newer(entry: Entry) -> dict[str, Any]:
        (visit,) = entry.visits
        return {"visits": (visit.model_copy(update={"values": visit.values | {name: (1.0, 1.0)}}),)}

    file = str(made_up(tmp_path, newer))
    words = (["show", file], ["diff", file, file])
    shown, compared = (CliRunner().invoke(main, ["baseline", *own]) for own in words)

    assert (shown.exit_code, compared.exit_code) == (0, 0), shown.output + compared.output
    assert f"not known to this version: {name}\n" in shown.output
    assert "itl_median " in shown.output
    assert "itl_median " in compared.output


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "dubious ownership"),
        ({"PATH": "/nowhere"}, "git not found"),
    ],
    ids=["another owner", "no git"],
)
def test_a_repository_that_git_does_not_read(
    clones: tuple[Path, Path], save: Save, refusal: dict[str, str], words: str
) -> None:
    """Nothing is verified or promoted as if there were no repository, where there is one that cannot be asked."""
    ann, _ = clones
    (file,) = (ann / "baselines").glob("*/*.json")
    before = file.read_text()

    told = [
        perfgate(ann, "baseline", *command, **refusal)
        for command in (["verify"], ["diff", str(file)], ["promote", str(save(alone(shifted(0.001))))])
    ]

    assert [one.returncode for one in told] == [2] * 3
    assert all(words in one.stderr for one in told)
    assert file.read_text() == before


def test_commands(clones: tuple[Path, Path], save: Save) -> None:
    """List, show, log and diff say who promoted what and when, and how far metrics moved."""
    ann, _ = clones
    assert perfgate(ann, "baseline", "promote", str(save(alone(shifted(0.01), visits=(visit(2),))))).returncode == 0
    (file,) = (ann / "baselines").glob("*/*.json")

    listed, shown, log, diff = (
        perfgate(ann, "baseline", *words).stdout
        for words in (["list"], ["show", str(file)], ["log", str(file)], ["diff", str(file)])
    )

    assert "advises; passes after 6 more" in listed
    assert "build: vllm 1.0" in shown
    row = next(line for line in shown.splitlines() if line.startswith("  itl_median"))
    assert row.split()[3:6] == ["0.707", "%", "2"]
    assert log.index("entry 2: equivalent") < log.index("entry 1: first")
    assert git(ann, "rev-parse", "HEAD").stdout[:12] in log
    assert "1 promotion shared, 0 only in the first, 1 only in the second" in diff
    assert "+0.50 %" in diff


def test_outside_of_a_repository(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promotion needs no git: the user's name signs, and verifying looks at the lineage alone."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(main, ["baseline", *words])

    done = invoke("promote", str(save(alone(SAME))), "--reason", "one")

    assert done.exit_code == 0
    assert "1 visit, advises; passes after 7 more" in done.stdout
    assert read(files(tmp_path / "baselines")[0]).baseline.entries[0].commit == ""
    assert "1 promotions, whole" in invoke("verify").stdout
    assert invoke("list", "--baselines", "nowhere").stdout == "no baselines in nowhere\n"


def test_a_baseline_too_large_to_be_read_is_not_written(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it would be gone, and nothing could be judged against what took its place."""
    promote(save(alone(SAME)), tmp_path / "b", reason="one")
    (kept,) = files(tmp_path / "b")
    before = kept.read_text()
    monkeypatch.setattr("perfgate.baseline.store.BASELINE", Size(1, sum(map(before.count, ",[{")) + 1))

    with pytest.raises(RecordError, match=r"json: cannot be written, because it could not be read again: it holds"):
        promote(save(alone(shifted(0.001))), tmp_path / "b", reason="two")
    assert kept.read_text() == before

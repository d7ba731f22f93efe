"""What is said of folders of ``path=``: that nothing used them, that nobody knows, and of plugins that do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_hosts import host_calls
from hand_made import BASE, cell, codes, gate, judged, record, spread, trial, trials

from perfgate.calls.host_calls import FunctionCalls
from perfgate.judge.cell_verdict import compare_sides
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.path_use import FolderUse, ProcessUse
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Trial
from perfgate.models import Note
from perfgate.record.unused_folders import ends, folders_seen
from perfgate.scenario.plan import Plan
from perfgate.scenario.subject import Subject

USED, UNUSED = FolderUse(modules=2, plugins=("mine",)), FolderUse()
IDLE = USED.model_copy(update={"apart": True})
SILENT = ProcessUse(process="?", folders=None)


def process(*folders: FolderUse, state: str = "", name: str = "MainProcess") -> ProcessUse:
    """What a process says."""
    return ProcessUse(process=name, state=state, folders=folders)


def telling(taken: Sequence[Trial], side: Side, *used: ProcessUse) -> tuple[Trial, ...]:
    """The trials, of which those of one side say what their processes used."""
    return tuple(one.model_copy(update={"used": used}) if one.subject == side else one for one in taken)


def of(*folders: str, **more: Any) -> Subject:
    """The base's subject with folders."""
    return BASE.model_copy(update={"path": folders, **more})


PAIRS = trials(spread(0.0, 0.0002, 4))


def compared(head: Subject, *used: ProcessUse, base: Subject = BASE, said: Sequence[ProcessUse] = ()) -> CellOutcome:
    """Four pairs of two subjects, and what each trial of a side says."""
    taken = telling(telling(PAIRS, "head", *used), "base", *(said or [process(*[UNUSED] * len(base.path))]))
    return judged(taken, subjects={"base": base, "head": head}).cells[0]


def test_sides_that_differ_by_what_nothing_used() -> None:
    """The cell is not measured, its only reason names the folder, and no gate has a verdict."""
    found = compared(of("/plain", "/tree"), process(UNUSED, USED), base=of("/tree"), said=[process(USED)])

    text = "nothing else differs, and no process used anything of it: head by path=/plain (4 engines)"
    assert (found.verdict, found.reasons, found.cautions) == (
        "not-measured",
        (Note(code="path-unused", text=text),),
        (),
    )
    assert {one.verdict for one in found.gates} == {"not-measured"}
    assert found.next_look is None


def test_both_sides_have_a_folder_of_their_own() -> None:
    """What neither uses is no difference."""
    found = compared(of("/new"), process(UNUSED), base=of("/old"))

    assert found.verdict == "not-measured"
    assert "base by path=/old (4 engines), head by path=/new (4 engines)" in found.reasons[0].text


@pytest.mark.parametrize(
    ("head", "used", "caution"),
    [
        (of("/plain"), [process(USED)], []),
        (of("/plain"), [process(UNUSED), process(USED, name="EngineCore")], []),
        (of("/plain", data=("/plain",)), [process(UNUSED)], []),
        (of("/plain", env={"A": "1"}), [process(UNUSED)], ["path-unused"]),
        (of("/plain", args={"a": 1}), [process(UNUSED)], ["path-unused"]),
        (of("/plain", "/more"), [process(UNUSED, USED)], ["path-unused"]),
        (of("/plain"), [process(UNUSED), SILENT], ["load-unproven"]),
        (of("/plain"), [SILENT], ["load-unproven"]),
        (of("/plain"), [], ["load-unproven"]),
        (of("/plain", "/more"), [process(UNUSED)], ["load-unproven", "load-unproven"]),
    ],
    ids=["used", "by one process", "data", "env", "args", "another", "one silent", "silent", "unasked", "too few"],
)
def test_sides_that_differ_in_more(head: Subject, used: Sequence[ProcessUse], caution: Sequence[str]) -> None:
    """The cell is measured, and what is known of each folder is a caution."""
    found = compared(head, *used)

    assert (found.verdict, codes(found.cautions)) == ("pass", caution)


def test_what_both_sides_have() -> None:
    """A folder that both have and nobody tells of makes no difference, and is not spoken of."""
    both = of("/tree", env={"A": "1"})
    assert compared(both, SILENT, base=of("/tree"), said=[SILENT]).cautions == ()


def test_records_that_keep_less() -> None:
    """Of trials that were not asked nothing is said, and what an older version found unused stays a caution."""
    subjects = {"base": BASE, "head": of("/plain")}
    assert judged(PAIRS, subjects=subjects).cells[0].cautions == ()

    old = [one.model_copy(update={"cautions": ("path-unused",)}) if one.subject == "head" else one for one in PAIRS]
    found = judged(old, subjects=subjects).cells[0]
    text = "head: nothing of path=/plain was imported (4 engines)"
    assert (found.verdict, found.cautions) == ("pass", (Note(code="path-unused", text=text),))
    partly = judged([*old[:-1], PAIRS[-1]], subjects=subjects).cells[0]
    assert partly.cautions == ()


def test_some_engines_do_not_tell() -> None:
    """It is said of how many engines nobody knows; a failed trial is not asked."""
    head = of("/plain")
    taken = [*telling(PAIRS, "head", process(UNUSED))]
    taken[-1] = taken[-1].model_copy(update={"used": (SILENT,)})
    failure = Failure(code="engine-failed", text="died")
    failed = taken[1].model_copy(update={"failure": failure, "used": (process(USED),)})
    whole = record(cell(), [*taken, failed], subjects={"base": BASE, "head": head})

    (seen,) = folders_seen(whole, "head")
    assert (seen.state, seen.engines_seen) == ("unused", "3 engines, and of 1 it is not known")


def test_a_record_ends_with_the_first_trial_of_each_side() -> None:
    """Once both sides have told, no further trial is taken of a head whose folder nothing used; of others it is."""
    taken = telling(
        telling([trial(0, None, "base"), trial(1, None, "head")], "head", process(UNUSED)), "base", process()
    )
    both = {"base": BASE, "head": of("/plain")}

    assert ends(record(cell(), taken[:1], subjects=both)) == {}
    assert [why.code for why in ends(record(cell(), taken, subjects=both)).values()] == ["path-unused"]
    assert ends(record(cell(), taken, subjects={"base": BASE, "head": BASE})) == {}
    named = [one.model_copy(update={"heads": ("one",) if one.subject == "head" else ("one", "two")}) for one in taken]
    several = {"subjects": {"base": BASE}, "heads": {"one": of("/plain"), "two": of("/other")}}
    assert [*ends(record(cell(), named, **several))] == ["one"]


def test_records_measured_apart() -> None:
    """Two records of one side each are held against each other by the same rule."""
    measured = cell(gates=[gate("itl_median", "1%", "5%")])
    alone = [one for one in telling(PAIRS, "head", process(UNUSED)) if one.subject == "head"]
    mine = record(measured, alone, subjects={"head": of("/plain")})
    theirs = record(measured, [one for one in PAIRS if one.subject == "base"], subjects={"base": BASE})

    found = compare_sides(RecordSide(theirs, "base"), RecordSide(mine, "head"), Plan(cells=(measured,), seed=0))
    assert (found.verdict, codes(found.reasons)) == ("not-measured", ["path-unused"])


STATED = process(IDLE, state="0a")


@pytest.mark.parametrize(
    ("head", "base", "told"),
    [
        (STATED, process(state="0a"), True),
        (process(USED, state="0a"), process(state="0a"), False),
        (process(IDLE.model_copy(update={"libraries": 1}), state="0a"), process(state="0a"), False),
        (STATED, process(state="0b"), False),
        (process(IDLE), process(), False),
        (STATED, SILENT, False),
    ],
    ids=["idle", "known elsewhere", "a library", "vLLM differs", "state unknown", "base unknown"],
)
def test_a_plugin_that_does_nothing(head: ProcessUse, base: ProcessUse, told: bool) -> None:  # noqa: FBT001 (a case)
    """It is said where nothing refers to it and vLLM is as it was; whatever leaves doubt says nothing."""
    found = compared(of("/plain"), head, said=[base])

    assert found.verdict == "pass"
    assert codes(found.cautions) == ["load-unproven"] * told
    if told:
        assert found.cautions[0].text.startswith("the head loads plugin mine (2 modules); nothing but its own modules")


def test_a_plugin_beside_host_calls() -> None:
    """Where calls were counted it says that no function differs, and nothing where some does."""

    def counted(head: FunctionCalls) -> CellOutcome:
        same = FunctionCalls(calls=(1, 1), lines=(1, 1))
        called = [trial(8, 0, "base", kind="called", calls=host_calls(step=same)),
                  trial(9, 0, "head", kind="called", calls=host_calls(step=head))]  # fmt: skip
        taken = telling(telling([*PAIRS, *called], "head", STATED), "base", process(state="0a"))
        return judged(taken, subjects={"base": BASE, "head": of("/plain")}).cells[0]

    alike, unlike = (counted(FunctionCalls(calls=(n, n), lines=(1, 1))) for n in (1, 2))
    assert alike.cautions[0].text == "the head loads plugin mine (2 modules); no function that runs in a step differs"
    assert "load-unproven" not in codes(unlike.cautions)

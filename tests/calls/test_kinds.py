"""Kinds of trials come from the tables of rooms; what needs a kind whose room is gone is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hand_made import cell, record, trial

from perfgate import rooms
from perfgate.errors import UsageError
from perfgate.metrics.kinds import TRIAL_KINDS, of_kinds, parts_of_kinds
from perfgate.metrics.trial import CLOCKED, KINDS, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.declaration import Scenario
from perfgate.scenario.plan import Cell
from perfgate.scenario.schedule import CallTrials, Sampling
from perfgate.scenario.taken_cells import as_taken


@pytest.fixture
def without_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation from which ``perfgate/calls`` was deleted."""
    for name in ("called", "sampled"):
        monkeypatch.delitem(TRIAL_KINDS, name)


def test_every_place_that_a_kind_names_is_there() -> None:
    """What takes, keeps, judges and shows each kind can be imported."""
    assert KINDS == ("timed", "traced", "counted", "called", "sampled")
    assert CLOCKED == ("timed", "traced")
    assert {*of_kinds("instrument")} == {*KINDS}
    for attribute in ("checks", "alone", "alike", "unusable", "cautions", "priced"):
        assert all(map(callable, of_kinds(attribute).values()))
    for place in ("before_notes", "after_notes", "evidence", "end"):
        assert all(map(callable, [*parts_of_kinds("sections", place), *parts_of_kinds("page", place)]))
    for place in ("longer", "slower", "causes", "else", "grown"):
        assert all(map(callable, parts_of_kinds("told", place)))
    for kind in TRIAL_KINDS.values():
        for name, entry in kind.outcome.items():
            assert "model" in entry, name
            assert all(map(callable, map(rooms.bring, entry.values())))


def test_every_kind_of_a_removable_room_is_listed() -> None:
    """An error about a kind, or a metric, of a room that was removed can name the room."""
    for kind in ("kinds", "metrics"):
        optional = {
            name for room, table in rooms.tables().items() if room in rooms.SHIPPED for name in table.get(kind, {})
        }
        assert all(rooms.home(kind, name) for name in optional)


def test_a_record_of_a_kind_that_is_gone_is_refused(request: pytest.FixtureRequest) -> None:
    """It is never judged without what those trials say."""
    kept = record(cell(), [trial(0, 0, "base"), trial(1, 0, "head")]).model_dump()
    kept["trials"][1]["kind"] = "called"
    request.getfixturevalue("without_calls")

    with pytest.raises(UsageError, match="called trials: the room 'calls' is not here"):
        Record.model_validate(kept)


@pytest.mark.usefixtures("without_calls")
@pytest.mark.parametrize("declared", [{"calls": CallTrials()}, {"sampled": Sampling()}, {"calls": {}}])
def test_a_cell_that_declares_a_kind_that_is_gone_is_refused(declared: dict[str, Any]) -> None:
    """Also before the first such trial was taken."""
    with pytest.raises(UsageError, match="the room 'calls'"):
        Cell.model_validate(dict(cell()) | declared)


@pytest.mark.usefixtures("without_calls")
@pytest.mark.parametrize("asked", ["exact_only", "host_profile"])
def test_a_run_that_needs_a_kind_that_is_gone_is_refused(asked: str) -> None:
    """Nothing is started."""
    with pytest.raises(UsageError, match="the room 'calls'"):
        as_taken([cell()], **{"kernels_only": False, "exact_only": False, "host_profile": False, asked: True})


def test_a_field_of_a_kind_keeps_its_place_in_files() -> None:
    """Keys of a record are sorted, those of an outcome are not; an older reader finds them where they were."""
    names = [*Trial.model_fields]
    assert names[names.index("no_floor") :][:5] == ["no_floor", "ranks", "calls", "host", "memory"]


def test_a_gate_on_a_kind_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario names the room, whether or not it has the block that such a gate needs."""
    monkeypatch.delitem(TRIAL_KINDS, "counted")
    gate = {"metric": "dram_bytes", "role": "gemm", "ignorable": "1%", "must_catch": "3%"}
    declared = {
        "schema": 1,
        "name": "tiny",
        "engine": {"model": {"config": "model"}},
        "workload": {"batch": 2, "input_tokens": 4, "output_tokens": 8},
        "gates": [gate],
    }

    with pytest.raises(UsageError, match="counted trials: the room 'kernels' is not here"):
        Scenario.model_validate(declared)


def test_a_room_that_needs_a_removed_room_through_another_names_the_removed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be put back is what is not there, not what stands on it."""
    for name, needs in (("verify", '["baseline"]'), ("baseline", '["calls", "project"]'), ("project", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / rooms.TABLE).write_text(f"needs = {needs}\n")
    monkeypatch.setattr(rooms, "FOLDER", tmp_path)

    told = str(rooms.missing("verify", "commands verify"))

    assert "commands verify: the room 'calls' is not here" in told
    assert "put perfgate/calls back" in told


@pytest.mark.parametrize("content", [b"needs = [", b"\xff\xfe"])
def test_a_table_that_cannot_be_read_is_named(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its room is neither left out nor a traceback."""
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / rooms.TABLE).write_bytes(content)
    monkeypatch.setattr(rooms, "FOLDER", tmp_path)

    with pytest.raises(UsageError, match="the room calls is broken"):
        rooms.tables.__wrapped__()

"""Checks of a profile recorded on H200s: the same build on two cards passes, and four plants are blocked by name."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from perfgate.baseline.exact_profile import Profile
from perfgate.baseline.profile_comparison import judge_profiles
from perfgate.judge.outcome import CellOutcome
from perfgate.machine.versioned_json import validated
from perfgate.record.run_record import Record, Run

FIXTURE = Path(__file__).parents[1] / "fixtures" / "h200-exact.json.xz"


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """A profile, the manifest of a check, and the record of each."""
    content: dict[str, Any] = json.loads(lzma.decompress(FIXTURE.read_bytes()))
    return content


def checked(kept: dict[str, Any], name: str) -> CellOutcome:
    """One of the checks, judged."""
    record = validated(Record, kept["records"][name], name)
    profile = validated(Profile, kept["profile"], "profile")
    cell_id = record.cell.cell_id
    (cell,) = judge_profiles(validated(Run, kept["run"], "run"), {cell_id: record}, {cell_id: [profile]}).cells
    return cell


@pytest.mark.parametrize("name", ["same", "another-card"])
def test_the_build_itself_passes(kept: dict[str, Any], name: str) -> None:
    """What asynchronous scheduling varies is 0.3 % of all events and is named; memory, kernels and counters agree."""
    cell = checked(kept, name)

    assert (cell.verdict, cell.reasons) == ("pass", ())
    cautions = {note.code: note.text for note in cell.cautions}
    assert cautions.keys() - {"engine-state-changed"} == {"counts-vary"}  # the other host had more packages installed
    assert cautions["counts-vary"].startswith("0.302 % of all events vary: prometheus_client.metrics.Histogram.observe")


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("extra-kernel", [("work-added", "one more elementwise kernel a layer (32)")]),
        ("padded-rows", [("counter-differs", "gemm lm-head: bf16_operations")]),
        ("host-work", [("work-added", "after_work waits for a time, which no count prices")]),
        ("host-copy", [("work-added", "after_copy"), ("work-added", "a pageable host copy (h2d) in each step")]),
    ],
)
def test_a_plant_is_blocked_by_what_it_is(kept: dict[str, Any], name: str, causes: list[tuple[str, str]]) -> None:
    """One trial of each kind is enough, and the reason says which kernel, counter, function or copy it is."""
    cell = checked(kept, name)

    assert cell.verdict == "regressed"
    said = sorted((note.code, note.text) for note in cell.reasons)
    assert [code for code, _ in said] == [code for code, _ in causes]
    for code, words in causes:
        assert any(words in text for own, text in said if own == code)

"""A head that keeps memory of each iteration is told; chance, and what both builds do, are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hand_made import cell, gate, judged, only, trials

from perfgate.judge.memory_growth import growth_cautions
from perfgate.metrics.memory import Memory
from perfgate.metrics.trial import Trial

MIB = 2**20
FLAT, KEPT = (0, 2, 0, 1, 0, 2), (0, 1, 2, 3, 4, 5)
"""Mebibytes above those of the first iteration."""


def memory(above: Sequence[int], allocated: Sequence[int] = ()) -> Memory:
    """An engine of a gibibyte."""
    sizes, device = (tuple(1024 * MIB + mib * MIB for mib in row) for row in (above, allocated))
    return Memory(
        resident=sizes, peak_resident=max(sizes), allocated=device, peak_allocated=device, peak_reserved=device
    )


def taken(base: Sequence[int], head: Sequence[int]) -> list[Trial]:
    """Eight pairs of equal speed, in which the sides hold so much."""
    held = {"base": memory(base), "head": memory(head)}
    return [one.model_copy(update={"memory": held[one.subject]}) for one in trials([0.0] * 8)]


def test_a_head_that_keeps_something_is_told() -> None:
    """With how much of it an iteration, how often, and the same of the base; the step's gate passes all the same."""
    outcome = judged(taken(FLAT, KEPT))

    (note,) = (note for note in outcome.cells[0].cautions if note.code == "memory-grows")
    assert note.text == (
        "host memory: head 1.000 MiB an iteration, higher than ever in 40 of 40, "
        "base 409.6 KiB an iteration, higher than ever in 8 of 40"
    )
    assert outcome.verdict == "pass"


def test_what_both_builds_do_is_no_change() -> None:
    """Neither builds that both keep something, nor ones that do not; one trial a side has no spread."""
    assert not [*growth_cautions({"base": [memory(FLAT)], "head": [memory(KEPT)]})]
    for base, head in ((KEPT, KEPT), (FLAT, FLAT), (KEPT, FLAT)):
        assert "memory-grows" not in [note.code for note in judged(taken(base, head)).cells[0].cautions]


def test_a_base_that_grows_by_a_page_hides_no_leak() -> None:
    """A base whose every reading is a new high by a little, beside a head that keeps a thousand times as much."""
    pages = [(0, 1, 2, 3, 5, 6), (0, 2, 3, 4, 5, 7)] * 2
    base, head = ([memory([rise * factor for rise in row]) for row in pages] for factor in (1, 1000))

    assert [note.code for note in growth_cautions({"base": base, "head": head})] == ["memory-grows"]


@pytest.mark.slow
def test_builds_that_grow_alike_are_not_told() -> None:
    """Where both grow in every iteration by chance amounts, in at most 1 % of 2,000 cells of four pairs."""
    rng = np.random.default_rng(4)

    def side() -> list[Memory]:
        return [memory(row.tolist()) for row in np.cumsum(rng.integers(1, 9, (4, 20)), axis=1)]

    told = sum(bool([*growth_cautions({"base": side(), "head": side()})]) for _ in range(2000))
    assert told <= 20


def test_gpu_and_host_are_told_apart() -> None:
    """Each kind of memory has a test of its own; without both sides there is none."""
    base, head = memory(FLAT, FLAT), memory(FLAT, KEPT)

    (note,) = growth_cautions({"base": [base] * 2, "head": [head] * 2})
    assert note.text.startswith("GPU memory: head 1.000 MiB an iteration")
    assert not [*growth_cautions({"head": [head]})]
    assert not [*growth_cautions({"base": [], "head": [head]})]


def test_growth_is_gated_like_any_metric() -> None:
    """Half a percent kept over six iterations is a regression where a tenth is ignorable."""
    gated = cell(gates=[gate("host_memory_growth", "0.1%", "0.4%")])

    assert only(judged(taken((0,) * 6, KEPT), gated)).verdict == "regressed"
    assert only(judged(taken((0,) * 6, (0,) * 6), gated)).verdict == "pass"

"""What a step launches, judged by its price: kernels, launch shapes, pageable copies and waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decode_steps import LAYERS, USUAL, eager, extra_kernel, other_attention, trial
from hand_made import codes

from perfgate.judge.launch_checks import judge_launches
from perfgate.judge.outcome import Finding
from perfgate.trace.decode_step import DecodeSteps

TEN_US = 10e-6
"""What the tests ignore; each kernel of the made-up step takes 1 us."""


def held(base: DecodeSteps, head: DecodeSteps, ignorable_s: float = TEN_US) -> Finding:
    """What is found where one trial a side was traced."""
    return judge_launches(ignorable_s, {"base": [base], "head": [head]})


def shaped(lm_head: str, ns: int = 1000, steps: DecodeSteps | None = None) -> DecodeSteps:
    """Steps whose kernels have one shape, and whose last gemm has another one and takes another time."""
    own = steps or trial(USUAL)
    last = next(n for n, key in enumerate(own.keys) if key.place == "lm-head")
    return own.model_copy(
        update={
            "key_shapes": tuple(
                {lm_head if n == last else "132x1x1/256x1x1": launches} for n, launches in enumerate(own.key_launches)
            ),
            "key_ns": tuple(
                ns * launches if n == last else spent
                for n, (launches, spent) in enumerate(zip(own.key_launches, own.key_ns, strict=True))
            ),
        }
    )


def test_equal_steps_pass_without_a_word() -> None:
    """Steps of one build launch the same, however their times differ."""
    slower = trial(USUAL).model_copy(update={"key_ns": tuple(2 * ns for ns in trial(USUAL).key_ns)})

    assert held(trial(USUAL), slower) == Finding("pass")


def test_more_kernels_are_blocked_at_their_price() -> None:
    """A kernel more in each layer costs what the head's trace says that it takes."""
    found = held(trial(USUAL), trial(extra_kernel(USUAL)))

    (reason,) = found.reasons
    assert (found.verdict, reason.code) == ("regressed", "launches-added")
    assert reason.text.startswith(f"+{LAYERS}.00 us a step by the traced time of its kernels: one more ")
    assert "(more than the 10.00 us that are ignorable)" in reason.text


def test_what_costs_less_than_is_ignorable_is_told() -> None:
    """The same change within the margin is a caution, with the diff."""
    found = held(trial(USUAL), trial(extra_kernel(USUAL)), ignorable_s=50e-6)

    assert (found.verdict, codes(found.cautions)) == ("pass", ["launches-changed"])
    assert "(within the 50.00 us that are ignorable)" in found.cautions[0].text


def test_kernels_that_replace_others_cost_the_difference() -> None:
    """Another backend with kernels that take as long costs nothing."""
    found = held(trial(USUAL), trial(other_attention(USUAL)))

    assert (found.verdict, codes(found.cautions)) == ("pass", ["launches-changed"])
    assert found.cautions[0].text.startswith("+0.00 us a step")


def test_fewer_kernels_pass() -> None:
    """What is gone costs nothing."""
    assert held(trial(extra_kernel(USUAL)), trial(USUAL)).verdict == "pass"


@pytest.mark.parametrize(("ns", "verdict"), [(30_000, "regressed"), (2_000, "pass")])
def test_other_launch_shapes_are_seen(ns: int, verdict: str) -> None:
    """The same kernels on more rows show in nothing but their grids; the price is what these launches take more."""
    found = held(shaped("250x1x1/384x1x1"), shaped("256x1x1/384x1x1", ns))

    (note,) = (*found.reasons, *found.cautions)
    assert found.verdict == verdict
    assert (
        f"+{ns / 1000 - 1:.2f} us a step by the traced time of its kernels: other launch shapes of gemm lm-head"
        in note.text
    )
    assert "~ gemm lm-head nvjet_sm90_256x8: 250x1x1/384x1x1 -> 256x1x1/384x1x1" in note.text


def test_a_grid_that_follows_the_context_is_no_change() -> None:
    """Shapes that do not repeat in every step differ only where the builds have none in common."""
    steps, turned = trial(USUAL), list(shaped("1x1x1/32x1x1").key_shapes)
    last = next(n for n, key in enumerate(steps.keys) if key.place == "lm-head")

    def with_last(shapes: dict[str, int]) -> DecodeSteps:
        return steps.model_copy(update={"key_shapes": tuple(shapes if n == last else s for n, s in enumerate(turned))})

    base, overlapping, other = (
        with_last({"8x1x1": 97, "9x1x1": 3}),
        with_last({"8x1x1": 90, "9x1x1": 10}),
        {"7x1x1": 100},
    )
    assert held(base, overlapping) == Finding("pass")
    assert codes(held(base, with_last(other)).cautions) == ["launches-changed"]


def test_a_pageable_copy_blocks_whatever_it_costs() -> None:
    """It makes the host wait, which no kernel's time shows."""
    found = held(trial(USUAL), trial(replace(USUAL, copies={**USUAL.copies, "d2h-pageable": 1})))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["launches-added"])
    assert "a pageable host copy (d2h) in each step (and pageable copies make the host wait)" in found.reasons[0].text


@pytest.mark.parametrize(("waits", "verdict"), [(200, "regressed"), (150, "pass")])
def test_a_wait_in_each_step_blocks(waits: int, verdict: str) -> None:
    """How often a step waits may vary; one more in each of them does not come by chance."""
    base, head = (trial(USUAL).model_copy(update={"waits": count}) for count in (100, waits))

    found = held(base, head)

    assert found.verdict == verdict
    assert [reason.text.partition(": ")[2] for reason in found.reasons] == [
        "the host waits for the device 1 times more in a step (and a wait is in each step, which no price says)"
    ] * (verdict == "regressed")


def test_kernels_that_leave_the_graph_are_told() -> None:
    """They cost the host, which its calls say."""
    found = held(trial(USUAL), trial(eager(USUAL)))

    assert (found.verdict, codes(found.cautions)) == ("pass", ["launches-changed"])
    assert "no kernel comes from a CUDA graph any more" in found.cautions[0].text


def test_without_a_traced_side_nothing_is_judged() -> None:
    """Steps of one side alone have nothing to be held against."""
    assert judge_launches(TEN_US, {"head": [trial(USUAL)]}) == Finding()
    assert judge_launches(TEN_US, {"base": [], "head": [trial(USUAL)]}) == Finding()

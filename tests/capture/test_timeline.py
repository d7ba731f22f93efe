"""Reading deliveries: hand-made timelines, then properties of invented ones."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.capture.timeline import InvalidTrialError, read_iteration
from perfgate.scenario.workload import Workload

DIGEST = "a" * 64


def workload(batch: int, output_tokens: int) -> Workload:
    """A workload of that shape."""
    return Workload(batch=batch, input_tokens=4, output_tokens=output_tokens)


def answer(deliveries: list[Any], submitted: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    """What a worker answers for two requests."""
    submitted = [100, 110] if submitted is None else submitted
    return {
        "submitted_ns": submitted,
        "deliveries": deliveries,
        "tokens_digest": DIGEST,
        "finish_reasons": ["length"] * len(submitted),
        "preemptions": 0,
        **changes,
    }


PLAIN = [[200, [0, 0]], [1000, [1, 1]], [1100, [1, 1]], [1205, [1, 1]], [1300, [1, 1]]]


def test_plain_decode() -> None:
    """One token a request and step: the gap after the first delivery touches prefill, the others are steps."""
    iteration = read_iteration(answer(PLAIN), workload(2, 4))
    assert iteration.ttft_ns == (900, 890)
    assert iteration.e2e_ns == (1200, 1190)
    assert iteration.itl_ns == (105, 95)
    assert iteration.elapsed_ns == 1200
    assert iteration.output_tokens == 4
    assert iteration.tokens_digest == DIGEST
    assert not iteration.multi_token


def test_empty_return_inside() -> None:
    """An empty return between two deliveries does not split their gap."""
    with_empty = [*PLAIN[:3], [1150, [0, 0]], *PLAIN[3:]]
    assert read_iteration(answer(with_empty), workload(2, 4)).itl_ns == (105, 95)


def test_staggered_prefill() -> None:
    """While a request waits for its first token, and at that token, no gap is a decode step."""
    rows = [
        [1000, [1, 0]],
        [1010, [1, 0]],
        [1030, [1, 1]],
        [1060, [1, 1]],
        [1100, [1, 1]],
        [1150, [0, 1]],
        [1210, [0, 1]],
    ]
    iteration = read_iteration(answer(rows), workload(2, 5))
    assert iteration.itl_ns == (40,)
    assert iteration.ttft_ns == (900, 920)
    assert iteration.e2e_ns == (1000, 1100)


def test_partial_delivery_breaks_the_chain() -> None:
    """A delivery that leaves a request out is the end of no step, and no gap reaches over it."""
    rows = [[1000, [1, 1]], [1100, [1, 1]], [1200, [1, 0]], [1300, [0, 1]], [1400, [1, 1]], [1500, [1, 1]]]
    assert read_iteration(answer(rows), workload(2, 5)).itl_ns == (100,)


def test_several_tokens_a_delivery() -> None:
    """A gap is divided by the mean tokens a request got in it, rounded to a nanosecond."""
    rows = [[1000, [1, 1]], [1100, [1, 1]], [1400, [2, 1]], [1600, [1, 2]]]
    iteration = read_iteration(answer(rows), workload(2, 5))
    assert iteration.itl_ns == (200, 133)
    assert iteration.multi_token
    assert iteration.step_ns == 250
    assert read_iteration(answer(PLAIN), workload(2, 4)).step_ns is None


def test_the_step_behind_several_tokens_is_whole() -> None:
    """Steps that are equally long have that length, however many tokens each one brings."""
    tokens = [1, 1, 3, 1, 4, 4, 1]
    rows = [[1000 + 100 * step, [count]] for step, count in enumerate(tokens)]
    iteration = read_iteration(answer(rows, [100]), workload(1, sum(tokens)))
    assert iteration.itl_ns == (33, 100, 25, 25, 100)
    assert iteration.step_ns == 100
    late = [*rows[:-1], [9000, [1]]]
    assert read_iteration(answer(late, [100]), workload(1, sum(tokens))).step_ns == 100


@pytest.mark.parametrize(("tokens", "expected"), [(1, ()), (2, ()), (3, (105,))])
def test_short_outputs(tokens: int, expected: tuple[int, ...]) -> None:
    """Below three output tokens there is no pure decode step."""
    assert expected == read_iteration(answer(PLAIN[: tokens + 1]), workload(2, tokens)).itl_ns


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("engine-failed", {"submitted_ns": [100]}),
        ("engine-failed", {"submitted_ns": None}),
        ("engine-failed", {"submitted_ns": [110, 100]}),
        ("engine-failed", {"submitted_ns": [100, 110.0]}),
        ("engine-failed", {"submitted_ns": [False, True]}),
        ("engine-failed", {"deliveries": {}}),
        ("engine-failed", {"deliveries": [[1000, [1]]]}),
        ("engine-failed", {"deliveries": [[1000, [1, 1], 0]]}),
        ("engine-failed", {"deliveries": [[1000.0, [1, 1]]]}),
        ("engine-failed", {"deliveries": [[True, [1, 1]]]}),
        ("engine-failed", {"deliveries": [[1000, [1, -1]]]}),
        ("engine-failed", {"deliveries": [[1000, [1, True]]]}),
        ("engine-failed", {"deliveries": [[110, [1, 1]], *PLAIN[2:]]}),
        ("engine-failed", {"deliveries": [*PLAIN[:3], [1100, [1, 1]], PLAIN[4]]}),
        ("engine-failed", {"tokens_digest": "A" * 64}),
        ("engine-failed", {"tokens_digest": None}),
        ("engine-failed", {"finish_reasons": ["length"]}),
        ("engine-failed", {"preemptions": "0"}),
        ("request-failed", {"finish_reasons": ["length", "abort"]}),
        ("request-failed", {"finish_reasons": ["length", None]}),
        ("request-failed", {"deliveries": PLAIN[:-1]}),
        ("request-failed", {"deliveries": []}),
        ("request-failed", {"deliveries": [*PLAIN, [1400, [0, 1]]]}),
        ("preempted", {"preemptions": 1}),
    ],
)
def test_refusals(code: str, changes: dict[str, Any]) -> None:
    """Whatever is not a complete, undisturbed iteration is refused with its own reason."""
    with pytest.raises(InvalidTrialError) as caught:
        read_iteration(answer(PLAIN) | changes, workload(2, 4))
    assert code == caught.value.code


def test_unknown_preemptions() -> None:
    """An engine that does not tell preemptions can still be measured."""
    assert read_iteration(answer(PLAIN, preemptions=None), workload(2, 4)).itl_ns == (105, 95)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[dict[str, Any], Workload]:
    """A batch whose requests all get their tokens, in deliveries of any make-up."""
    batch, output_tokens = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    left = [output_tokens] * batch
    rows: list[list[int]] = []
    while any(left):
        row = [min(count, draw(st.integers(0, 3))) for count in left]
        if not any(row) and len(rows) > 60:
            row = list(left)
        left = [count - got for count, got in zip(left, row, strict=True)]
        rows.append(row)
    gaps = draw(st.lists(st.integers(1, 10**9), min_size=batch + len(rows), max_size=batch + len(rows)))
    stamps = list(accumulate(gaps))
    deliveries = [[t, row] for t, row in zip(stamps[batch:], rows, strict=True)]
    return answer(deliveries, stamps[:batch]), workload(batch, output_tokens)


@given(timelines())
def test_any_complete_timeline_reads(case: tuple[dict[str, Any], Workload]) -> None:
    """Every complete timeline reads, with positive times that fit each other."""
    found, shape = case
    iteration = read_iteration(found, shape)
    assert shape.batch == len(iteration.ttft_ns) == len(iteration.e2e_ns)
    assert all(
        0 < first <= last <= iteration.elapsed_ns
        for first, last in zip(iteration.ttft_ns, iteration.e2e_ns, strict=True)
    )
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(found["deliveries"])]
    assert sum(iteration.itl_ns) <= sum(gaps) + len(gaps)
    assert any(count > 1 for _, row in found["deliveries"] for count in row) == iteration.multi_token


@given(timelines(), st.integers(0, 10**15))
def test_origin_of_the_clock_is_immaterial(case: tuple[dict[str, Any], Workload], shift: int) -> None:
    """Moving all stamps by the same amount moves the beginning by as much and changes nothing else."""
    found, shape = case
    moved = {
        **found,
        "submitted_ns": [t + shift for t in found["submitted_ns"]],
        "deliveries": [[t + shift, row] for t, row in found["deliveries"]],
    }
    before = read_iteration(found, shape)
    assert read_iteration(moved, shape) == before.model_copy(update={"begin_ns": before.begin_ns + shift})


@given(timelines(), st.data())
def test_empty_returns_are_immaterial(case: tuple[dict[str, Any], Workload], data: st.DataObject) -> None:
    """An empty return put anywhere changes nothing."""
    found, shape = case
    doubled = [[2 * t, row] for t, row in found["deliveries"]]
    stretched = {**found, "submitted_ns": [2 * t for t in found["submitted_ns"]], "deliveries": doubled}
    place = data.draw(st.integers(0, len(doubled) - 1))
    more = [*doubled[:place], [doubled[place][0] - 1, [0] * shape.batch], *doubled[place:]]
    assert read_iteration(stretched, shape) == read_iteration({**stretched, "deliveries": more}, shape)


@given(st.integers(1, 5), st.integers(3, 20), st.integers(1, 10**8))
def test_steady_decode(batch: int, output_tokens: int, step_ns: int) -> None:
    """A batch that decodes in step has output_tokens - 2 steps of the true length."""
    deliveries = [[batch + 50 + n * step_ns, [1] * batch] for n in range(output_tokens)]
    iteration = read_iteration(answer(deliveries, list(range(batch))), workload(batch, output_tokens))
    assert (step_ns,) * (output_tokens - 2) == iteration.itl_ns

"""What a worker makes of an engine's returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfgate.capture.vllm_batch import Delivery, decode_begins, describe_deliveries


class Vector:
    """As much of a tensor as is read."""

    def __init__(self, *elements: float) -> None:
        self.elements = list(elements)

    def flatten(self) -> Vector:
        """It has one dimension already."""
        return self

    def tolist(self) -> list[float]:
        """Its elements."""
        return self.elements


def pooled(name: str, *elements: float) -> Any:
    """What an engine returns for a request to embed."""
    return SimpleNamespace(request_id=name, outputs=SimpleNamespace(data=Vector(*elements)))


def test_an_embedding_is_one_token_that_ends_its_request() -> None:
    """So a workload of one output token is measured like any other, to the last request's answer."""
    returns = [Delivery(10, []), Delivery(20, [pooled("b", 0.5)]), Delivery(30, [pooled("a", 0.25, 1.0)])]
    found = describe_deliveries(returns, {"a": 0, "b": 1}, 2)
    assert found["deliveries"] == [[10, [0, 0]], [20, [0, 1]], [30, [1, 0]]]
    assert found["finish_reasons"] == ["length", "length"]


@pytest.mark.parametrize("other", [(0.25, 1.5), (0.25,), (1.0, 0.25)])
def test_another_answer_has_another_digest(other: tuple[float, ...]) -> None:
    """Builds that embed differently are seen to."""
    one, same, changed = (
        describe_deliveries([Delivery(1, [pooled("a", *elements)])], {"a": 0}, 1)["tokens_digest"]
        for elements in ((0.25, 1.0), (0.25, 1.0), other)
    )
    assert one == same
    assert one != changed


@pytest.mark.parametrize(
    ("tokens", "begin"), [([[1, 1]], 1), ([[0, 0], [1, 0], [1, 0], [1, 2], [1, 1]], 4), ([[1, 0], [0, 1], [0, 0]], 2)]
)
def test_decode_begins_after_the_last_first_token(tokens: list[list[int]], begin: int) -> None:
    """Whatever other requests were given before."""
    assert decode_begins(tokens) == begin


@pytest.mark.parametrize("tokens", [[[1, 0], [1, 0]], [[1, 0], [1]]])
def test_a_request_without_a_token_never_begins_to_decode(tokens: list[list[int]]) -> None:
    """Nor does one that a row leaves out."""
    with pytest.raises(ValueError, match=r"no step gave|shorter"):
        decode_begins(tokens)

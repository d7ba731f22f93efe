"""What a scenario whose requests show images cannot declare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perfgate.models import FieldError
from perfgate.scenario.margins import Gate
from perfgate.scenario.workload import Images

MOST_PIXELS: Final = 2**28
"""In the images of a batch, which the worker draws before it begins: 768 MiB, and what a processor makes of each."""


def check_images(images: Images, gates: Sequence[Gate], batches: Sequence[int], lengths: Sequence[int]) -> None:
    """See that prompts and memory have room for images, and that no gate needs to know what becomes of them.

    Args:
        images: Of each request.
        gates: The scenario's.
        batches: The numbers of requests in its cells.
        lengths: The numbers of tokens in their prompts.

    Raises:
        FieldError: One is not so.
    """
    if images.token is not None and images.count >= min(lengths):
        text = f"a prompt of {min(lengths)} tokens has no room for the token of each image and one of its own"
        raise FieldError(("workload", "images", "count"), text)
    if (pixels := max(batches) * images.count * images.width * images.height) > MOST_PIXELS:
        text = f"{pixels / 1e6:.0f} million pixels in a batch, at most {MOST_PIXELS / 1e6:.0f} are held in memory"
        raise FieldError(("workload", "images"), text)
    for number, gate in enumerate(gates):
        if gate.measured.needs_floor:
            text = f"{gate.metric} is read from what a step must move, and what images add to that is not known"
            raise FieldError(("gates", number, "metric"), text)

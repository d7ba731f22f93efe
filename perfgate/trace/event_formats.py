"""Files of JSON events, told apart by what is in them: one reader a format, each giving the events of a recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfgate.errors import RecordError
from perfgate.trace.ascend_profiler import is_ascend, read_ascend
from perfgate.trace.chrome_events import load_events
from perfgate.trace.layer_profiles import is_onnxruntime, is_tensorrt, read_onnxruntime, read_tensorrt
from perfgate.trace.torch_profiler import Recording, read_kineto

_FORMATS: tuple[tuple[Callable[[list[dict[str, Any]]], bool], Callable[[dict[str, Any], Path], Recording]], ...] = (
    (is_ascend, read_ascend),
    (is_onnxruntime, read_onnxruntime),
    (is_tensorrt, read_tensorrt),
)
"""What recognises a format, and what reads it; what none recognises is PyTorch's."""


def read_events(file: Path) -> Recording:
    """The events of a JSON file in the terms of PyTorch's profiler, whichever tool wrote it.

    Raises:
        RecordError: It is too large, not JSON, cut short or no trace, or misses what its format must have.
    """
    content = load_events(file)
    reader = next((read for recognises, read in _FORMATS if recognises(content["traceEvents"])), read_kineto)
    try:
        return reader(content, file)
    except ValueError as error:
        raise RecordError(f"holds an event with a wrong number: {error}", where=str(file)) from error

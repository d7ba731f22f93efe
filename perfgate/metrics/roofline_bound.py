"""The floor of a trial: the least time its decode step can take on one of its GPUs, as the record keeps it.

Found when a trial is taken, where the model's configuration and the GPU's name are at hand, and kept with everything it
rests on, so that utilisations can be judged anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from perfgate.errors import UsageError
from perfgate.metrics.gpu_roofs import Bound, GpuRoof, gpu_called
from perfgate.metrics.transformer import StepDemand, read_config, step_demand
from perfgate.models import Frozen
from perfgate.units import format_value

WEIGHTS_APART: Final = "weights-apart"
"""The reason code of an engine that loaded other weights than are counted."""
MOST_APART: Final = 1.5
"""An engine whose weights take so many times what is counted, or less by as much, runs another model than is counted.
Recorded ones are within 1.03. Adapters, and what sees or hears, are not counted: there it may be more."""
_BESIDE = ("text_config", "vision_config", "audio_config")


class Floor(Frozen):
    """What the mean decode step must move and do on one GPU, what that GPU can, and the time it takes at least.

    Integers, as all that is measured; the mean is over the context lengths of the decode steps, which grow by a token
    a step (:func:`perfgate.metrics.transformer.step_demand`).

    Args:
        gpu: As its driver calls it.
        bytes_moved: ``weights`` and ``kv-cache``, in bytes.
        operations: By the precision they run at; a multiplication and an addition are two.
        bytes_per_second: Bandwidth of the GPU's memory.
        operations_per_second: Dense peak rates, by the same precisions.
        source: Where both rates are printed.
        memory_ns: To move the bytes.
        compute_ns: To do the operations.
    """

    gpu: str
    bytes_moved: dict[str, int]
    operations: dict[str, int]
    bytes_per_second: int
    operations_per_second: dict[str, int]
    source: str
    memory_ns: int
    compute_ns: int

    @classmethod
    def of(cls, demand: StepDemand, gpu: GpuRoof, name: str) -> Self:
        """The floor of a step on a GPU of that name."""
        moved = {"weights": demand.weights_read, "kv-cache": demand.kv_read + demand.kv_written}
        compute_s = sum(count / gpu.peak(precision) for precision, count in demand.operations.items())
        return cls(
            gpu=name,
            bytes_moved={part: round(size) for part, size in moved.items()},
            operations={precision: round(count) for precision, count in demand.operations.items()},
            bytes_per_second=round(gpu.bandwidth),
            operations_per_second={precision: round(gpu.peak(precision)) for precision in demand.operations},
            source=gpu.source,
            memory_ns=round(demand.bytes_moved / gpu.bandwidth * 1e9),
            compute_ns=round(compute_s * 1e9),
        )

    @property
    def bound(self) -> Bound:
        """What takes longer: at best both go on at once."""
        return "memory" if self.memory_ns >= self.compute_ns else "compute"

    @property
    def floor_s(self) -> float:
        """The longer one, in seconds."""
        return max(self.memory_ns, self.compute_ns) / 1e9


@dataclass(frozen=True)
class FloorFound:
    """What came of looking for an engine's floor.

    Args:
        floor: ``None`` where it is unknown.
        why_not: Why it is, in words.
        caution: What else that says of the trial: a reason code.
    """

    floor: Floor | None = None
    why_not: str = ""
    caution: str = ""


def find_floor(
    model_folder: str | None,
    args: Mapping[str, Any],
    gpus: Sequence[str],
    *,
    batch: int,
    input_tokens: int,
    output_tokens: int,
    loaded: int | None = None,
) -> FloorFound:
    """The floor of an engine's decode steps, or why it is unknown: a reason is not an error and costs no trial.

    Args:
        model_folder: Where ``config.json`` is; ``None`` for a model on the hub.
        args: The engine's arguments, the subject's own over the scenario's.
        gpus: Names of the engine's GPUs as the driver gives them; none on the CPU.
        batch: Requests that are decoded at once.
        input_tokens: Tokens of each prompt.
        output_tokens: Tokens generated for each.
        loaded: Bytes of weights on all GPUs, where the engine tells.
    """
    if not gpus:
        return FloorFound(why_not="engines ran on the CPU, whose peak bandwidth and FLOP/s are not in the table")
    if len(set(gpus)) > 1:
        return FloorFound(why_not=f"the GPUs differ, and with them their roofs: {', '.join(gpus)}")
    if model_folder is None:
        why_not = "the model is on the hub, and only a folder's config.json is read; name one by engine.model.path"
        return FloorFound(why_not=why_not)
    try:
        gpu, config = gpu_called(gpus[0]), read_config(Path(model_folder))
        demand = step_demand(config, args, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens)
    except UsageError as error:
        return FloorFound(why_not=" ".join(str(error).split()))
    counted = demand.weights_held * len(gpus)
    most = math.inf if args.get("enable_lora") or any(config.get(name) for name in _BESIDE) else MOST_APART
    if loaded and not 1 / MOST_APART <= loaded / counted <= most:
        size, other = (format_value(of, "B") for of in (loaded, counted))
        why_not = f"the engine loaded weights of {size}, and config.json is counted as {other}: it runs another model"
        return FloorFound(why_not=why_not, caution=WEIGHTS_APART)
    return FloorFound(Floor.of(demand, gpu, gpus[0]))

"""One batch through a vLLM engine: submitted, stepped until it is done, and described.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """One return of ``step()``."""

    t_ns: int
    outputs: list[Any]


def run_batch(engine: Any, step: Callable[[], Any], request: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Submit the batch, step until it is done, then describe it; inside the loop only the clock is read."""
    from vllm import TokensPrompt

    prompts, output_tokens = request["prompts"], request["output_tokens"]
    wanted = parameters(engine, output_tokens)
    shown = pictures(request["images"], len(prompts)) if request.get("images") else [{}] * len(prompts)
    batch = [TokensPrompt(prompt_token_ids=prompt, **picture) for prompt, picture in zip(prompts, shown)]  # noqa: B905 (3.10)
    indices: dict[str, int] = {}
    submitted_ns: list[int] = []
    deliveries: list[Delivery] = []
    clock = time.perf_counter_ns
    for index, prompt in enumerate(batch):
        name = f"{prefix}{index}"
        submitted_ns.append(clock())
        returned = engine.add_request(name, prompt, wanted)
        # vLLM appends a random suffix to names; outputs carry ours, but vLLM does not promise that.
        indices[name] = index
        if isinstance(returned, str):
            indices[returned] = index
    requests = scheduler_requests(engine, set(indices))
    while engine.has_unfinished_requests():
        outputs = step()
        deliveries.append(Delivery(clock(), outputs))
    return {
        "submitted_ns": submitted_ns,
        **describe_deliveries(deliveries, indices, len(prompts)),
        "preemptions": preemptions(requests, len(prompts)),
    }


def pictures(images: dict[str, Any], batch: int) -> list[dict[str, Any]]:
    """Images of noise for each request, no two alike, so that no cache of what was seen before finds one."""
    import numpy as np
    from PIL import Image

    def noise(request: int, place: int) -> Any:
        drawn = np.random.default_rng([*images["seed"], request, place])
        return Image.fromarray(drawn.integers(0, 256, (images["height"], images["width"], 3), dtype=np.uint8))

    return [
        {"multi_modal_data": {"image": [noise(request, place) for place in range(images["count"])]}}
        for request in range(batch)
    ]


def parameters(engine: Any, output_tokens: int) -> Any:
    """What each request asks for: so many tokens, or of an engine that embeds or classifies its one answer."""
    if getattr(engine.model_config, "runner_type", "generate") == "pooling":
        from vllm import PoolingParams

        offered = engine.get_supported_tasks()
        return PoolingParams(task=next(task for task in ("embed", "classify") if task in offered))
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0,
        ignore_eos=True,
        min_tokens=output_tokens,
        max_tokens=output_tokens,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def describe_deliveries(deliveries: list[Delivery], indices: dict[str, int], batch: int) -> dict[str, Any]:
    """Tokens of each request in each return, the digest of all tokens, and why each request ended.

    An embedding or a score counts as one token, which is a number made of all its elements.
    """
    tokens: list[list[int]] = [[] for _ in range(batch)]
    finish_reasons: list[str | None] = [None] * batch
    counts: list[list[Any]] = []
    for delivery in deliveries:
        row = [0] * batch
        for output in delivery.outputs:
            index = indices[output.request_id]
            if hasattr(output.outputs, "data"):
                row[index] += 1
                tokens[index].append(answer_digest(output.outputs.data))
                finish_reasons[index] = "length"
                continue
            for completion in output.outputs:
                row[index] += len(completion.token_ids)
                tokens[index].extend(completion.token_ids)
                if completion.finish_reason is not None:
                    finish_reasons[index] = str(completion.finish_reason)
        counts.append([delivery.t_ns, row])
    return {"deliveries": counts, "tokens_digest": tokens_digest(tokens), "finish_reasons": finish_reasons}


def decode_begins(tokens: list[list[int]]) -> int:
    """The first step after every request has its first token.

    Args:
        tokens: Of each return of ``step()`` those of each request.

    Raises:
        ValueError: A request has none.
    """
    begun = [False] * len(tokens[0])
    for number, row in enumerate(tokens):
        begun = [before or count > 0 for before, count in zip(begun, row, strict=True)]
        if all(begun):
            return number + 1
    raise ValueError("no step gave every request its first token")


def tokens_digest(tokens: list[list[int]]) -> str:
    """SHA-256 over the token ids of each request, in order, as one JSON text without spaces."""
    return hashlib.sha256(
        json.dumps([[int(t) for t in row] for row in tokens], separators=(",", ":")).encode()
    ).hexdigest()


def answer_digest(data: Any) -> int:
    """A number that differs where an element of a tensor does."""
    return int(hashlib.sha256(json.dumps(data.flatten().tolist()).encode()).hexdigest()[:12], 16)


def scheduler_requests(engine: Any, names: set[str]) -> list[Any]:
    """The scheduler's own objects of this batch, taken before it forgets them; empty where it is out of reach."""
    scheduler = getattr(getattr(engine.engine_core, "engine_core", None), "scheduler", None)
    held = getattr(scheduler, "requests", None)
    return [request for name, request in held.items() if name in names] if isinstance(held, dict) else []


def preemptions(requests: list[Any], batch: int) -> int | None:
    """Preemptions in the batch; ``None`` where this vLLM does not tell for every request."""
    counts = [getattr(request, "num_preemptions", None) for request in requests]
    numbers = [count for count in counts if isinstance(count, int)]
    return sum(numbers) if len(numbers) == batch else None

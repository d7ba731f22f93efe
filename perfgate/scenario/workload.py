"""What a scenario puts under test: model, engine, and the batch that is decoded."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema, model_validator
from pydantic_core import PydanticKnownError

from perfgate.models import Positive, Strict
from perfgate.scenario.fields import ArgumentName, Variables

DRIVERS: Final = ["vllm"]
"""What ``engine.driver`` may name; :data:`perfgate.capture.drivers.DRIVERS` holds the driver of each name."""


def _known_driver(name: str) -> str:
    if name not in DRIVERS:
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, DRIVERS))})
    return name


DriverName = Annotated[str, AfterValidator(_known_driver), WithJsonSchema({"type": "string", "enum": DRIVERS})]


class Model(Strict):
    """Which weights: exactly one of ``config``, ``path``, ``hub``.

    Args:
        config: Folder with a ``config.json``, relative to the scenario; weights are dummies.
        path: Folder with real weights, relative to the scenario.
        hub: Name on the model hub; needs ``revision``.
        revision: Full commit of the hub's model, so that the cell stays the same.
    """

    config: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if sum(source is not None for source in (self.config, self.path, self.hub)) != 1:
            raise ValueError("expected exactly one of config, path, hub")
        if (self.hub is None) != (self.revision is None):
            raise ValueError("hub and revision go together")
        return self


class Engine(Strict):
    """The engine under test.

    Args:
        driver: ``vllm`` drives the engine loop in the worker's own process.
        model: The weights.
        args: vLLM engine arguments, passed as they are.
        env: Environment variables for the engine of both sides.
    """

    driver: DriverName = "vllm"
    model: Annotated[Model, Field(examples=[{"config": "models/llama-8b"}])]
    args: dict[ArgumentName, JsonValue] = {}
    env: Variables = {}


class Workload(Strict):
    """A decode workload: ``batch`` requests submitted at once, run to a fixed length at temperature 0.

    Args:
        batch: Requests submitted together in each iteration.
        input_tokens: Tokens of each prompt.
        output_tokens: Tokens generated for each request; at least 3 where a gate needs a decode step.
        seed: Draws the prompts, which differ between iterations and not between trials.
    """

    batch: Annotated[Positive, Field(examples=[8])]
    input_tokens: Annotated[Positive, Field(examples=[512])]
    output_tokens: Annotated[Positive, Field(examples=[128])]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

"""What a scenario puts under test: model, engine, and the batch that is decoded."""

from __future__ import annotations

import json
import operator
from typing import Annotated, Final

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema, model_validator

from perfgate.models import FieldError, Listed, Positive, Strict, absent
from perfgate.scenario.drivers import DRIVERS, known_driver
from perfgate.scenario.fields import ArgumentName, Variables
from perfgate.scenario.yaml_document import in_flow

MATRIX_WORKLOAD_KEYS: Final = ("batch", "input_tokens", "output_tokens")
EXAMPLE: Final = ("llama-server", "--port", "{port}", "--model", "{model}/model.gguf")
Word = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
DriverName = Annotated[str, AfterValidator(known_driver), WithJsonSchema({"type": "string", "enum": [*DRIVERS]})]


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


def no_folder(model: Model, argument: JsonValue) -> str:
    """Why an engine cannot have an argument, which names the folder of a model on the hub; empty where it can."""
    named = model.hub is not None and "{model}" in json.dumps(argument)
    return "{model} is the model's folder, and a model on the hub has none" if named else ""


class Engine(Strict):
    """The engine under test.

    Args:
        driver: ``vllm`` drives the engine loop in the worker's own process; ``server`` starts a server and drives it
            over HTTP.
        model: The weights.
        args: vLLM engine arguments, passed as they are; a server gets them as options of its command line. ``{model}``
            in one is the model's folder, which one on the hub has not: a draft model may be in a folder of it. What is
            named so is part of the cell: names and sizes of its files, and the content of configurations.
        env: Environment variables for the engine of both sides.
        command: What starts a server in place of ``vllm serve``, as a list of words: any that has OpenAI's API and
            answers ``/health`` or ``/v1/models``. ``{port}`` is the port to listen on, on 127.0.0.1, ``{model}`` the
            model's folder or name, ``{python}`` the subject's interpreter. The options made of ``args`` come behind it.
    """

    driver: DriverName = "vllm"
    model: Annotated[Model, Field(examples=[{"config": "models/llama-8b"}])]
    args: dict[ArgumentName, JsonValue] = {}
    env: Variables = {}
    command: Annotated[tuple[Word, ...], Listed, Field(exclude_if=operator.not_, examples=[EXAMPLE])] = ()

    @property
    def identity(self) -> dict[str, JsonValue]:
        """What of it decides what is measured, beside the model."""
        named: dict[str, JsonValue] = {"driver": self.driver, "args": self.args, "env": {**self.env}}
        return {**named, "command": [*self.command]} if self.command else named

    @model_validator(mode="after")
    def _command_of_a_server(self) -> Engine:
        if self.command and not DRIVERS[self.driver].command:
            raise FieldError(("command",), "goes with driver: server")
        if self.command and not any("{port}" in word for word in self.command):
            raise FieldError(("command",), f"needs {{port}}, the port to listen on, like {in_flow([*EXAMPLE])}")
        return self


class Images(Strict):
    """Images of noise in each request, for a model that sees; at most 268 million pixels in a batch.

    Args:
        count: Images in each request.
        width: In pixels; the model's own processor brings them to its size.
        height: The same.
        token: Id that marks an image in a prompt, where the model's processor looks for one: a prompt then begins
            with as many, and has more tokens than that. BLIP-2 wants none, LLaVA its ``image_token_index``.
    """

    count: Annotated[Positive, Field(le=64)] = 1
    width: Annotated[Positive, Field(le=8192, examples=[336])]
    height: Annotated[Positive, Field(le=8192, examples=[336])]
    token: Annotated[int | None, Field(ge=0, lt=2**31, exclude_if=absent)] = None


class Workload(Strict):
    """A decode workload: ``batch`` requests submitted at once, run to a fixed length at temperature 0.

    Args:
        batch: Requests submitted together in each iteration.
        input_tokens: Tokens of each prompt.
        output_tokens: Tokens generated for each request; at least 3 where a gate needs a decode step.
        seed: Draws the prompts and images, which differ between iterations and not between trials.
        images: What each request shows beside its prompt. The model's folder then also has its tokenizer and the
            configuration of its processor, which are part of the cell.
    """

    batch: Annotated[Positive, Field(examples=[8])]
    input_tokens: Annotated[Positive, Field(examples=[512])]
    output_tokens: Annotated[Positive, Field(examples=[128])]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    images: Annotated[Images | None, Field(exclude_if=absent)] = None


def images_of(workload: Strict) -> Images | None:
    """What its requests show; nothing of what is not a batch."""
    return workload.images if isinstance(workload, Workload) else None

"""The scalar types that declarations are made of: names, expressions, arguments, and what each refuses."""

from __future__ import annotations

import json
import re
import warnings
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema

from perfgate.scenario.kernel_names import PLACES
from perfgate.scenario.yaml_document import did_you_mean

NAME = "[a-z0-9][a-z0-9._-]{0,62}"
RESERVED_ARGS = {
    "model": "engine.model says it",
    "load_format": "engine.model says it",
    "tokenizer": "prompts are token ids, no tokenizer is loaded",
    "skip_tokenizer_init": "prompts are token ids, no tokenizer is loaded",
    "hf_overrides": "change config.json instead, so that it is part of the model's digest",
}
OVERRIDABLE = ("head_dtype",)
"""What ``hf_overrides`` of a subject may hold: in which precision the same model computes."""


def _known_place(place: str) -> str:
    if place not in PLACES[1:]:
        raise ValueError(f"expected one of {', '.join(PLACES[1:])}{did_you_mean(place, PLACES[1:])}")
    return place


def _expression(text: str) -> str:
    try:
        with warnings.catch_warnings(action="error"):  # of what a later Python will read in another way
            re.compile(text)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise ValueError(f"invalid regular expression: {error}") from error
    return text


PlaceName = Annotated[str, AfterValidator(_known_place), WithJsonSchema({"type": "string", "enum": list(PLACES[1:])})]
Expression = Annotated[str, Field(min_length=1), AfterValidator(_expression)]


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63] or "llama-8b-decode"
        raise ValueError(
            "expected at most 63 lower-case letters, digits, dots, dashes or underscores, a letter or digit first,"
            f" like {plain}"
        )
    return text


def _argument_name(name: str) -> str:
    if name in RESERVED_ARGS:
        raise ValueError(f"is not allowed here: {RESERVED_ARGS[name]}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError("engine arguments are written with underscores, like max_num_seqs")
    return name


def _subject_argument_name(name: str) -> str:
    return name if name == "hf_overrides" else _argument_name(name)


def _same_model(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments that leave the model what the scenario says it is."""
    json.dumps(arguments, allow_nan=False)
    overrides = arguments.get("hf_overrides", {})
    if not isinstance(overrides, dict) or not overrides.keys() <= set(OVERRIDABLE):
        raise ValueError(
            f"hf_overrides may set {' and '.join(OVERRIDABLE)} alone; of all else, {RESERVED_ARGS['hf_overrides']}"
        )
    return arguments


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not a valid name of an environment variable")
    if name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        raise ValueError("set it for perfgate as a whole: the GPUs that are guarded must be those the engines use")
    return name


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a value of an environment variable holds no NUL character")
    return value


def file_pattern(text: str) -> str:
    """A pattern that :meth:`pathlib.Path.glob` takes, in every version of Python alike.

    Raises:
        ValueError: It is absolute, empty, holds a NUL character, or has ``**`` beside other characters.
    """
    parts = text.split("/")
    if text.startswith("/") or not text.strip("./"):
        raise ValueError("expected a pattern of files from this folder, like conf/*.txt")
    if "\0" in text or any("**" in part and part != "**" for part in parts):
        raise ValueError("expected ** between slashes only and no NUL character, like conf/**/*.txt")
    return text


def whole_number(value: Any) -> Any:
    """Refuse what only equals a whole number.

    Raises:
        ValueError: The value is a boolean or has a point.
    """
    if type(value) is not int:  # Literal[1] also takes True and 1.0, which are equal to it
        raise ValueError("expected a whole number")
    return value


Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME}$"})]
ArgumentName = Annotated[str, AfterValidator(_argument_name)]
SubjectArgumentName = Annotated[str, AfterValidator(_subject_argument_name)]
Arguments = Annotated[dict[SubjectArgumentName, JsonValue], AfterValidator(_same_model)]
VariableName = Annotated[str, AfterValidator(_variable_name)]
Variables = dict[VariableName, Annotated[str, AfterValidator(_without_nul)]]
Weight = Annotated[float, Field(ge=0, le=0.8)]

"""The ``counters:`` and ``counted:`` blocks of a scenario: which launches ncu counts, and what must hold of them.

ncu can skip launches and count a number of them, so what is counted is a window of the step as the traced trials saw
it: the shortest that holds all launches asked for. It may reach from the end of one step into the next, which is how
one layer and everything outside the layers come into one window.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from perfgate import rooms
from perfgate.models import LARGEST, Duration, Listed, Positive, Strict
from perfgate.scenario.expected_kernels import Bound, RoleName
from perfgate.scenario.fields import Expression, PlaceName
from perfgate.scenario.schedule import Sampling
from perfgate.scenario.yaml_document import did_you_mean
from perfgate.units import plain_digits


@dataclass(frozen=True)
class Condition(Bound):
    """What must hold of a counter of the head.

    Args:
        relation: ``same``: each launch reads what the base's does; ``<=`` or ``>=``: the median of all launches.
        limit: In the counter's unit, percentages as numbers of percent; 0 for ``same``.
    """

    def __str__(self) -> str:
        """As a scenario spells it."""
        return self.relation if self.relation == SAME else f"{self.relation} {plain_digits(Decimal(repr(self.limit)))}"


SAME = "same"
STEPS_BEHIND = 4
"""Tokens generated behind the counted step: a window may reach into the next one, and scheduling runs ahead."""
_CONDITION = r"^\s*(same|(<=|>=)\s*([0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)\s*%?)\s*$"


def _parse_condition(value: Any) -> Condition:
    if isinstance(value, Condition):
        return value
    match = re.match(_CONDITION, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('expected "same", or a bound in the counter\'s unit, quoted, like ">= 60" or "<= 0"')
    limit = float(match[3]) if match[2] else 0.0
    if not math.isfinite(limit):
        raise ValueError("expected a bound that is a finite number")
    return Condition(match[2] or SAME, limit)


ConditionText = Annotated[
    Condition,
    PlainValidator(_parse_condition),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": _CONDITION, "examples": ["same", ">= 60", "<= 0"]}),
]

_RAW = re.compile(r"[a-z0-9]+__[a-z0-9_]+(\.[a-z0-9_]+)*")


def _known_counter(name: str) -> str:
    if name not in (counters := rooms.use("counters")) and not _RAW.fullmatch(name):
        raise ValueError(f"expected a metric of ncu, or one of {', '.join(counters)}{did_you_mean(name, counters)}")
    return name


CounterName = Annotated[str, AfterValidator(_known_counter)]


class Launches(Strict):
    """Some launches of a decode step.

    Args:
        role: Of this family of kernels; any where neither this nor ``match`` is given.
        match: Whose name this regular expression is found in.
        place: The gemm at this place of a layer.
        layer: Only those of this layer, from 0.
        profile: How many of them; or ``layer``, all of one layer; or ``outside``, all outside the layers.
        metrics: What must hold of the head, by counter or by ncu's own name.
    """

    role: RoleName | None = None
    match: Expression | None = None
    place: PlaceName | None = None
    layer: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    profile: Positive | Literal["layer", "outside"] = 1
    metrics: dict[CounterName, ConditionText] = {}

    @model_validator(mode="after")
    def _inside_or_outside(self) -> Launches:
        if self.layer is not None and self.profile == "outside":
            raise ValueError("layer and profile: outside exclude each other")
        return self

    @field_validator("metrics")
    @classmethod
    def _same_where_it_repeats(cls, metrics: dict[str, Condition]) -> dict[str, Condition]:
        for name in (name for name, condition in metrics.items() if condition.relation == SAME):
            exact = [counter.name for counter in rooms.use("counters").values() if counter.tier == "exact"]
            if name not in exact:
                raise ValueError(f"{name}: only counters that repeat exactly can be required to be the same: "
                                 f"{', '.join(exact)}; give it a bound, or a gate with margins where it repeats "
                                 "tightly")  # fmt: skip
        return metrics

    def __str__(self) -> str:
        """For people: ``gemm qkv``."""
        where = f"of layer {self.layer}" if self.layer is not None else ""
        return " ".join(word for word in (self.role, self.match, self.place, where) if word) or "any kernel"


class CounterTrials(Sampling):
    """How counted trials are taken: pairs of their own, after the traced ones.

    Args:
        step: The engine step in which the window begins; by default in the middle of the decode steps, and in the
            middle of a block of the KV cache, where vLLM runs what it usually does.
        cache_control: ``all`` flushes the caches before every pass, so that what ran before does not matter; ``none``
            leaves them.
        collect: Counters to read; by default all that perfgate knows. Fewer need fewer passes.
        limit: The longest that ncu may take over the window.
        looks: Numbers of counted pairs at which a gate on a counter is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 6, 8, 12 or of 4, 6, 8, 12.
    """

    step: Positive | None = None
    cache_control: Literal["all", "none"] = "all"
    collect: Annotated[tuple[CounterName, ...], Field(min_length=1), Listed] | None = None
    limit: Duration = 600.0

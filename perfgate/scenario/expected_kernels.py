"""The ``kernels:`` block of a scenario: how traced trials are taken, and what a decode step is expected to run.

What is exact blocks: a step that fits none of the declared patterns. What is a share moves a little from run to run, so
a share out of its range is only a caution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from perfgate.models import LARGEST, Listed, Positive, Strict
from perfgate.scenario.fields import Expression
from perfgate.scenario.kernel_names import COPY_KINDS, ROLES, UNLISTED, RoleRule
from perfgate.scenario.schedule import Sampling
from perfgate.scenario.yaml_document import did_you_mean
from perfgate.units import format_percent, parse_percent


@dataclass(frozen=True)
class Bound:
    """A share that must be at most, or at least, so much.

    Args:
        relation: ``<=`` or ``>=``.
        limit: A ratio in [0, 1].
    """

    relation: str
    limit: float = 0.0

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return value <= self.limit if self.relation == "<=" else value >= self.limit

    def __str__(self) -> str:
        """As a scenario spells it."""
        return f"{self.relation} {format_percent(self.limit)}"


_BOUND = r"^\s*(<=|>=)\s*([0-9]+(\.[0-9]+)?\s*%)\s*$"


def _parse_bound(value: Any) -> Bound:
    if isinstance(value, Bound):
        return value
    match = re.match(_BOUND, value) if isinstance(value, str) else None
    limit = parse_percent(match[2]) if match else 2.0
    if match is None or limit > 1:
        raise ValueError('expected a bound of a share, quoted, like "<= 10%" or ">= 95%"')
    return Bound(match[1], limit)


Share = Annotated[
    Bound,
    PlainValidator(_parse_bound),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": _BOUND, "examples": ["<= 10%", ">= 95%"]}),
]
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]


def _copy_kind(kind: str) -> str:
    if kind not in COPY_KINDS:
        raise ValueError(f"expected one of {', '.join(COPY_KINDS)}{did_you_mean(kind, COPY_KINDS)}")
    return kind


When = Literal["always", "regressed"]
ALWAYS: Final[When] = "always"


class Traced(Sampling):
    """How traced trials are taken: pairs of their own, beside the timed ones.

    Args:
        iterations: Iterations traced in each trial, after the warm-up; a few suffice, and a trace grows with each.
        looks: Numbers of traced pairs at which a gate on kernel times is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 6, 8, 12 or of 4, 6, 8, 12.
        when: ``regressed``: one pair, of a cell that a gate blocked, to say why; a run that passes takes none.
    """

    iterations: Annotated[int, Field(ge=1, le=1000)] = 2
    when: Annotated[When, Field(exclude_if=lambda when: when == ALWAYS)] = ALWAYS


class OwnRole(Strict):
    """A family of kernels that the scenario tells apart by itself.

    Args:
        match: A regular expression, searched in the demangled name; upper and lower case differ.
    """

    match: Expression


class DeclaredPattern(Strict):
    """Steps that a decode may run. What a pattern does not name is not checked; what it names is exact.

    Args:
        launches: Kernels of a step.
        roles: Launches by role; a role that is left out is not checked.
        outside_graphs: Kernels that no CUDA graph launches.
        copies: Copies by kind; a kind that is left out must not occur.
        share: How many of the steps may be like this; only a caution.
    """

    launches: Positive
    roles: dict[RoleName, Count] | None = None
    outside_graphs: Count | None = None
    copies: dict[Annotated[str, AfterValidator(_copy_kind)], Count] | None = None
    share: Share | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> DeclaredPattern:
        listed = sum((self.roles or {}).values())
        if listed > self.launches:
            raise ValueError(f"roles add up to {listed} launches, more than the {self.launches} of the step")
        if self.outside_graphs is not None and self.outside_graphs > self.launches:
            raise ValueError(f"outside_graphs is more than the {self.launches} launches of the step")
        return self


class PerDecodeStep(Strict):
    """What a pure decode step may run.

    Args:
        patterns: A step like none of these is outside the envelope, and blocks; without any, only names are checked.
        names: Kernels that a role may run, by the function's own name; a step with another one is outside too.
        graph_coverage: Share of kernels that CUDA graphs launch; only a caution.
    """

    patterns: Annotated[tuple[DeclaredPattern, ...], Listed] = ()
    names: dict[RoleName, Annotated[tuple[str, ...], Listed]] = {}
    graph_coverage: Share | None = None


class Unlisted(Strict):
    """Kernels whose role neither list knows.

    Args:
        time_share: Their share of kernel time; only a caution.
    """

    time_share: Share


class Expectation(Strict):
    """The kernels of a decode step: how they are traced and what is expected of them.

    Args:
        traced: How traced trials are taken.
        roles: Roles of the scenario's own, tried in this order before the shipped ones; the first match wins.
        per_decode_step: What a step may run; ``perfgate envelope learn`` writes a first one.
        unlisted: What may run that no role describes.
    """

    traced: Traced = Traced()
    roles: dict[RoleName, OwnRole] = {}
    per_decode_step: PerDecodeStep = PerDecodeStep()
    unlisted: Unlisted | None = None

    @field_validator("roles", mode="before")
    @classmethod
    def _in_a_records_form(cls, roles: Any, info: ValidationInfo) -> Any:
        """JSON files of perfgate sort the keys of a mapping, so there roles are a list, in their order."""
        if info.mode == "json" and isinstance(roles, list):
            return {entry["role"]: {"match": entry["match"]} for entry in roles}
        return roles

    @field_serializer("roles")
    def _roles_in_order(self, roles: Mapping[str, OwnRole], info: SerializationInfo) -> Any:
        if info.by_alias:  # in the words of a scenario
            return {name: {"match": role.match} for name, role in roles.items()}
        return [{"role": name, "match": role.match} for name, role in roles.items()]

    @field_validator("roles")
    @classmethod
    def _unlisted_is_no_role(cls, roles: dict[str, OwnRole]) -> dict[str, OwnRole]:
        if UNLISTED in roles:
            raise ValueError(f"{UNLISTED} is the name of what no role matches")
        return roles

    @field_validator("per_decode_step")
    @classmethod
    def _roles_exist(cls, expected: PerDecodeStep, info: ValidationInfo) -> PerDecodeStep:
        roles = {*info.data.get("roles", {}), *ROLES, UNLISTED}
        spoken = [
            (f"patterns[{n}].roles", role)
            for n, pattern in enumerate(expected.patterns)
            for role in pattern.roles or {}
        ]
        for field, role in [*spoken, *(("names", role) for role in expected.names)]:
            if "roles" in info.data and role not in roles:
                raise ValueError(f"{field} holds {role!r}, no role of this scenario{did_you_mean(role, roles)}")
        return expected

    @model_validator(mode="after")
    def _traced_where_it_is_checked(self) -> Expectation:
        if self.explains and (self.declares_envelope or self.unlisted):
            raise ValueError("what a step may run is checked in every run: leave traced.when out")
        return self

    @property
    def explains(self) -> bool:
        """Whether only a cell that a gate blocked is traced."""
        return self.traced.when == "regressed"

    def in_every_run(self) -> Expectation:
        """The same, traced whatever the gates say."""
        return self.model_copy(update={"traced": self.traced.model_copy(update={"when": ALWAYS})})

    @property
    def declares_envelope(self) -> bool:
        """Whether there is anything that a step can be outside of."""
        return bool(self.per_decode_step.patterns or self.per_decode_step.names)

    @property
    def rules(self) -> tuple[RoleRule, ...]:
        """The scenario's own roles, to be tried before the shipped ones."""
        return tuple(RoleRule(name, role.match) for name, role in self.roles.items())


def not_traced(kernels: Expectation | None) -> str:
    """What to do where some run takes no traced trial; empty where each does."""
    if kernels is None:
        return "add a kernels: block, like kernels: {traced: {iterations: 2}}"
    return "leave kernels.traced.when out" if kernels.explains else ""

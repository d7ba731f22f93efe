"""A gate: one metric that can block, and the margins by which it does; and what a metric may lose over many days."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from perfgate import rooms
from perfgate.metrics.catalogue import (
    KEYED_METRICS,
    METRICS,
    PART_METRICS,
    PLACED_METRICS,
    Metric,
    metric_family,
    metric_names,
)
from perfgate.models import QUANTITY, Percent, Strict, absent
from perfgate.scenario.fields import PlaceName
from perfgate.scenario.kernel_names import PLACES
from perfgate.scenario.yaml_document import did_you_mean
from perfgate.units import format_percent, parse_percent, parse_quantity, plural

if TYPE_CHECKING:
    Slo = Any
else:
    Slo = rooms.offered("slo") or Any

LONGEST_DAYS = 3650


class Budget(NamedTuple):
    """How much a metric may get slower within some days.

    Args:
        most: A slowdown, as a ratio minus one.
        days: The length of any window that it holds for.
    """

    most: float
    days: int

    def __str__(self) -> str:
        """As it is written."""
        return f"{format_percent(self.most)} in {plural(self.days, 'day')}"


def _parse_budget(text: Any) -> Any:
    most, within, days = text.partition(" in ") if isinstance(text, str) else ("", "", "")
    number = re.fullmatch(r"\s*([0-9]{1,4})\s+days?\s*", days)
    if not within or not number or not 0 < int(number[1]) <= LONGEST_DAYS:
        raise ValueError('expected a slowdown and days, like "1% in 30 days"')
    allowed = parse_percent(most)
    if allowed == 0:
        raise ValueError("a budget of nothing would be over at the first chance: name at least what nights differ by")
    return Budget(allowed, int(number[1]))


DriftBudget = Annotated[
    Budget,
    BeforeValidator(_parse_budget),
    PlainSerializer(str),
    WithJsonSchema({
        "type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*% in [0-9]{1,4} days?\s*$",
        "examples": ["1% in 30 days"],
    }),
]  # fmt: skip
_AMOUNTS = {"s": "1ms", "B": "16MiB", "J/tok": "1mJ/tok", "ratio": "1%", "req/s": "1req/s"}


class Gate(Strict):
    """One metric that can block.

    Args:
        metric: What is judged, one of the metrics that perfgate knows.
        role: Whose kernels, for a metric that is measured by role: one of the scenario's own roles or a shipped one.
        place: Only those at this place of a layer, for a counter: one of qkv, out, gate-up, down, lm-head.
        quantile: Which one, for a metric that is a quantile over the requests of a server.
        slo: What a request must meet, for goodput.
        ignorable: A slowdown up to this is acceptable.
        must_catch: A slowdown from this on must not pass.
        floor: Absolute change in the metric's unit below which nothing is a regression, like ``1ms``.
        draw_sd: Standard deviation of what compiling and tuning a build once more changes the metric by: restarts
            repeat one draw of each side, so its variance is in every error. It is taken as known: of few fills declare
            the upper end of the interval that ``research/cold_fills.py`` prints.
    """

    metric: Annotated[
        str, Field(examples=["itl_median"]), WithJsonSchema({"type": "string", "enum": list(metric_names())})
    ]
    role: Annotated[str | None, Field(validate_default=True)] = None
    place: Annotated[PlaceName | None, WithJsonSchema({"type": "string", "enum": list(PLACES[1:])})] = None
    quantile: Annotated[Percent | None, Field(validate_default=True, exclude_if=absent)] = None
    slo: Annotated[Slo | None, Field(validate_default=True, exclude_if=absent)] = None
    ignorable: Annotated[Percent, Field(examples=["0.1%"])]
    must_catch: Annotated[Percent, Field(examples=["0.5%"])]
    floor: Annotated[str, WithJsonSchema({"type": "string", "pattern": QUANTITY, "examples": ["1ms"]})] | None = None
    draw_sd: Annotated[Percent, Field(examples=["0.02%"], exclude_if=operator.not_)] = 0.0

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        names = metric_names()
        if metric not in names:
            rooms.refuse_removed("metrics", metric, metric)
        if metric not in names and metric in (rooms.offered("counters") or ()):
            if not PLACED_METRICS:
                raise rooms.missing("kernels", metric)
            raise ValueError(f"{metric} repeats too badly for margins, or has no better direction: bound it in the "
                             f"counters: block; counters with margins are {', '.join(PLACED_METRICS)}")  # fmt: skip
        if metric not in names:
            raise ValueError(f"expected one of {', '.join(names)}{did_you_mean(metric, names)}")
        return metric

    @field_validator("role")
    @classmethod
    def _role_where_it_belongs(cls, role: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric")
        if (metric in METRICS or metric in KEYED_METRICS) and role is not None:
            names = ", ".join(PART_METRICS)
            raise ValueError(f"{metric} is not a metric of a role, remove the role; metrics of roles are {names}")
        if metric in PART_METRICS and role is None:
            raise ValueError(f"{metric} needs the role whose kernels it measures, like role: attention")
        return role

    @field_validator("place")
    @classmethod
    def _place_of_a_counter(cls, place: str | None, info: ValidationInfo) -> str | None:
        if place is not None and info.data.get("metric") not in PLACED_METRICS:
            raise ValueError(f"goes with a counter: {', '.join(PLACED_METRICS)}")
        return place

    @field_validator("quantile", "slo")
    @classmethod
    def _parameter_where_it_belongs(cls, value: Any, info: ValidationInfo) -> Any:
        metric = info.data.get("metric", "")
        wanted = metric in KEYED_METRICS and KEYED_METRICS[metric].key == info.field_name
        if value is not None and not wanted:
            names = [name for name, entry in KEYED_METRICS.items() if entry.key == info.field_name]
            raise ValueError(f"{metric or 'the metric'} takes none, remove it; metrics that do are {', '.join(names)}")
        if value is None and wanted:
            raise ValueError(f"{metric} needs one, like {KEYED_METRICS[metric].like}")
        if info.field_name == "quantile" and value is not None and not 0 < value < 1:
            raise ValueError("expected a percentage above 0% and below 100%")
        return value

    @field_validator("must_catch")
    @classmethod
    def _margins_fit(cls, must_catch: float, info: ValidationInfo) -> float:
        ignorable, metric = info.data.get("ignorable"), info.data.get("metric")
        if ignorable is not None and not ignorable < must_catch:
            raise ValueError(f"must be above ignorable ({format_percent(ignorable)})")
        if metric is not None and metric_family(metric).better == "higher" and must_catch >= 1:
            raise ValueError("must be below 100% for a metric where higher is better")
        return must_catch

    @field_validator("floor", mode="before")
    @classmethod
    def _unit_fits(cls, floor: Any, info: ValidationInfo) -> Any:
        if floor is None:
            return None
        metric = info.data.get("metric")
        unit = metric_family(metric).unit if metric is not None else "s"
        try:
            fits = metric is None or parse_quantity(floor)[1] == unit
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"expected an amount in a unit of {metric or 'the metric'}, like {_AMOUNTS.get(unit, f'1{unit}')}"
            )
        return floor

    @property
    def measured(self) -> Metric:
        """The metric judged, of its role where it has one, and of its place; with its quantile or SLO."""
        if (keyed := KEYED_METRICS.get(self.metric)) is not None:
            return keyed.of(keyed.write(getattr(self, keyed.key)))
        if self.role is None:
            return METRICS[self.metric]
        return PART_METRICS[self.metric].of(self.role + (f"/{self.place}" if self.place else ""))

    @property
    def drawn(self) -> float:
        """The variance of a log ratio of two builds that were each compiled once."""
        return 2 * self.draw_sd**2

    @property
    def floor_value(self) -> float:
        """The floor in the metric's base unit; 0 without one."""
        return parse_quantity(self.floor)[0] if self.floor else 0.0

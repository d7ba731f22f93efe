"""Kinds of trials: entries ``kinds`` of the tables of rooms, which say who takes, judges and shows them.

Profilers slow an engine down, so what is read from trials of one kind is never compared with another's. A kind is what
its table says: the core loops over them and names none but ``timed``. Where a room was removed its kinds are unknown,
and a record or scenario that needs one is refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, create_model

from perfgate import rooms

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class TrialKind:
    """One kind of trial; what names code is ``module:name``, imported when it is used.

    Args:
        name: As a record says it.
        place: Its place among the kinds: pairs are taken, and judged, in this order.
        sampling: Where a cell says when its pairs are looked at, attributes joined by dots.
        block: Attribute of a cell without which none is taken; empty for what is always taken.
        declare: How a scenario declares it, in words, where a gate needs such trials and there are none.
        quick: Whether a quick run takes it, too, where it is asked for.
        instrument: A job to what watches the engine (:class:`perfgate.capture.instruments.Instrument`).
        parked: Whether a trial's worker may import beside the trial before; it is then started as the worker itself
            is, and given ``launch`` alone.
        launch: Fields of :class:`perfgate.capture.driver_protocol.Launch` that the instrument sets.
        clocked: Whether it holds times of the device, which clocks of the sides may explain.
        payload: Fields of a trial that it fills, with their models, whose modules import nothing that knows trials.
        parts: By name what :class:`perfgate.metrics.catalogue.PartMetric` says of a metric with a value for each role.
        checks: What is judged of a cell: evidence to findings; not asked where none is due.
        alone: What can be read of the only side of a cell that is not judged: evidence to findings.
        alike: Evidence to whether both sides show the same, ``None`` where that cannot be said.
        unusable: A metric of such trials, and these by side, to why no gate on it is judged; ``None`` where one can be.
        cautions: Evidence to what else is to be known of such trials.
        outcome: Fields of a cell's outcome: the ``model`` of each, in such a module, and what makes it ``of`` evidence
            where none of the ``checks`` does.
        sections: By place in a report (``before_notes``, ``after_notes``) an outcome's cell to its sections there.
        told: By place in a story (``longer``, why a step is; ``slower``, why what a gate blocked is; ``moved``, what
            differs in a step; ``grown``, what can block) an outcome's cell to sentences.
        page: By place on the run's page (these, ``evidence``, ``end``) the cell and its evidence to sections.
        priced: A cell, the cost of its pairs and earlier records by kind to that cost with what else is known of it.
        shows: What one pair without a gate is taken for, in words: "to see what the ...".
        closing: What a pass without gates says that rests on this kind alone.
    """

    name: str
    place: int
    sampling: str
    instrument: str
    block: str = ""
    declare: str = ""
    quick: bool = False
    parked: bool = False
    launch: Mapping[str, Any] = field(default_factory=dict)
    clocked: bool = False
    payload: Mapping[str, str] = field(default_factory=dict)
    parts: str = ""
    checks: str = ""
    alone: str = ""
    alike: str = ""
    unusable: str = ""
    cautions: str = ""
    outcome: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    page: Mapping[str, str] = field(default_factory=dict)
    priced: str = ""
    shows: str = ""
    closing: str = ""


TRIAL_KINDS: Final = rooms.declared("kinds", TrialKind)
"""By name, in their order."""


def of_kinds(attribute: str) -> dict[str, Any]:
    """What the tables name under an attribute, imported, by kind: for those kinds that have it."""
    return {name: rooms.bring(place) for name, kind in TRIAL_KINDS.items() if (place := getattr(kind, attribute))}


def parts_of_kinds(attribute: str, place: str) -> list[Any]:
    """What tables name for a place under ``sections``, ``told`` or ``page``, imported, in the order of the kinds."""
    named = (getattr(kind, attribute) for kind in TRIAL_KINDS.values())
    return [rooms.bring(parts[place]) for parts in named if place in parts]


def known(name: str) -> str:
    """A name that is that of a kind.

    Raises:
        UsageError: Its room was removed.
        ValueError: It is none.
    """
    if name not in TRIAL_KINDS:
        rooms.refuse_removed("kinds", name, f"{name} trials")
        raise ValueError(f"expected one of {', '.join(TRIAL_KINDS)}")
    return name


def taken_by(name: str) -> BeforeValidator:
    """Of a field that declares trials of a kind: it is refused where the room that takes them was removed."""
    return BeforeValidator(lambda declared: declared if declared in (None, (), []) or known(name) else None)


def payload(kind: TrialKind) -> dict[str, Any]:
    """The fields that a kind brings to a trial."""
    return {name: _optional(place) for name, place in kind.payload.items()}


def facts(kind: TrialKind) -> dict[str, Any]:
    """The fields that a kind brings to the outcome of a cell."""
    return {name: _optional(entry["model"]) for name, entry in kind.outcome.items()}


def _optional(place: str) -> Any:
    return Annotated[rooms.bring(place) | None, Field(default=None, exclude_if=operator.not_)]


def joined(*places: tuple[str, Callable[[TrialKind], Mapping[str, Any]]]) -> Callable[[type[_Model]], type[_Model]]:
    """Give a model the fields that kinds bring, where it does not declare them itself.

    What it declares as ``Any`` is written always, whichever rooms are there: then only the model is the kind's, and
    where its room was removed nothing but ``None`` is read.

    Args:
        places: Behind which field, so that files keep their order of keys; and the fields of a kind.
    """

    def decorated(model: type[_Model]) -> type[_Model]:
        declared = model.model_fields
        new: dict[str, Any] = {name: (None, None) for name, of in declared.items() if of.annotation is Any}
        order = [*declared]
        for after, fields in places:
            brought = {name: of for kind in TRIAL_KINDS.values() for name, of in fields(kind).items()}
            further = {name: of for name, of in brought.items() if name not in declared}
            unsaid = [name for name in brought if name in declared and declared[name].annotation is Any]
            new |= further | {name: (get_args(brought[name])[0], None) for name in unsaid}
            at = order.index(after) + 1
            order[at:at] = further
        made = create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **new)
        ordered = {name: made.model_fields[name] for name in order}
        made.__pydantic_fields__.clear()
        made.__pydantic_fields__.update(ordered)
        return made

    return decorated

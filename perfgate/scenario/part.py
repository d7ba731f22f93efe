"""A part of a plan: the cells that one machine measures of what several measure together.

The plan is divided once, and every part names the whole division. So parts can be told from those of another plan, it
is known which are missing, and each knows how many gates the whole plan has.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.models import Frozen, Note
from perfgate.scenario.plan import Cell, Plan

Attempt = Annotated[int, Field(ge=1, le=1_000_000, exclude_if=lambda attempt: attempt == 1)]
"""Which attempt of a CI's job this is, as the CI counts them; not written where it is the first, or nobody counts."""
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+][A-Za-z0-9._+-]{0,199}$")]
"""The name of a folder, and no way out of the one that it is in."""


class Part(Frozen):
    """Which part of a plan a run is.

    Args:
        run: Name of the run that all parts make together.
        shards: The names of the cells of each, from the first; every cell of the plan is in one of them.
        numbers: Those that the run holds, from 1, in order.
        attempt: That of the job which measured it. What an earlier one found is not known.
        joined: Whether it is what others were joined to, and so answers for the whole plan.
        again: The names of those cells of a shard that a second machine measured, as the first could not; of joined
            parts for each such machine. Not written where there are none.
        faults: Why parts that were given are not in it; not written where there are none.
        aside: Why second tries that were given are not in it, without which the rest is judged; written alike.
    """

    run: RunName
    shards: Annotated[tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...], Field(min_length=1)]
    numbers: Annotated[tuple[int, ...], Field(min_length=1)]
    attempt: Attempt = 1
    joined: bool = False
    again: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = Field(default=(), exclude_if=operator.not_)
    faults: tuple[Note, ...] = Field(default=(), exclude_if=operator.not_)
    aside: tuple[Note, ...] = Field(default=(), exclude_if=operator.not_)

    @model_validator(mode="after")
    def _numbers_of_shards(self) -> Self:
        if list(self.numbers) != sorted({*self.numbers} & {*range(1, len(self.shards) + 1)}):
            raise ValueError(f"numbers: expected some of 1 to {len(self.shards)}, in order")
        names = [*chain.from_iterable(self.again)]
        cells = {*chain.from_iterable(self.shards[number - 1] for number in self.numbers)}
        if not {*names} <= cells or len({*names}) < len(names) or (len(self.again) > 1 and not self.joined):
            raise ValueError("again: expected cells of its shards, each once")
        return self

    @property
    def words(self) -> str:
        """``shard 2 of 3``."""
        return f"shard {', '.join(map(str, self.numbers))} of {len(self.shards)}{', again' if self.again else ''}"

    @property
    def is_second_try(self) -> bool:
        """Whether it is what one machine measured of what another left of a shard."""
        return bool(self.again) and not self.joined

    @property
    def place(self) -> int:
        """Its place among all parts, from 0; what goes on with joined ones comes after them, and then second tries."""
        if self.joined:
            return len(self.shards)
        return self.numbers[0] - 1 + (len(self.shards) + 1 if self.is_second_try else 0)

    @property
    def by_machine(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Of joined parts what each machine measured: what it is called, and the names of the cells."""
        elsewhere = {*chain.from_iterable(self.again)}
        first = [(f"shard {number}", tuple(name for name in names if name not in elsewhere))
                 for number, names in enumerate(self.shards, 1)]  # fmt: skip
        numbers = {name: number for number, names in enumerate(self.shards, 1) for name in names}
        second = [(f"shard {numbers[names[0]]}, again", names) for names in self.again]
        return tuple((what, names) for what, names in (*first, *second) if names)

    def cells(self, plan: Plan) -> tuple[Cell, ...]:
        """The cells that it answers for, in the plan's order."""
        names = {*chain.from_iterable(self.again or (self.shards[number - 1] for number in self.numbers))}
        return tuple(cell for cell in plan.cells if self.joined or cell.name in names)

    def fits(self, plan: Plan) -> bool:
        """Whether every cell of a plan is in one shard, and nothing else is."""
        return sorted(chain.from_iterable(self.shards)) == sorted(cell.name for cell in plan.cells)


def plan_digest(plan: Plan, run: str, shards: Sequence[Sequence[str]]) -> str:
    """What parts of one plan have in common wherever they are measured: its cells and how they were divided.

    Where scenarios and models are differs between machines; what they say does not. The seed is compared besides: a
    night measures one plan twice, by two of them.
    """
    places: Any = {"model_folder": True, "source": True, "gates": {"__all__": {"where"}}}
    content = plan.model_dump(mode="json", exclude={"seed": True, "cells": {"__all__": places}})
    return sha256_hex(canonical_json([content, run, [[*shard] for shard in shards]]))

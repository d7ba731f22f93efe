"""The builds of a run: what its manifest and each of its records name, two sides or a base with several heads."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from perfgate.errors import UsageError
from perfgate.metrics.sides import HeadName, Side
from perfgate.models import Frozen
from perfgate.scenario.subject import Builds, Subject


class BuildDigest(Frozen):
    """What the files of a build were when a visit began.

    Args:
        digest: SHA-256 of all that could be imported; empty where that is not known.
        unknown: Why it is not; not written where it is.
    """

    digest: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    unknown: Annotated[str, Field(exclude_if=operator.not_)] = ""


HeadsField = Annotated[dict[HeadName, Subject], Field(exclude_if=operator.not_)]


def by_side(builds: Builds) -> dict[str, Any]:
    """The ``subjects`` and ``heads`` of a run of these builds; a head that is the only one needs no name.

    Raises:
        UsageError: Several heads have no base.
    """
    heads = {label: subject for label, subject in builds.items() if label != "base"}
    base = {label: subject for label, subject in builds.items() if label == "base"}
    if len(heads) < 2:  # noqa: PLR2004 (several)
        return {"subjects": {**base, **dict(zip(["head"], heads.values(), strict=False))}}
    if not base:
        raise UsageError(f"several heads without a base: {', '.join(heads)}", remedy="Name what they are held against.")
    return {"subjects": base, "heads": dict(sorted(heads.items()))}


class ComparedBuilds(Frozen):
    """The builds of a run, which its manifest and each of its records name."""

    if TYPE_CHECKING:
        subjects: dict[Side, Subject]
        heads: HeadsField

    @model_validator(mode="after")
    def _heads_beside_a_base(self) -> Self:
        if self.heads and (len(self.heads) == 1 or "base" in self.heads or [*self.subjects] != ["base"]):
            raise ValueError("heads: expected several beside a base alone, and none called base")
        return self

    @property
    def built(self) -> dict[str, Subject]:
        """Every build, by what it is called: ``base``, ``head``, or its name among several heads."""
        return dict((*self.subjects.items(), *self.heads.items()))

    @property
    def several(self) -> bool:
        """Whether there are several heads."""
        return bool(self.heads) and "head" not in self.subjects

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of several heads, each of which is held against the base; else one that is empty."""
        return tuple(self.heads) if self.several else ("",)

    @property
    def alone(self) -> Side | None:
        """The only side there is; ``None`` where there are two, or several heads."""
        return next(iter(self.subjects)) if len(self.built) == 1 else None

    def refuse_several(self, where: str) -> None:
        """Refuse several heads where one comparison is meant.

        Raises:
            UsageError: There are several.
        """
        if self.several:
            text = f"is a run of several heads: {', '.join(self.heads)}"
            raise UsageError(text, where=where, remedy="Measure the one that is meant in a run of its own.")

"""What was measured: what two records must have in common to be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue

from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.models import Frozen
from perfgate.scenario.plan import Cell


def _with_a_mode(clocks: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not isinstance(clocks.get("mode"), str):
        raise ValueError("expected a mode")  # noqa: TRY004 (pydantic tells it as what is wrong with the field)
    return clocks


class Measured(Frozen):
    """What was measured: the identity of a cell, in words that a reviewer can compare.

    Args:
        name: The cell's name.
        scenario: Its scenario's.
        cell_id: Digest of everything below but ``tracing`` and ``counting``.
        model_digest: See :class:`perfgate.scenario.plan.Cell`.
        engine: Driver, arguments and environment.
        workload: As resolved.
        measure: Iterations counted and warm-up.
        clocks: As declared.
        pairing: The cell's.
        tracing: Digest of roles and iterations of traced trials, which decide kernel times; empty where nothing is
            traced.
        counting: Digest of roles, launches and window of counted trials; empty where nothing is.
    """

    name: str
    scenario: str
    cell_id: str
    model_digest: str
    engine: dict[str, JsonValue]
    workload: dict[str, JsonValue]
    measure: dict[str, JsonValue]
    clocks: Annotated[dict[str, JsonValue], AfterValidator(_with_a_mode)]
    pairing: str
    tracing: str = ""
    counting: str = ""

    @classmethod
    def of(cls, cell: Cell) -> Measured:
        """The identity of a resolved cell."""
        rules = cell.kernels.rules if cell.kernels else ()
        traced = cell.kernels and repr((rules, cell.kernels.traced.iterations))
        launches = [entry.model_dump_json(exclude={"metrics"}) for entry in cell.counters]
        counted = launches and repr((rules, launches, cell.counted.step, cell.counted.cache_control))
        return cls(
            name=cell.name,
            scenario=cell.scenario,
            cell_id=cell.cell_id,
            model_digest=cell.model_digest,
            engine=cell.engine.identity,
            workload=cell.workload.model_dump(mode="json"),
            measure=cell.measure.identity,
            clocks=cell.clocks.model_dump(mode="json", exclude_none=True),
            pairing=cell.pairing,
            tracing=sha256_hex(traced)[:12] if traced else "",
            counting=sha256_hex(counted)[:12] if counted else "",
        )

    def differences(self, other: Measured) -> tuple[str, ...]:
        """In what another cell measures something else, in words; empty where it is the same."""
        if self.cell_id == other.cell_id:
            return ()
        described = {"name", "scenario", "cell_id", "tracing", "counting"}
        mine, theirs = (dict(_flat(cell.model_dump(exclude=described))) for cell in (self, other))
        missing = "nothing"
        differing = tuple(
            f"{key}: {mine.get(key, missing)} against {theirs.get(key, missing)}"
            for key in dict.fromkeys([*mine, *theirs])
            if mine.get(key, missing) != theirs.get(key, missing)
        )
        return differing or (f"cell_id: {self.cell_id[:12]} against {other.cell_id[:12]}",)


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", canonical_json(value)


def profiled_otherwise(cell: Cell, other: Measured) -> tuple[str, ...]:
    """Why kernel times or counters must not be compared, where gates of a cell rest on them; empty where they may."""
    measured, gated, differences = Measured.of(cell), {gate.gate.measured.kind for gate in cell.gates}, []
    if "traced" in gated and measured.tracing != other.tracing:
        differences.append("traced with other roles, or for another number of iterations")
    if "counted" in gated and measured.counting != other.counting:
        differences.append("counted with other roles or launches, or in another window")
    return tuple(differences)

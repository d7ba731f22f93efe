"""One commit beside a good one, for whoever steers the search: ``git bisect run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from perfgate import gate
from perfgate.bisect.lost_gate import chosen, narrowed
from perfgate.errors import NotMeasuredError, UsageError
from perfgate.metrics.sides import Side
from perfgate.scenario.declaration import LoadedScenario, load
from perfgate.scenario.margins import Gate
from perfgate.scenario.subject import Subject

Said = Literal["good", "bad", "unknown"]
# Reason codes of a commit that builds and does not run
OF_THE_COMMIT = (
    "engine-import-failed", "engine-start-failed", "engine-start-timeout", "engine-failed", "request-failed",
    "preempted", "one-sided-failures", "metric-missing",
)  # fmt: skip


def compare_one(scenario: Path, subjects: Mapping[Side, Subject], cell: str, metric: str, loss: float | None,
                **means: Any) -> Said:  # fmt: skip
    """Measure a commit and the good one in pairs, by the gate's own rule.

    Args:
        scenario: The scenario's file.
        subjects: The good commit as ``base``, the other as ``head``.
        cell: Which cell, where the scenario has several.
        metric: Which timed gate, where it has several.
        loss: What was lost, as a ratio minus one; the margins are a third and two thirds of it then.
        means: See :func:`perfgate.gate.run`.

    Raises:
        UsageError: It is not said which of several cells or metrics.
        NotMeasuredError: The machine or the good commit is the reason why nothing was measured.
        PerfgateError: See :func:`perfgate.gate.run`.
    """
    loaded = load(scenario)
    cells, metrics = chosen(loaded, cell, metric)
    for option, found in (("--cell", [one.name for one in cells]), ("--metric", metrics)):
        if len(found) > 1:
            text = f"which of {', '.join(found)}? Every commit must be tested for the same"
            raise UsageError(text, where=str(scenario), remedy=f"Name it: {option} {found[0]!r}.")
    if loss is not None:
        loaded = _with_margins(loaded, metrics[0], loss)
        cells, _ = chosen(loaded, cell, metric)
    finished = gate.run([narrowed(loaded, cells[0], metrics[0])], dict(subjects), **means)
    verdict = finished.outcome.verdict
    if verdict in ("not-measured", "internal-error"):
        (own,) = finished.outcome.cells
        reason = next(iter(own.reasons), None)
        if reason is None or reason.code not in OF_THE_COMMIT:
            text = reason.text if reason else "nothing was measured"
            raise NotMeasuredError(text, where=str(finished.folder), code=reason.code if reason else "")
    return "bad" if verdict == "regressed" else "good" if verdict in ("pass", "improved") else "unknown"


def _with_margins(loaded: LoadedScenario, metric: str, loss: float) -> LoadedScenario:
    def own(one: Gate) -> Gate:
        if one.measured.name != metric:
            return one
        return one.model_copy(update={"ignorable": loss / 3, "must_catch": 2 * loss / 3, "floor": None})

    scenario = loaded.scenario.model_copy(update={"gates": tuple(map(own, loaded.scenario.gates))})
    return LoadedScenario(**{**vars(loaded), "scenario": scenario})

"""The cells of a plan as a run of some kind measures them: with times or without, and what is looked at beside."""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.errors import UsageError
from perfgate.metrics.kinds import known
from perfgate.scenario.expected_kernels import Expectation
from perfgate.scenario.plan import Cell
from perfgate.scenario.schedule import CallTrials, Sampling
from perfgate.scenario.workload import Workload


def as_taken(cells: Iterable[Cell], *, kernels_only: bool, exact_only: bool, host_profile: bool) -> tuple[Cell, ...]:
    """Cells as a run of some kind measures them, see :class:`perfgate.record.run_record.Run`.

    Raises:
        UsageError: Where the host's time of a server goes cannot be seen; or the room that looks was removed.
    """
    if kernels_only or exact_only:
        cells = map(_without_gates if kernels_only else _exact_part, cells)
    return tuple(map(_with_host_profile, cells) if host_profile else cells)


def _without_gates(cell: Cell) -> Cell:
    """The cell as a check of its kernels alone measures it: no gate, no counters."""
    known("traced")
    kernels = (cell.kernels or Expectation()).in_every_run()
    return cell.model_copy(update={"gates": (), "kernels": kernels, "counters": ()})


def _exact_part(cell: Cell) -> Cell:
    """The cell as a check of what repeats exactly measures it: no gate, and calls are counted whatever it declares."""
    known("called")
    kernels = cell.kernels.in_every_run() if cell.kernels else None
    return cell.model_copy(update={"gates": (), "kernels": kernels, "calls": cell.calls or CallTrials()})


def _with_host_profile(cell: Cell) -> Cell:
    if not isinstance(cell.workload, Workload):
        text = f"{cell.name} is a server: where its host's time goes can be seen of a batch alone"
        remedy = "Leave --host-profile out, or measure a scenario with a batch."
        raise UsageError(text, where=cell.source, remedy=remedy)
    known("sampled")
    return cell.model_copy(update={"sampled": Sampling()})

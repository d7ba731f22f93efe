"""What watching the GPU costs a decode step: the same build on both sides, telemetry on in the base, off in the head.

The words are those of ``perfgate``, so on a GPU machine::

    python benchmarks/sampler_cost.py run SCENARIO --base python=... --head python=...

A verdict of no difference within the scenario's margins is the result; docs/measurements.md keeps it.
"""

from __future__ import annotations

from collections.abc import Callable

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.capture.session import Session
from perfgate.cli.main import main
from perfgate.metrics.trial import Kind, Trial


class HeadUnwatched(Session):
    """A session that leaves the GPUs of the head's trials alone."""

    def _watched(self, job: Job, kind: Kind, show: Callable[[str], None]) -> Trial:
        return self._collect(job, kind, show) if job.role == "head" else super()._watched(job, kind, show)


if __name__ == "__main__":
    vars(gate)["Session"] = HeadUnwatched
    main()

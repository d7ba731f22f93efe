"""What watching the GPU costs a decode step: the same build on both sides, telemetry on in the base, off in the head.

The words are those of ``perfgate``, so on a GPU machine::

    python research/sampler_cost.py run SCENARIO --base python=... --head python=...

A verdict of no difference within the scenario's margins is the result; research/README.md keeps it.
"""

from __future__ import annotations

from collections.abc import Callable

from perfgate.capture import session
from perfgate.capture.gpus import Gpus
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.metrics.trial import Trial


class HeadUnwatched(Gpus):
    """GPUs that are left alone during the head's trials."""

    def watch(self, job: Job, take: Callable[[], Trial]) -> Trial:
        """See :class:`Gpus`."""
        return take() if job.side == "head" else super().watch(job, take)


if __name__ == "__main__":
    vars(session)["Gpus"] = HeadUnwatched
    main()

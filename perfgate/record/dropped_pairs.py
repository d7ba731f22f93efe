"""Dropped pairs: how many a cell may lose, and whether chance explains on which side its trials failed.

A dropped pair is replaced, so the trials that are judged are those that did not fail. Where a build fails when it is
slow, they are its fast ones: a head that throttles itself in half of its trials would pass by the other half. Drops
are therefore counted over the whole record, and a later visit does not forget them. Only pairs for which no engine was
started count for their own visit alone: nothing of the subject ran, so nothing of it can have chosen them.

Whose fault a failure was is not asked of the failure: heat can come from the room and from the head. It is asked of the
sides. What comes from outside falls on either side with probability one half, because the order of each pair is drawn.

One failure is perfgate's own, ``client-late``: the client could not send or read fast enough. It may well be so on one
side alone, that of more tokens a second, and what is left is chosen as above. So its pairs count as all others do; but
where most of those that end a cell are such, it ends as ``client-late``, and no subject is blamed.

Another is never counted, ``unfit-caches``: what was kept between visits let an engine not start. It is forgotten then,
so that this happens once to a build, before anything is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from perfgate import scipy_special as special
from perfgate.metrics.trial import KINDS, Failure, Kind, Trial
from perfgate.record.run_record import Record

LEVEL: Final = 0.004
"""Two-sided level of the binomial test after each dropped pair: looking after each of the first 24 ends 0.92 % of runs
of a fair machine (docs/error-rates.md)."""

HOPELESS: Final = (
    "internal-error", "gpu-lost", "subject-not-found", "engine-import-failed", "counters-not-countable",
    "counters-no-permission", "subject-changed",
)  # fmt: skip
"""Reason codes after which no further pair of a visit could fare better."""

CLIENT_LATE: Final = "client-late"

CHANGED: Final = "subject-changed"
"""Reason code of a build whose files changed while it was measured: nobody knows which of its trials ran what."""

UNKNOWN: Final = "subject-unknown"
"""The caution of a trial of which it is not known whether its build had changed."""

UNFIT_CACHES: Final = "unfit-caches"
"""Reason code of an engine that did not start with kept compile caches."""

OF_THE_GPU: Final = ("gpu-busy", "gpu-lost", "gpu-unreadable", "process-left")
"""Reason codes of trials that could fare better on another GPU."""


def met_unfit_caches(trial: Trial) -> bool:
    """Whether its engine did not start with kept compile caches, so that it is taken again."""
    return trial.failure is not None and trial.failure.code == UNFIT_CACHES


def chance(base: int, head: int) -> float:
    """Probability (the p value of the exact two-sided sign test) that dropped pairs are split at least so unevenly.

    Each failed first on either side, as by a fair coin.
    """
    return min(1.0, 2 * float(special.bdtr(min(base, head), base + head, 0.5)))


def overdrawn(record: Record, kind: Kind, visit: int | None = None) -> Failure | None:
    """Why no further pair of a kind may be taken, by those dropped so far; ``None`` where one may.

    Refused starts count for the visit of that index alone.
    """
    dropped = record.dropped_pairs(kind).values()
    failed = [t for t in dropped if (t.started or t.visit == visit) and not met_unfit_caches(t)]
    both, most = len(record.subjects) > 1, record.cell.measure.max_dropped_pairs
    of_subjects = [t for t in failed if t.failure and t.failure.code != CLIENT_LATE]
    of_the_client = 2 * len(of_subjects) < len(failed)  # most of them: one late client does not excuse a subject
    one_sided = both and _one_sided(failed, most)
    if both and _one_sided(of_subjects, most):
        code = "one-sided-failures"
    elif not one_sided and len(failed) <= most:
        return None
    elif of_the_client:
        code = CLIENT_LATE
    else:
        code = "one-sided-failures" if one_sided else "dropped-pairs"
    last = failed[-1].failure
    cause = f": {last.code}: {last.text}" if last else ""
    sided = unevenness(failed) if both else ""
    sides = " and ".join(sorted({trial.subject for trial in failed}))
    text = f"{len(failed)} dropped, failing on {sides}{f' ({sided})' if sided else ''}"
    return Failure(code=code, text=f"{text}; the last in trial {failed[-1].index}{cause}")


def _one_sided(failed: Sequence[Trial], most: int) -> bool:
    """Whether failures are those of one side: all of more than may be dropped, or more than chance puts on one side."""
    sides = Counter(trial.subject for trial in failed)
    return len(sides) == 1 if len(failed) > most else chance(sides["base"], sides["head"]) <= LEVEL


def unevenness(failed: Sequence[Trial]) -> str:
    """How often chance alone splits these first failures of pairs as unevenly, in words; empty where it always does."""
    sides = Counter(trial.subject for trial in failed)
    often = chance(sides["base"], sides["head"])
    split = ", ".join(f"{count} on {side}" for side, count in sorted(sides.items()))
    return f"{split}: chance alone does that in {often * 100:.2g} % of runs" if often < 1 else ""


def reopened(record: Record) -> Record:
    """The record as a later visit takes it up: why it stopped does not hold any longer.

    It does where too much was dropped, or a build changed while it was measured.
    """
    stops = {head: _for_good(comparison) for head, comparison in record.comparisons().items()}
    if not record.several:
        return record.model_copy(update={"stopped": stops[""]})
    whole = record.stopped if record.stopped and record.stopped.code == CHANGED else None
    return record.model_copy(update={"stopped": whole, "stops": {head: why for head, why in stops.items() if why}})


def _for_good(record: Record) -> Failure | None:
    if record.stopped and record.stopped.code == CHANGED:
        return record.stopped
    return next(filter(None, (overdrawn(record, kind) for kind in KINDS)), None)

"""Engines that did not start: when another start could only fail the same way.

A start that failed is tried again, because memory may be free by then. It is not where the engine's own error says that
its arguments are wrong, nor where two starts of one engine ended in the same error and none in between succeeded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfgate.metrics.trial import Failure, Kind, Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

CODES = ("engine-start-failed", "engine-import-failed")
_CONFIGURATION = re.compile(r"TypeError: \w*(EngineArgs|Config)\b.*argument|ValidationError: ")
"""How vLLM's own errors of arguments begin: a name that is none, a value that its checks refuse."""


@dataclass
class FailedStarts:
    """The starts that failed in a visit since the last that did not, by what was started.

    That is the engine of a cell, its subject and kind of trial.
    """

    _seen: dict[tuple[str, ...], list[Failure]] = field(default_factory=dict)

    def note(self, cell: Cell, subject: Subject, trial: Trial) -> None:
        """Remember a trial whose engine did not come up; one that did come up shows that it can."""
        engine = _engine(cell, subject, trial.kind)
        if trial.startup is not None:
            self._seen.pop(engine, None)
        elif trial.failure is not None and trial.failure.code in CODES:
            self._seen.setdefault(engine, []).append(trial.failure)

    def certain(self, cell: Cell, subject: Subject, label: str, kind: Kind) -> Failure | None:
        """The failure that another start of a build would end in, in words; ``None`` where one may be tried."""
        failures = self._seen.get(_engine(cell, subject, kind))
        if not failures:
            return None
        last = failures[-1]
        same = sum(failure.sentence == last.sentence for failure in failures)
        if same > 1:
            why = f"{same} starts ended in this error, so there is no other"
        elif _CONFIGURATION.match(last.sentence):
            why = "the engine refuses its arguments, so it is not started again"
        else:
            return None
        first, *more = last.text.splitlines()
        return Failure(code=last.code, text="\n".join([f"{label}: {first} ({why})", *more]))


def _engine(cell: Cell, subject: Subject, kind: Kind) -> tuple[str, ...]:
    """What decides how an engine starts, as a key; nothing of the workload does."""
    return kind, cell.model_digest, cell.engine.model_dump_json(), subject.model_dump_json()

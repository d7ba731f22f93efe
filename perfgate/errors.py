"""Errors with an exit status.

The tree::

    PerfgateError                what happened, where, what to do next        exit 1
    ├── UsageError               the command line or perfgate.toml is wrong   exit 2
    │   └── ScenarioError        a scenario file is wrong, with its problems  exit 2
    ├── RecordError              a record or run folder cannot be read        exit 2
    ├── NotComparableError       two measurements must not be compared        exit 21
    ├── NotMeasuredError         the machine could not measure                exit 22
    └── InterruptedRunError      stopped on request; what was measured stays  exit 130

Reason codes name why; :mod:`perfgate.reasons` holds their meaning and remedy, which an error with a code says unless
it has a better one for the case at hand.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, Literal

from perfgate.reasons import REASONS, current


class ExitStatus(enum.IntEnum):
    """The exit statuses of every perfgate command; ``verdict.json`` says the same in words."""

    PASS = 0
    INTERNAL_ERROR = 1
    USAGE = 2
    REGRESSED = 10
    INCONCLUSIVE = 20
    NOT_COMPARABLE = 21
    NOT_MEASURED = 22
    INTERRUPTED = 130
    UNREAD = 141
    """Nobody read the output to its end, as with ``| head``: what a shell shows of a program that SIGPIPE ends."""


Verdict = Literal["regressed", "internal-error", "not-measured", "not-comparable", "inconclusive", "advisory",
                  "pass", "improved"]  # fmt: skip
"""What ``verdict.json`` says of a run and its parts."""


class PerfgateError(Exception):
    """The root of all errors that perfgate raises on purpose.

    Args:
        text: What happened.
        where: The place: ``file:line:column``, a trial, a GPU. Empty where there is none.
        remedy: What to do next, where it is not what the code's page says: a command with names of this case.
        code: The reason code, where one applies.
    """

    exit_status: ClassVar[ExitStatus] = ExitStatus.INTERNAL_ERROR

    def __init__(self, text: str, *, where: str = "", remedy: str = "", code: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.where = where
        self.code = current(code)
        self.remedy = remedy or (REASONS[self.code].remedy if self.code in REASONS else "")

    @property
    def finding(self) -> str:
        """Place, then text: what records keep, since a report says the remedy of the code itself."""
        return f"{self.where}: {self.text}" if self.where else self.text

    def __str__(self) -> str:
        """The finding, then the remedy on a line of its own."""
        return f"{self.finding}\n  {self.remedy}" if self.remedy else self.finding


class UsageError(PerfgateError):
    """The command line or ``perfgate.toml`` asks for something that does not exist or cannot be."""

    exit_status = ExitStatus.USAGE


class RecordError(PerfgateError):
    """A record, run folder or CSV cannot be read, or is not what it claims to be."""

    exit_status = ExitStatus.USAGE


class NotComparableError(PerfgateError):
    """Two measurements differ in something that makes their comparison meaningless."""

    exit_status = ExitStatus.NOT_COMPARABLE


class NotMeasuredError(PerfgateError):
    """The machine or the engine did not allow a measurement."""

    exit_status = ExitStatus.NOT_MEASURED


class InterruptedRunError(PerfgateError):
    """The run was stopped by a signal; every finished trial is on disk."""

    exit_status = ExitStatus.INTERRUPTED


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an input file.

    Args:
        file: Path as the user gave it, or the option of the command line.
        line: Line, from 1; 0 where it is not a file.
        column: Column, from 1.
        field: Dotted path of the field, for example ``gates[0].ignorable``. Empty for the whole file.
        text: What is wrong, what was expected, and "did you mean" where something is near.
    """

    file: str
    line: int
    column: int
    field: str
    text: str

    def __str__(self) -> str:
        """``file:line:column: field: text``, the form editors jump to."""
        location = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: "
        return f"{location}{self.field}: {self.text}" if self.field else f"{location}{self.text}"


class ScenarioError(UsageError):
    """A scenario file is wrong; every problem found is listed, in file order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def stems_from_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: it may come while a library is imported that makes another of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def stopped(error: BaseException, remedy: str, more: str = "") -> InterruptedRunError:
    """What a stop says in the end.

    Args:
        error: What stopped the run, for which :func:`is_a_stop` holds.
        remedy: How to go on.
        more: What is to be added to its text.
    """
    text, code = (error.text, error.code) if isinstance(error, InterruptedRunError) else ("stopped", "interrupted")
    return InterruptedRunError(text + more, remedy=remedy, code=code)


def is_a_stop(error: BaseException) -> bool:
    """Whether a run was stopped, and did not fail: on request, out of budget, or in an import that Ctrl-C broke."""
    if isinstance(error, PerfgateError):
        return isinstance(error, InterruptedRunError)
    return stems_from_interrupt(error)

"""A ``verdict.json`` that somebody else may have written: size, form, numbers, words, and whether it fits itself.

Whoever runs code in a measuring job can write any verdict, so this cannot tell a true one from a false one. It makes
sure that what is shown of it is a report and nothing else: no markup, no link, no mention, no crash.
"""

from __future__ import annotations

import re
from typing import Any

from perfgate.errors import RecordError
from perfgate.judge.outcome import WORST_FIRST, CellOutcome, Outcome
from perfgate.machine.json_text import VERDICT
from perfgate.machine.versioned_json import parse_content, validated
from perfgate.models import Note
from perfgate.reasons import CODE
from perfgate.report.document import printable

LIMIT_BYTES = VERDICT.mib << 20
DEPTH = 24
TEXT = 20_000  # characters of one text; an engine's last lines are fewer
LARGEST = 1e18
BREAK = "\u200b"  # a space without width: invisible, and no link goes on behind it
# Each match is broken before its last character
_LINKS = re.compile(r"(?i):/(?=/)|www\.|#\w|gh-(?=\d)")


def read_verdict(data: bytes, where: str) -> Outcome:
    """The outcome, fit to be rendered.

    Raises:
        RecordError: It is too large, no JSON, no outcome of this version, or contradicts itself.
    """
    content = parse_content(data, Outcome.model_fields["format"].default, where, VERDICT)
    try:
        content = _harmless(content, DEPTH)
    except ValueError as error:
        raise RecordError(f"not a verdict: {error}", where=where) from error
    outcome = validated(Outcome, content, where, strict=True)
    _check_consistent(outcome, where)
    return outcome.model_copy(update={"cells": tuple(map(_without_commands, outcome.cells))})


def unlinked(text: str) -> str:
    """Text that is printable and of which GitHub makes no link, be it to an address, an issue or a pull request.

    A backslash does not keep ``#1`` from becoming one: GitHub seeks references in what Markdown has become.
    """
    return _LINKS.sub(lambda found: f"{found[0][:-1]}{BREAK}{found[0][-1]}", printable(text))


def _without_commands(cell: CellOutcome) -> CellOutcome:
    """No reader is offered a command that an artifact made up: commands go on with a run, and the cell names none."""
    setting = cell.setting.model_copy(update={"run": ""}) if cell.setting else None
    return cell.model_copy(update={"setting": setting})


def _check_consistent(outcome: Outcome, where: str) -> None:
    """No headline is better than what is below it."""
    good = ("pass", "improved")
    claims = [(outcome.verdict, [cell.verdict for cell in outcome.cells])]
    for cell in outcome.cells:
        counted = [cell.counters.verdict] if cell.counters else []
        claims.append((cell.verdict, [*(gate.verdict for gate in cell.gates), *counted]))
    wrong = any(verdict in good and not set(below) <= set(good) for verdict, below in claims)
    wrong |= outcome.verdict in good and not outcome.cells
    if wrong or outcome.exit_status != WORST_FIRST[outcome.verdict]:
        raise RecordError("not a verdict: it contradicts itself", where=where)


def _harmless(value: Any, depth: int) -> Any:
    """The same value, its texts printable, cut, and with nothing in them that GitHub makes a link of."""
    if depth < 0:
        raise ValueError(f"nested deeper than {DEPTH} levels")
    if isinstance(value, str):
        return unlinked(value[:TEXT])
    if isinstance(value, list):
        return [_harmless(item, depth - 1) for item in value]
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ValueError("a number is too large")
    if isinstance(value, dict):
        if value.keys() >= Note.model_fields.keys() and not re.fullmatch(CODE, str(value["code"])):
            raise ValueError("a note has an unknown code")
        return {_harmless(key, depth - 1): _harmless(item, depth - 1) for key, item in value.items()}
    return value

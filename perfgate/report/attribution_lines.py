"""Where a difference in decode steps comes from, as a table and a sentence, in microseconds a step."""

from __future__ import annotations

from collections.abc import Sequence

from perfgate.trace.attribution import Attribution, Part
from perfgate.units import format_value

HEADINGS = ("decode step", "base us", "head us", "difference us", "share")
MOST_ROLES = 6
"""Roles with a row of their own; what the others changed by is one row, so that the table still adds up."""
SHOWN_S = 0.05e-6
"""A smaller difference is shown as 0.0 us, so it needs no row."""
TOLD_S = 1e-6
"""A smaller difference is not worth a place in the sentence."""
SHARED = 0.001
"""A difference that is a smaller share of the step has no shares itself: its parts are noise."""
TOLD_SHARE = 0.1
"""Nor is a smaller share of the whole difference."""


def attribution_rows(found: Attribution) -> list[tuple[str, ...]]:
    """Rows under :data:`HEADINGS`: what changed, roles before idle time; all the rest; sum and residual."""
    moved = [part for part in found.parts if abs(part.difference_s) >= SHOWN_S]
    shown = [part for part in moved if part.kind == "kernels"][:MOST_ROLES]
    shown += [part for part in moved if part.kind != "kernels"]
    rows = [_row(part.name, part.base_s, part.head_s, part.difference_s, found) for part in shown]
    others = _sums([part for part in found.parts if part not in shown])
    if max(map(abs, others)) >= SHOWN_S:
        rows.append(_row("others", *others, found))
    rows.append(_row("traced step", found.base_s, found.head_s, found.difference_s, found))
    if found.measured_s is not None and found.residual_s is not None:
        rows.append(("untraced step", "", "", _us(found.measured_s), ""))
        rows.append(("residual", "", "", _us(found.residual_s), ""))
    return rows


def attribution_sentence(found: Attribution) -> str:
    """What made the step longer or shorter, and what the host had to do with it."""
    told = [_told(part) for part in found.parts if part.kind == "kernels" and _matters(part.difference_s, found)]
    for kind, words in (("busy", "copies"), ("idle", "idle")):
        _, _, difference_s = _sums([part for part in found.parts if part.kind == kind])
        if _matters(difference_s, found):
            told.append(f"{words} {_us(difference_s)} us")
    causes = ", ".join(told) or "no part changed by as much as 1 us"
    return f"{_us(found.difference_s)} us a step: {causes}{_host(found)}."


def _told(part: Part) -> str:
    more = (part.head_launches or 0) - (part.base_launches or 0)
    count = f"{abs(more)} launch{'es' * (abs(more) > 1)} {'more' if more > 0 else 'fewer'}"
    return f"{part.name} {_us(part.difference_s)} us{f' ({count})' if more else ''}"


def _host(found: Attribution) -> str:
    if found.head_slack_s is None:
        return ""
    if found.head_slack_s > 0 and not found.host_s:
        return f"; the host had {format_value(found.head_slack_s, 's')} to spare"
    who = "head" if found.head_slack_s <= 0 else "base"
    return f"; the device of {who} waited for the host, whose share is {_us(found.host_s)} us"


def _matters(difference_s: float, found: Attribution) -> bool:
    return abs(difference_s) >= max(TOLD_S, TOLD_SHARE * abs(found.difference_s))


def _sums(parts: Sequence[Part]) -> tuple[float, float, float]:
    return sum(p.base_s for p in parts), sum(p.head_s for p in parts), sum(p.difference_s for p in parts)


def _row(name: str, base_s: float, head_s: float, difference_s: float, found: Attribution) -> tuple[str, ...]:
    whole = found.difference_s
    share = f"{difference_s / whole * 100:.0f} %" if abs(whole) >= SHARED * found.base_s else "-"
    return (name, f"{base_s * 1e6:.1f}", f"{head_s * 1e6:.1f}", _us(difference_s), share)


def _us(seconds: float) -> str:
    """With its sign; what rounds to zero is ``+0.0``."""
    shown = f"{seconds * 1e6:+.1f}"
    return "+0.0" if float(shown) == 0 else shown

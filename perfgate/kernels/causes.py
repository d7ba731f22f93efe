"""Why decode steps changed: where the time went, what ncu counted of it, and the sentences that both make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfgate.judge.outcome import CellOutcome
from perfgate.kernels.outcomes import CounterRow, CountersOutcome
from perfgate.metrics.catalogue import split_name
from perfgate.metrics.sides import SIDES
from perfgate.report.document import Section
from perfgate.report.story import OF_THE_STEP
from perfgate.trace.attribution import GRAPH_IDLE, OF_NO_HOST, SHARED, WAITING, Attribution, Part
from perfgate.units import format_si, format_value, percent, plural

ATTRIBUTED = ("decode step", "base us", "head us", "difference us", "share")
COUNTED = ("counted kernel", "role", "launches", "bytes", "DRAM", "SM", "occupancy", "times its roof", "bound")
COUNTED_GIVE_WAY = (6, 5, 4, 8, 2)  # columns of the counted kernels that a narrow terminal shows below their row
MOST_ROLES = 6  # roles with a row of their own; what the others changed by is one row, so that the table still adds up
SHOWN_S = 0.05e-6  # a smaller difference is shown as 0.0 us, so it needs no row
COPYING, IDLE = "copies take", "the device is idle for"
"""What sentences say of all copies, and of all idle time in which the host may have a part."""
GREW = {GRAPH_IDLE: "gaps within CUDA graphs take", WAITING: "waiting for other ranks takes"}
"""The same of idle time that no host can shorten."""
TOLD_S = 1e-6  # a smaller difference is not worth a place in the sentence
TOLD_SHARE = 0.1  # nor is a smaller share of the whole difference
MOST_ROWS = 12  # kernels with a row of their own, those that move most bytes; the others are counted in one line
SHOWN_RATIO = 0.005  # a difference of bytes that is a smaller share is shown as one figure: repeats differ by as much
SHOWN_POINTS = 5.0  # the same for shares in percent
SAME_BYTES = ": same bytes"  # the end of a sentence about a role whose counters did not change
SHARES = ("dram_throughput", "sm_throughput", "occupancy")  # counters in percent that have a column


def attribution_section(change: Attribution) -> Section:
    """The parts of a difference in microseconds a step, and the sentence that they make."""
    return Section(rows=[ATTRIBUTED, *_part_rows(change)], lines=(attribution_sentence(change),), importance=2)


def _part_rows(change: Attribution) -> list[tuple[str, ...]]:
    """What changed, roles before idle time; all the rest; sum and residual."""
    moved = [part for part in change.parts if abs(part.difference_s) >= SHOWN_S]
    shown = [part for part in moved if part.kind == "kernels"][:MOST_ROLES]
    shown += [part for part in moved if part.kind != "kernels"]
    rows = [_part_row(part.name, part.base_s, part.head_s, part.difference_s, change) for part in shown]
    others = _sums([part for part in change.parts if part not in shown])
    if max(map(abs, others)) >= SHOWN_S:
        rows.append(_part_row("others", *others, change))
    rows.append(_part_row("traced step", change.base_s, change.head_s, change.difference_s, change))
    if change.measured_s is not None and change.residual_s is not None:
        rows.append(("untraced step", "", "", _us(change.measured_s), ""))
        rows.append(("residual", "", "", _us(change.residual_s), ""))
    return rows


def attribution_sentence(change: Attribution, *, grown: bool = False) -> str:
    """What made the step longer or shorter, the largest part first, and what the host had to do with it.

    With ``grown`` only what made it longer: what took less time, and a base that waited, does not cause that.
    """
    if not change.misled:
        host = _late(change) if grown else _host(change)
        return f"A traced decode step takes {_longer(change.difference_s)}: {_moved(change.parts, grown=grown)}{host}."
    moved = _moved(change.device_parts, grown=grown)
    step = f"A decode step takes {_longer(change.told_s)}, of which the device itself works {_by(change.device_s)}"
    return f"{step}: {moved}{_late(change)}{'' if grown else f'; {_apart(change)}'}."


def _moved(parts: Sequence[Part], *, grown: bool) -> str:
    """The parts that matter in a difference, the largest first."""
    copies = [part for part in parts if part.kind == "busy"]
    idle = [part for part in parts if part.kind == "idle" and part.name not in OF_NO_HOST]
    changes = [(part.difference_s, _kernels(part), _launches(part)) for part in parts if part.kind == "kernels"]
    changes += [(part.difference_s, GREW[part.name], "") for part in parts if part.name in OF_NO_HOST]
    changes += [(_sums(copies)[2], COPYING, ""), (_sums(idle)[2], IDLE, "")]
    whole_s = sum(part.difference_s for part in parts)
    moved = [(seconds, f"{what} {_by(seconds)}{launches}") for seconds, what, launches in changes
             if _matters(seconds, whole_s) and (seconds > 0 or not grown)]  # fmt: skip
    shown = [text for _, text in sorted(moved, key=lambda part: -abs(part[0]))]
    return ", ".join(shown) or f"no part {'grew' if grown else 'changed'} by as much as 1 us"


def _kernels(part: Part) -> str:
    return f"{part.name.rpartition(': ')[2].replace('+', ' and ')} kernels take"


def _longer(seconds: float) -> str:
    return f"{format_value(abs(seconds), 's')} {'less' if seconds < 0 else 'longer'}"


def _by(seconds: float) -> str:
    return f"{format_value(abs(seconds), 's')} {'less' if seconds < 0 else 'more'}"


def _launches(part: Part) -> str:
    more = (part.head_launches or 0) - (part.base_launches or 0)
    return f" ({plural(abs(more), 'launch', 'es')} {'more' if more > 0 else 'fewer'})" if more else ""


def _late(change: Attribution) -> str:
    """The host's share, where the head's was late and that made the step longer."""
    return _host(change) if change.head_late and change.host_s > 0 and _matters(change.host_s, change.told_s) else ""


def _apart(change: Attribution) -> str:
    """For how long a device waits in traces that mislead."""
    idle = " and ".join(f"{format_value(s, 's')} on {side}" for side, s in zip(SIDES, change.waits_s, strict=True))
    ranks = " or waits for other ranks" if any(part.name == WAITING for part in change.parts) else ""
    step = f"so that a step takes {_longer(change.difference_s)}"
    return f"traced, the device is idle outside graphs{ranks} for {idle}, {step}"


def _host(change: Attribution) -> str:
    if change.head_slack_s is None:
        return ""
    if not change.head_late and not change.host_s:
        return f"; the host had {format_value(change.head_slack_s, 's')} to spare"
    if abs(change.host_s) < TOLD_S:  # late on both sides alike
        return ""
    who = "head" if change.head_late else "base"
    return f"; the device of {who} waited for the host, whose share is {_us(change.host_s)} us"


def _matters(difference_s: float, whole_s: float) -> bool:
    return abs(difference_s) >= max(TOLD_S, TOLD_SHARE * abs(whole_s))


def _sums(parts: Sequence[Part]) -> tuple[float, float, float]:
    return sum(p.base_s for p in parts), sum(p.head_s for p in parts), sum(p.difference_s for p in parts)


def _part_row(name: str, base_s: float, head_s: float, difference_s: float, change: Attribution) -> tuple[str, ...]:
    whole = change.difference_s
    has_share = whole and abs(whole) >= SHARED * change.base_s and not change.misled
    share = percent(round(difference_s / whole, 2)) if has_share else "-"
    return (name, f"{base_s * 1e6:.1f}", f"{head_s * 1e6:.1f}", _us(difference_s), share)


def _us(seconds: float) -> str:
    """With its sign; what rounds to zero is ``+0.0``."""
    shown = f"{seconds * 1e6:+.1f}"
    return "+0.0" if float(shown) == 0 else shown


def counters_section(counted: CountersOutcome) -> Section:
    """The kernels that move most bytes, with both sides' figures where they differ; a sentence a role that changed."""
    largest = sorted(counted.rows, key=lambda row: -max(side.get("dram_bytes", 0.0) for side in (row.base, row.head)))
    chosen = {id(row) for row in largest[:MOST_ROWS]}
    rows = [COUNTED, *(_counter_row(row) for row in counted.rows if id(row) in chosen)]
    lines = []
    if rest := [row for row in counted.rows if id(row) not in chosen]:
        moved = format_si(sum((row.head or row.base).get("dram_bytes", 0.0) for row in rest), "B", ".4g")
        lines.append(f"and {plural(len(rest), 'kernel')} more that move {moved} a launch together")
    lines += [text for part, text in counted.sentences.items() if "/" not in part and not text.endswith(SAME_BYTES)]
    return Section(rows=rows, give_way=COUNTED_GIVE_WAY, lines=tuple(lines), importance=2)


def what_moved(cell: CellOutcome) -> list[str]:
    """The sentence about the traced steps of a cell, where there are some."""
    return [attribution_sentence(cell.attribution)] if cell.attribution else []


def why_longer(cell: CellOutcome) -> list[str]:
    """What made decode steps longer; nothing where they did not get longer."""
    if cell.attribution is None or cell.attribution.told_s <= 0:
        return []
    return [f"Why: a{attribution_sentence(cell.attribution, grown=True).removeprefix('A')}"]


def why_slower(cell: CellOutcome) -> list[str]:
    """For each role that a regressed gate is about the sentence that its counters give; a step's is its largest part.

    A role whose counters did not change has one too: that it moves the same bytes is news.
    """
    if cell.counters is None:
        return []
    blocked = [split_name(gate.metric) for gate in cell.gates if gate.verdict == "regressed"]
    parts = [part or (_largest_part(cell) if metric in OF_THE_STEP else None) for metric, part in blocked]
    sentences = (cell.counters.sentences.get(part) for part in dict.fromkeys(parts) if part)
    return [text for text in sentences if text]


def what_grew(cell: CellOutcome) -> list[str]:
    """What takes longer in the traced steps of a cell, where there are some."""
    return [attribution_sentence(cell.attribution, grown=True)] if cell.attribution else []


def counters_changed(cell: CellOutcome) -> list[str]:
    """What ncu counted otherwise."""
    return [text for text in cell.counters.sentences.values() if not text.endswith(SAME_BYTES)] if cell.counters else []


def _largest_part(cell: CellOutcome) -> str | None:
    """The role that lengthened the step most."""
    parts = [part for part in cell.attribution.parts if part.kind == "kernels"] if cell.attribution else []
    grown = max(parts, key=lambda part: part.difference_s, default=None)
    return grown.name if grown is not None and grown.difference_s > 0 else None


def _counter_row(row: CounterRow) -> tuple[str, ...]:
    sides = {name: (row.base.get(name), row.head.get(name)) for name in ("dram_bytes", *SHARES)}
    least = SHOWN_RATIO * max(value or 0.0 for value in sides["dram_bytes"])
    return (
        f"{row.kernel} ({row.place})" if row.place else row.kernel,
        row.role,
        " to ".join(dict.fromkeys(str(row.launches.get(side, "-")) for side in SIDES)),
        _both(sides["dram_bytes"], lambda value: format_si(value, "B", ".4g"), least),
        *(_both(sides[name], "{:.0f} %".format, SHOWN_POINTS) for name in SHARES),
        _both([row.distance.get(side) for side in SIDES], "{:.2g}".format),
        " to ".join(dict.fromkeys(row.bound.values())),
    )


def _both(sides: Sequence[float | None], show: Callable[[float], str], least: float = 0.0) -> str:
    """Base to head; one figure where they differ by less than ``least``, look the same, or one is not known."""
    figures = [side for side in sides if side is not None]
    shown = figures[:1] if figures and max(figures) - min(figures) < least else figures
    return " to ".join(dict.fromkeys(map(show, shown))) or "-"

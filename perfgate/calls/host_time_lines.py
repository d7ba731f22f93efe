"""Where the host's time goes: figures of a step, the functions that differ as in a diff, and the head's flame graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfgate.calls.call_difference import named
from perfgate.calls.host_difference import HostOutcome
from perfgate.calls.host_profile import HostProfile, Node
from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.sides import SIDES
from perfgate.report.chart import WIDTH, Chart, Mark, label, rect
from perfgate.report.document import Section
from perfgate.trace.difference import Change
from perfgate.units import format_value, plural

HEADINGS = ("host, a sampled decode step", "base", "head", "difference")
ROWS: tuple[tuple[str, str, str], ...] = (
    ("wall_ns", "takes", "us"), ("thread_ns", "its thread works", "us"), ("process_ns", "all threads work", "us"),
    ("waits", "it waits", "times"), ("preemptions", "it is preempted", "times"),
    ("minor_faults", "page faults", ""), ("major_faults", "page faults that read a disk", ""),
    ("collections", "garbage is collected", "times"), ("collected_ns", "which takes", "us"),
    ("moves", "it moves to another CPU", "times"),
)  # fmt: skip
NS_PER_US = 1000.0
ROW, MOST_ROWS, WIDE = 16.0, 40, 30.0
"""Of the flame graph: how high a row is, how many are drawn, and from which width on a node has its name."""
LETTER = 6.2
MOST_NAMED = 20


def of_cell(cell: CellOutcome) -> Iterator[Section]:
    """What a report says of it; nothing where nothing was sampled."""
    if host := cell.fact("host"):
        yield host_section(host)


def on_page(cell: CellOutcome, evidence: Evidence | None) -> Iterator[Section]:
    """The same beside the flame graph."""
    if host := cell.fact("host"):
        chart = flame_chart(evidence, host) if evidence is not None and evidence.sides else None
        yield replace(host_section(host), lead="where the host's time goes", chart=chart)


def host_section(host: HostOutcome) -> Section:
    """Figures beside each other, then what differs, then where the threads ran."""
    rows = [HEADINGS, *(row for name, words, unit in ROWS if (row := _row(host, name, words, unit)))]
    lines = [*_differing(host), *_imports(host), *(f"{side}: {words}" for side, words in host.placement.items())]
    return Section(rows=rows, lines=tuple(lines), importance=2)


def _row(host: HostOutcome, name: str, words: str, unit: str) -> tuple[str, ...] | None:
    scale = NS_PER_US if unit == "us" else 1.0
    values = [value / scale if (value := host.figures[name].get(side)) is not None else None for side in SIDES]
    base, head = values
    if not (base or head):
        return None
    shown = [("-" if value is None else _figure(value, unit)) for value in values]
    return (words, *shown, "-" if base is None or head is None else _figure(head - base, unit, "+"))


def _figure(value: float, unit: str, sign: str = "") -> str:
    return f"{value:{sign}.{1 if unit == 'us' else 3}f} {unit}".rstrip()


def _differing(host: HostOutcome) -> Iterator[str]:
    """What differs, in a sentence and a line a function; that nothing does is told too."""
    if len(host.steps) < len(SIDES):
        yield f"only the {' and '.join(host.steps)} was sampled: nothing is compared"
        return
    seen = " and ".join(f"{plural(steps, 'step')} of {side}" for side, steps in host.steps.items())
    if not host.functions:
        yield f"no function differs by more than chance in {seen}"
        return
    yield f"the thread's own work differs by more than chance in {plural(len(host.functions), 'function')} ({seen}):"
    for change in host.functions:
        sides = " -> ".join(format_value(value, "s") for value in (change.base_s, change.head_s))
        yield Change(named(change.function, change.was), (change.more_s,), (f"{sides} a step",), change.more_s).line


def _imports(host: HostOutcome) -> Iterator[str]:
    """What starting an engine imports, and packages of which the sides import another number of modules."""
    imported = {side: totals for side, totals in host.imported.items() if totals[0]}
    if imported:
        sides = " and ".join(f"{n} modules in {spent_s:.1f} s on the {side}" for side, (n, spent_s) in imported.items())
        yield f"a start imports {sides}"
    for change in host.imports if len(imported) == len(SIDES) else ():
        base, head = change.modules
        spent = " -> ".join(format_value(spent_s, "s") for spent_s in change.spent_s)
        yield Change(change.package, (head - base,), (f"{base} -> {head} modules", spent)).line


def flame_chart(evidence: Evidence, host: HostOutcome) -> Chart | None:
    """The head's stacks, or those of the only side: each row is called by the one above, widths are work.

    Functions that differ have a colour of their own.
    """
    sides = evidence.held("host")
    profile = next((profiles[-1] for profiles in (sides.get(side) for side in reversed(SIDES)) if profiles), None)
    if profile is None or not profile.tree:
        return None
    looks = {c.function: "bar fill bad" if c.head_s > c.base_s else "bar fill good" for c in host.functions}
    marks: list[Mark] = []
    deepest = 0.0
    for node, x, y, width in _placed(profile):
        name, text = (
            node.function.rpartition(".")[2],
            f"{node.function}: {node.work_ns / profile.steps / NS_PER_US:.1f} us",
        )
        marks.append(rect(looks.get(node.function, "part part-rest"), x, y, (width, ROW - 1), text))
        if width >= WIDE:
            marks.append(label("note", x + 2, y + ROW - 5, name[: int(width / LETTER)]))
        deepest = max(deepest, y + ROW)
    functions = sorted(profile.functions.items(), key=lambda item: (-item[1].work_ns, item[0]))[:MOST_NAMED]
    table = [("function", "samples", "own work us a step")]
    table += [(name, str(seen.samples), f"{seen.work_ns / profile.steps / NS_PER_US:.1f}") for name, seen in functions]
    description = f"{plural(profile.steps, 'decode step')}; most work of its own has {functions[0][0]}."
    legend = (
        ("fill bad", "takes longer than on the base"),
        ("fill good", "takes less"),
        ("part-rest", "does not differ"),
    )
    return Chart("Where the host's time goes", description, deepest, tuple(marks), legend, table)


def _placed(profile: HostProfile) -> Iterator[tuple[Node, float, float, float]]:
    """Each node with its place and width: children beside each other below their parent, the widest first."""
    scale = WIDTH / max(sum(node.work_ns for node in profile.tree if not node.parent), 1)
    ends: dict[int, float] = {0: 0.0}
    depths: dict[int, int] = {0: 0}
    for number, node in enumerate(profile.tree, 1):
        x, depth, width = ends[node.parent], depths[node.parent], node.work_ns * scale
        ends[node.parent] = x + width
        ends[number], depths[number] = x, depth + 1
        if depth < MOST_ROWS:
            yield node, x, depth * ROW, width

"""Charts of what a record holds: pairs, iterations, tokens and telemetry."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import CellOutcome, GateOutcome
from perfgate.machine.telemetry import GpuTelemetry, Spread
from perfgate.metrics.catalogue import find_metric
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import Trial
from perfgate.report.chart import WIDTH, Chart, Mark, Scale, dots, label, line, polyline, rect
from perfgate.stats import two_states
from perfgate.units import format_value, plural, signed_percent

LEFT, RIGHT = 74.0, WIDTH - 16.0
STATES = {two_states.SLOW: "slow", two_states.FAST: "fast", two_states.CUT: "cut"}
STATE_LEGEND = (
    ("dots base plain large", "base"),
    ("dots plain large", "head"),
    ("dots fast large", "fast state"),
    ("dots slow large", "slow state"),
    ("dots mixed large", "sides in different states"),
    ("dots cut large", "no state known"),
)
SIDE_LEGEND = (("dots base large", "base"), ("dots head large", "head"))
LINE_LEGEND = (("curve base", "base"), ("curve head", "head"))
DOT_LEGEND = (("dots base medium", "base"), ("dots head medium", "head"))
MOST_TRIALS = 200  # of more trials the last are shown
MOST_LETTERS = 40  # trials that have a letter each below them
MOST_DOTS, MOST_POINTS = 6000, 1000  # of a chart of iterations, and of one side's line
MOST_COLUMNS = 150  # decode steps of an iteration that are told one by one
EXTREMES = ("shortest", "median", "longest")

Looks = list[tuple[list[str], list[str]]]


def states_of(evidence: Evidence, cell: CellOutcome) -> Looks | None:
    """The state of each iteration of each pair's base and head; ``None`` where the machine had one."""
    labeller = evidence.labeller
    if cell.states is None or labeller is None or not evidence.cell.gates:
        return None
    states = labeller.at(len(labeller.pairs))
    if states is None:
        return None
    return [tuple([STATES[int(state)] for state in side] for side in pair) for pair in states.labels]  # type: ignore[misc]


def usual_state(looks: Sequence[str]) -> str:
    """The state of a trial: that of most of its iterations that have one."""
    placed = [look for look in looks if look != "cut"]
    return max(("fast", "slow"), key=placed.count) if placed else "cut"


def pairs_chart(evidence: Evidence, gate: GateOutcome, states: Looks | None) -> Chart | None:
    """Base and head of each pair in the order they were taken, and their difference below against the margins."""
    metric = find_metric(gate.metric)
    pairs = metric.known_pairs(evidence.pairs(metric.kind))[-MOST_TRIALS:]
    if not pairs:
        return None
    x = Scale(-0.6, len(pairs) - 0.4, LEFT, RIGHT)
    y = Scale.around([value for _, *pair in pairs for value in pair], 190, 16)
    changes = [head / base - 1 for _, base, head in pairs]
    below = Scale.around([*changes, 0.0, gate.limit], 330, 232)
    marks = [*_grid(y, lambda v: format_value(v, gate.unit)), *_grid(below, lambda v: signed_percent(v, 1), 6)]
    marks += [
        line("axis", (LEFT, below(0)), (RIGHT, below(0))),
        line("must", (LEFT, below(gate.limit)), (RIGHT, below(gate.limit))),
        label("panel", LEFT, 222, "head beside base"),
    ]
    table: list[tuple[str, ...]] = [("pair", "base", "head", "change", *(["states"] if states else []))]
    for n, (pair, base, head) in enumerate(pairs):
        sides = states[pair] if states and gate.kind == "timed" and pair < len(states) else None
        looks = [usual_state(side) for side in sides] if sides else ["", ""]
        caption = f"pair {pair + 1}: {format_value(base, gate.unit)} to {format_value(head, gate.unit)}, "
        caption += signed_percent(changes[n]) + (f", {looks[0]} and {looks[1]}" if sides else "")
        marks += [line("link", (x(n), y(base)), (x(n), y(head)), caption),
                  dots(f"head {looks[1]} large", [(x(n), y(head))], caption),
                  *_hollow(f"base {looks[0]} large", x(n), y(base), caption),
                  line("stem", (x(n), below(0)), (x(n), below(changes[n])), caption),
                  dots(f"head {looks[0] if looks[0] == looks[1] else 'mixed' if sides else ''} large",
                       [(x(n), below(changes[n]))], caption)]  # fmt: skip
        if len(pairs) <= 24 or n % 5 == 0:  # noqa: PLR2004 (labels would touch)
            marks.append(label("tick", x(n), 348, str(pair + 1), "middle"))
        told_states = [" and ".join(looks) if sides else "-"] if states else []
        table.append((str(pair + 1), format_value(base, gate.unit), format_value(head, gate.unit),
                      signed_percent(changes[n]), *told_states))  # fmt: skip
    marks.append(label("axis-title", (LEFT + RIGHT) / 2, 366, "pair, in the order they were taken", "middle"))
    slower = sum(change > 0 if gate.better == "lower" else change < 0 for change in changes)
    seen = f"{gate.metric} in {len(pairs)} pairs; the head is worse than its base in {slower} of them."
    legend = (STATE_LEGEND if states else SIDE_LEGEND) + (("line must", "must_catch margin"),)
    return Chart(f"Pairs in order: {gate.metric}", seen, 372, tuple(marks), legend, table)


def _hollow(look: str, x: float, y: float, caption: str) -> list[Mark]:
    """A ring: a dot with a smaller one of the page's colour on it."""
    return [dots(look, [(x, y)], caption), dots("hole", [(x, y)], caption)]


def _grid(scale: Scale, show: Callable[[float], str], most: int = 4) -> list[Mark]:
    return [mark for tick in scale.ticks(most) for mark in (
        line("grid", (LEFT, scale(tick)), (RIGHT, scale(tick))),
        label("tick", LEFT - 8, scale(tick) + 4, show(tick), "end"),
    )]  # fmt: skip


def _trials_in_order(evidence: Evidence) -> list[tuple[Trial, int, int]]:
    """Timed trials of valid pairs as they were taken, with pair and side."""
    trials = [(trial, n, side) for n, pair in enumerate(evidence.pairs("timed")) for side, trial in enumerate(pair)]
    return sorted(trials, key=lambda row: row[0].index)[-MOST_TRIALS:]


def iterations_chart(evidence: Evidence, states: Looks | None) -> Chart | None:
    """The median decode step of every iteration, trial by trial."""
    rows = [
        (trial, n, side, [statistics.median(i.itl_ns) / 1e9 if i.itl_ns else None for i in trial.iterations])
        for trial, n, side in _trials_in_order(evidence)
    ]
    values = [value for *_, medians in rows for value in medians if value]
    if not values:
        return None
    y = Scale.around(values, 210, 16)
    marks = _grid(y, lambda v: format_value(v, "s"), 5)
    width, every = (RIGHT - LEFT) / len(rows), -(-len(values) // MOST_DOTS)
    points: dict[str, list[tuple[float, float]]] = {}
    table: list[tuple[str, ...]] = [("trial", "side", "pair", "lowest", "median", "highest")]
    for n, (trial, pair, side, medians) in enumerate(rows):
        begin = LEFT + n * width
        ends = _lowest_median_highest([value for value in medians if value])
        caption = f"trial {trial.index}, {SIDES[side]}, pair {pair + 1}"
        caption += f": {ends[0]} to {ends[2]}, median {ends[1]}" if ends else ""
        marks.append(rect(("plain", "stripe")[side], begin, 16, (width, 194), caption))
        if len(rows) <= MOST_LETTERS or n % 10 == 0:
            text = "BH"[side] if len(rows) <= MOST_LETTERS else str(trial.index)
            marks.append(label("tick", begin + width / 2, 226, text, "middle"))
        trial_states = states[pair][side] if states and pair < len(states) else []
        for k, value in list(enumerate(medians))[::every]:
            look = f"{SIDES[side]} {trial_states[k] if k < len(trial_states) else ''} small"
            if value:
                points.setdefault(look, []).append((begin + width * (k + 1) / (len(medians) + 1), y(value)))
        if ends:
            table.append((str(trial.index), SIDES[side], str(pair + 1), *ends))
    marks += [dots(look, own_points) for look, own_points in points.items()]
    words = (
        "trials in the order they were taken: B base, H head" if len(rows) <= MOST_LETTERS else "number of the trial"
    )
    marks.append(label("axis-title", (LEFT + RIGHT) / 2, 244, words, "middle"))
    what = evidence.cell.work.iteration
    seen = f"{plural(len(values), what)} of {plural(len(rows), 'trial')}, from {format_value(min(values), 's')} to "
    seen += f"{format_value(max(values), 's')}" + (f"; one in {every} is drawn." if every > 1 else ".")
    legend = (*STATE_LEGEND[2:4], STATE_LEGEND[5]) if states else DOT_LEGEND
    return Chart(f"{what.capitalize()}s of every trial", seen, 250, tuple(marks), legend, table)


def _lowest_median_highest(seconds: Sequence[float]) -> list[str]:
    shown = (min(seconds), statistics.median(seconds), max(seconds)) if seconds else ()
    return [format_value(value, "s") for value in shown]


def tokens_chart(evidence: Evidence) -> Chart | None:
    """Every decode step of the middle iteration of the last pair; of a window, the gaps between tokens by size."""
    pairs = [pair for pair in evidence.pairs("timed") if all(trial.iterations for trial in pair)]
    if not pairs:
        return None
    chosen = [trial.iterations[len(trial.iterations) // 2] for trial in pairs[-1]]
    if any(len(iteration.itl_ns) < 2 for iteration in chosen):  # noqa: PLR2004 (a line has two points)
        return None
    window = not evidence.cell.work.steps_in_order
    x = Scale(1, max(len(iteration.itl_ns) for iteration in chosen), LEFT, RIGHT)
    y = Scale.around([ns / 1e9 for iteration in chosen for ns in iteration.itl_ns], 190, 16)
    marks = _grid(y, lambda v: format_value(v, "s"))
    one_of = "gap" if window else "step"
    table: list[tuple[str, ...]] = [("side", "first token", *(f"{which} {one_of}" for which in EXTREMES))]
    for side, iteration in zip(SIDES, chosen, strict=True):
        steps = [ns / 1e9 for ns in iteration.itl_ns]
        first = format_value(statistics.median(iteration.ttft_ns) / 1e9, "s")
        marks.append(polyline(side, [(x(n), y(s)) for n, s in _thinned(steps)], f"{side}, first token {first}"))
        table.append((side, first, *_lowest_median_highest(steps)))
    for n in range(1, round(x.high) + 1) if x.high <= MOST_COLUMNS else ():
        times = ", ".join(f"{side} {format_value(iteration.itl_ns[n - 1] / 1e9, 's')}"
                          for side, iteration in zip(SIDES, chosen, strict=True)
                          if n <= len(iteration.itl_ns))  # fmt: skip
        marks.append(rect("plain", x(n - 0.5), 16, (x(n + 0.5) - x(n - 0.5), 174), f"{one_of} {n}: {times}"))
    for tick in x.ticks(8):
        marks.append(label("tick", x(tick), 208, f"{tick:.0f}", "middle"))
    words = "decode step of one iteration, the last pair's middle one"
    words = f"{words}, its time divided by its tokens" if any(iteration.multi_token for iteration in chosen) else words
    words = "gaps between tokens in the last pair's middle window, the shortest first" if window else words
    marks.append(label("axis-title", (LEFT + RIGHT) / 2, 226, words, "middle"))
    seen = "; ".join(f"{row[0]} median {row[3]}, longest {row[4]}" for row in table[1:])
    title = "Gaps between tokens of one window" if window else "Token timeline of one iteration"
    return Chart(title, f"{seen}.", 232, tuple(marks), LINE_LEGEND, table)


def _thinned(values: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Values with their numbers from 1; of too many for a line the largest of each few, so that no stall is lost."""
    few = -(-len(values) // MOST_POINTS)
    for begin in range(0, len(values), few):
        yield begin + 1, max(values[begin : begin + few])


PANELS: tuple[tuple[str, str, Callable[[GpuTelemetry], Spread | None], float], ...] = (
    ("SM clock", "MHz", lambda gpu: gpu.sm_mhz, 1),
    ("power", "W", lambda gpu: gpu.power_mw, 1e-3),
    ("temperature", "C", lambda gpu: gpu.temperature_c, 1),
)


def telemetry_chart(evidence: Evidence) -> Chart | None:
    """Clock, power and temperature of each trial's GPUs: range and median, in the order trials were taken."""
    rows = [(trial, side) for trial, _, side in _trials_in_order(evidence) if trial.telemetry]
    read = {name: [_over_gpus(trial, panel) for trial, _ in rows] for name, _, panel, _ in PANELS}
    shown = [(name, unit, [s for s in read[name] if s], scale) for name, unit, _, scale in PANELS if all(read[name])]
    if not rows or not shown:
        return None
    width = (RIGHT - LEFT) / len(rows)
    marks: list[Mark] = []
    table = [("trial", "side", *(f"{name} {unit}" for name, unit, *_ in shown))]
    cells: list[list[str]] = [[str(trial.index), SIDES[side]] for trial, side in rows]
    ranges = []
    for n, (name, unit, spreads, scale) in enumerate(shown):
        top = 24 + 100.0 * n
        y = Scale.around([v * scale for s in spreads for v in (s.low, s.high)], top + 76, top)
        marks += [*_grid(y, lambda v: f"{v:.4g}", 3), label("panel", LEFT, top - 6, f"{name}, {unit}")]
        for k, (spread, (trial, side)) in enumerate(zip(spreads, rows, strict=True)):
            low, middle, high = (v * scale for v in (spread.low, spread.median, spread.high))
            x = LEFT + (k + 0.5) * width
            caption = f"trial {trial.index}, {SIDES[side]}: {low:.4g} to {high:.4g} {unit}, median {middle:.4g}"
            marks += [
                line(f"range {SIDES[side]}", (x, y(low)), (x, y(high)), caption),
                dots(f"{SIDES[side]} medium", [(x, y(middle))], caption),
            ]
            cells[k].append(f"{middle:.4g} ({low:.4g} to {high:.4g})")
        ends = min(s.low for s in spreads) * scale, max(s.high for s in spreads) * scale
        ranges.append(f"{name} from {ends[0]:.4g} to {ends[1]:.4g} {unit}")
    bottom = 24 + 100.0 * len(shown)
    marks.append(label("axis-title", (LEFT + RIGHT) / 2, bottom + 4, "trials in the order they were taken", "middle"))
    several = max(len(trial.telemetry) for trial, _ in rows) > 1
    title = "The GPUs along the run, all of a trial together" if several else "The GPU along the run"
    seen = f"{'; '.join(ranges)}."
    return Chart(title, seen, bottom + 12, tuple(marks), DOT_LEGEND, [table[0], *map(tuple, cells)])


def _over_gpus(trial: Trial, read: Callable[[GpuTelemetry], Spread | None]) -> Spread | None:
    """The range over a trial's GPUs, and the median of their medians; ``None`` where one of them was not read."""
    spreads = [spread for gpu in trial.telemetry if (spread := read(gpu))]
    if not spreads or len(spreads) < len(trial.telemetry):
        return None
    middle = statistics.median_low([spread.median for spread in spreads])
    return Spread(low=min(s.low for s in spreads), median=middle, high=max(s.high for s in spreads))

"""Why a verdict is what it is: three sentences for who has ten seconds, then step by step, then what to do."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator

from perfgate.judge.outcome import EXACT_ENDS, CellOutcome, GateOutcome, Outcome
from perfgate.judge.slow_share import SLOW_SHARE
from perfgate.metrics.catalogue import METRICS, split_name
from perfgate.models import Note
from perfgate.record.stop import Stop
from perfgate.report.closing_sentence import EXACTLY, closing, sentences_of
from perfgate.report.document import Document, NoteLine, Section, printable
from perfgate.report.outcome_lines import (
    detectable_of,
    gate_name,
    gate_row,
    notes,
    ordered_gates,
    run_notes,
    states_line,
)
from perfgate.report.setting_lines import counts_tell, edits, next_steps
from perfgate.units import percent, plural

MOST_COMMANDS = 3
MOST_NAMES = 2
"""Further metrics that a sentence names."""
LONGEST_SETTING = 120
IN_WORDS = {"lm-head": "lm-head (the projection to the logits)"}
"""Places that a name does not explain."""
GOOD = ("pass", "improved")
OF_THE_STEP = {name for name, metric in METRICS.items() if metric.kind == "timed" and metric.decode != "none"}
"""Metrics that a longer decode step explains."""


def worst_cell(outcome: Outcome) -> CellOutcome | None:
    """The first cell whose verdict is the run's."""
    return next((cell for cell in outcome.cells if cell.verdict == outcome.verdict), next(iter(outcome.cells), None))


def leading_gate(cell: CellOutcome) -> GateOutcome | None:
    """The gate to speak of: of those with the cell's verdict the decode step's, over both states."""
    own = [gate for gate in ordered_gates(cell) if gate.change is not None and gate.must_catch > 0]
    own = [gate for gate in own if gate.verdict == cell.verdict] or own

    def rank(gate: GateOutcome) -> tuple[bool, bool, int, float]:
        size = -abs(gate.change or 0.0) / gate.must_catch
        return gate.metric != "itl_median", gate.state not in ("", "both"), -gate.pairs, size

    return min(own, key=rank, default=None)


def three_sentences(outcome: Outcome) -> tuple[str, str, str]:
    """What got slower, by how much with its interval, and why; or why nobody can say."""
    cell = worst_cell(outcome)
    if cell is None:
        return (closing(outcome), "No cell was measured.", "")
    gate = leading_gate(cell)
    decided = outcome.verdict in ("regressed", *GOOD, "inconclusive", "advisory")
    if gate is None or not decided:
        return (closing(outcome), *_unjudged(outcome, cell))
    return (_what(outcome, cell, gate), _how_much(gate), _why(outcome, cell, gate))


def _what(outcome: Outcome, cell: CellOutcome, gate: GateOutcome) -> str:
    others = [own.metric for own in cell.gates if own.verdict == gate.verdict and own.metric != gate.metric]
    also = _listed([*dict.fromkeys(others)])
    like = sum(other.verdict == cell.verdict for other in outcome.cells) - 1
    where = f" in {cell.name}" if len(outcome.cells) > 1 else ""
    where += f" and {plural(like, 'more cell')}" if like and outcome.verdict == "regressed" else ""
    exact = [EXACTLY[reason.code] for reason in cell.reasons if reason.code in EXACTLY]
    if outcome.verdict == "regressed" and gate.verdict != "regressed":
        return f"Blocked{where} by {' and '.join(dict.fromkeys(exact)) or 'what is judged exactly'}."
    worse, better = ("slower", "faster") if gate.unit in ("s", "tok/s") else ("worse", "better")
    passed = (
        f"all gates of {len(outcome.cells)} cells passed"
        if where
        else "the only gate passed"
        if len(cell.gates) == 1
        else f"all {len(cell.gates)} gates passed"
    )
    name, more = _in_words(gate), f" (and {also})" if also else ""
    return {
        "regressed": f"{name} got {worse}{where}{f', and so did {also}' if also else ''}.",
        "pass": f"Nothing got slower by as much as must be caught: {passed}.",
        "improved": f"Nothing got slower, and {name} got {better}{where}{more}.",
        "advisory": f"{name} would be {gate.would_be or gate.verdict}{where}, if this could block.",
    }.get(outcome.verdict, f"Nobody can say yet whether {name} got {worse}{where}{more}.")


def _in_words(gate: GateOutcome) -> str:
    """A metric, and what it is in a few words where the catalogue has them."""
    name, _ = split_name(gate.metric)
    words, colon, _ = METRICS[name].meaning.partition(": ") if name in METRICS else ("", "", "")
    return f"{gate.metric} ({words})" if colon else gate.metric


def _listed(names: list[str]) -> str:
    """The first few in words, and how many more there are."""
    shown = names if len(names) <= MOST_NAMES + 1 else [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def _how_much(gate: GateOutcome) -> str:
    _, base, head, change, interval, *_ = gate_row(gate)
    sure = "no interval yet" if interval == "-" else f"interval {interval}"
    limits = f"ignorable is {percent(gate.ignorable)}, {percent(gate.must_catch)} must be caught"
    seen = f"against {plural(gate.visits.visits, 'visit')}" if gate.visits else f"in {plural(gate.pairs, 'pair')}"
    return f"{gate_name(gate)}: {base} to {head}, {change} ({sure}) {seen}; {limits}."


def _why(outcome: Outcome, cell: CellOutcome, gate: GateOutcome) -> str:
    if outcome.verdict in GOOD:
        rates = f"a slowdown of a gate's must_catch passes in at most {percent(outcome.beta)} of runs"
        unit = "Each visit counts once" if gate.visits else "Each pair is two fresh engines in random order"
        return f"{unit}, and {rates}."
    if outcome.verdict == "regressed":
        metric, _ = split_name(gate.metric)
        why = sentences_of(cell, "longer") if metric in OF_THE_STEP else []
        why += [f"{sentence}." for sentence in sentences_of(cell, "slower")]
        why += [
            f"The head's step runs something else{_places(note)}: {_first(note)}."
            for note in cell.cautions
            if note.code == "other-kernels"
        ]
        why += [_first(reason) for reason in cell.reasons if reason.code in EXACT_ENDS]
        return " ".join([*(why or sentences_of(cell, "else") or [_unknown(cell)]), *_settings(cell)])
    own = [_first(note) for note in (*gate.reasons, *cell.reasons)]
    return f"Why it is open: {'; '.join(own[:2])}." if own else "It rests on data that cannot block."


def _places(note: Note) -> str:
    """Where in a layer or behind it, for few places: as the lines of the difference say, behind the role."""
    places = dict.fromkeys(re.findall(r"(?m)^[-+~] \S+ \(([\w-]+)\) ", note.text))
    named = [IN_WORDS.get(place, place) for place in places]
    return f" at {' and '.join(named)}" if 0 < len(named) <= MOST_NAMES else ""


def _settings(cell: CellOutcome) -> Iterator[str]:
    """What the head was told to do otherwise, in a few words."""
    words = cell.setting.subjects["head"].words if cell.setting and "head" in cell.setting.subjects else ()
    own = [word for word in words if word.startswith(("args.", "env."))]
    if 0 < len(own) <= MOST_NAMES and max(map(len, own)) <= LONGEST_SETTING:
        yield f"The head has {' and '.join(own)}."


def _unjudged(outcome: Outcome, cell: CellOutcome) -> tuple[str, str]:
    lines = [note for note in (*run_notes(outcome), *notes(cell)) if note.kind == "reason"]
    if not lines:
        return ("Nothing here is judged by a gate.", "")
    first = lines[0]
    return (f"Reason {first.code}: {_first(first)}.".replace("..", "."), first.remedy)


def steps(cell: CellOutcome) -> Iterator[str]:
    """How each gate came to its verdict, and what would have changed it."""
    for gate in ordered_gates(cell):
        yield f"{gate_name(gate)}: {' '.join(_steps(gate))}"


def _first(note: Note | NoteLine) -> str:
    return note.text.partition("\n")[0].removesuffix(".")


def _bound(slowdown: float | None) -> str:
    """A bound with as many digits as tell it from a margin beside it."""
    return "none" if slowdown is None else f"{slowdown * 100:+.3g} %"


def _steps(gate: GateOutcome) -> Iterator[str]:
    ignorable, must_catch = percent(gate.ignorable), percent(gate.must_catch)
    if gate.metric == SLOW_SHARE:
        yield f"a sign test over {plural(gate.pairs, 'pair')} in which the sides differ: {gate.verdict}."
        return
    if not gate.pairs:
        lacking = "no data" if None in (gate.base, gate.head) else "too few trials"
        yield f"no look was reached ({'; '.join(map(_first, gate.reasons)) or lacking}): {gate.verdict}."
        return
    counted = next((note for note in (*gate.reasons, *gate.cautions) if note.code == "counted-by-sign"), None)
    if counted is not None:
        yield f"a sign test over {plural(gate.pairs, 'pair')}: {_first(counted)}: {gate.verdict}."
        return
    apart = next((note for note in gate.reasons if note.code == "slower-apart"), None)
    if apart is not None:
        yield f"{_first(apart)}: {gate.verdict}."
        return
    low, high = gate.slowdown_bounds
    at = f"at {plural(gate.pairs, 'pair')} the slowdown's"
    if gate.verdict == "regressed":
        yield (f"{at} lower bound {_bound(low)} is above ignorable ({ignorable}), and p = {gate.p:.2g} is at most the "
               f"level {gate.block_level:.2g} that Holm's procedure leaves it: it blocks.")  # fmt: skip
        if low is not None and low > 0:
            yield f"With an ignorable margin of {percent(low)} it would not have blocked."
    elif gate.verdict in GOOD:
        at = at if gate.passed_at in (None, gate.pairs) else f"it passed at {plural(gate.passed_at or 0, 'pair')}; {at}"
        yield (f"{at} upper bound {_bound(high)} is below must_catch ({must_catch}): it passes. Pairs like these would "
               f"have a chance of q = {gate.q:.2g} if the slowdown were must_catch.")  # fmt: skip
        if high is not None and high > 0:
            yield f"With a must_catch margin of {percent(high)} it would not have passed."
    else:
        yield (f"{at} lower bound ({_bound(low)}) is not above ignorable ({ignorable}), and its upper bound "
               f"({_bound(high)}) is not below must_catch ({must_catch}): {gate.verdict}.")  # fmt: skip
        yield from _what_would_decide(gate, low, high)


def _what_would_decide(gate: GateOutcome, low: float | None, high: float | None) -> Iterator[str]:
    """How many pairs in all, or how much less spread, would move the bound over its margin that is nearer to it."""
    if gate.change is None or gate.change <= -1:
        return
    middle = math.log1p(gate.slowdown(gate.change))
    passing, blocking = math.log1p(gate.must_catch), math.log1p(gate.ignorable)
    ways: list[tuple[float, str]] = []
    above = None if high is None else math.log1p(high) - middle
    below = None if low is None else middle - math.log1p(low)
    if above and middle < passing:
        ways.append(((passing - middle) / above, "pass"))
    if below and middle > blocking:
        ways.append(((middle - blocking) / below, "be blocked"))
    share, what = max(((share, what) for share, what in ways if 0 < share < 1), default=(0.0, ""))
    if what and not (gate.carried_sd and gate.pair_sd is None):
        own = _own_share(gate, share)
        if own:
            pairs = max(math.ceil(gate.pairs / own**2), gate.detectable_at or 0, gate.pairs + 1)
            yield (f"If further pairs are like these, it would {what} at about {pairs} pairs in all, or now if pairs "
                   f"spread by {min(own * 100, 99):.0f} % of what they do.")  # fmt: skip
        else:
            yield (f"Most of the error is what compilations of one build differ by, {percent(gate.carried_sd)}: more "
                   "pairs shorten it little.")  # fmt: skip
    if gate.pair_sd is not None:
        blocks = "" if gate.detectable is None else f"; a slowdown of {detectable_of(gate)} is what it can block"
        draws = f", compilations of one build by {percent(gate.carried_sd)}" if gate.carried_sd else ""
        yield f"The pairs spread by {gate.pair_sd * 100:.3g} %{draws}{blocks}."


def _own_share(gate: GateOutcome, share: float) -> float:
    """What the pairs' part of the error must shrink to, for all of it to be such a share; 0 where no share would do."""
    if not gate.carried_sd or gate.pair_sd is None:
        return share
    now, carried = gate.pair_sd**2 / gate.pairs, gate.carried_sd**2
    return math.sqrt(max(share**2 * (now + carried) - carried, 0.0) / now) if now else 0.0


def causes(cell: CellOutcome) -> tuple[str, ...]:
    """Which kernel, counter or change of the host explains the step's difference."""
    changed = ("other-kernels", "host-slack-lost", "work-changed")
    told = sentences_of(cell, "causes")
    told += [f"{note.code}: {_first(note)}" for note in cell.cautions if note.code in changed]
    if not told and cell.verdict == "regressed":
        told.append(_unknown(cell))
    return (*told, *filter(None, [states_line(cell)]))


def _unknown(cell: CellOutcome) -> str:
    """That nothing of this run names a cause, and what would; see :func:`perfgate.report.setting_lines.next_steps`."""
    if counts_tell(cell):
        return "What caused it is not known, for no calls were counted; perfgate run --profile-only counts them."
    if cell.traced_pairs:
        return "What caused it is not known; no trace or count of this run tells."
    return "What caused it is not known, for no trace was taken; perfgate envelope check takes one."


def commands(outcome: Outcome, place: str = "", *, on_page: bool = False, go_on: bool = False) -> tuple[str, ...]:
    """At most three to run next.

    Args:
        outcome: The verdict.
        place: The run's folder where its name alone does not find it.
        on_page: They are for the page, which is made already and has the command that judges again elsewhere.
        go_on: To go on with the run comes first.
    """
    run = shlex.quote(outcome.run)
    told = [note for cell in outcome.cells for note in notes(cell)]
    codes = [note.code for note in sorted(told, key=lambda note: note.kind != "reason")]
    resumed = [f"perfgate run --resume {run}"] if go_on or "not-started" in codes else []
    again = [] if on_page else [f"perfgate report {run}", f"perfgate judge {run}"]
    offered = [*resumed, *next_steps(outcome), *(f"perfgate explain {code}" for code in dict.fromkeys(codes)), *again]
    chosen = (*dict.fromkeys(offered),)[:MOST_COMMANDS]
    return tuple(_found_at(place, outcome.run, command) for command in chosen) if place else chosen


def _found_at(place: str, run: str, command: str) -> str:
    """A command with the folder of a run in the place of its name, behind ``perfgate`` and what it is to do."""
    words = shlex.split(command)
    return shlex.join([*words[:2], *(place if word == run else word for word in words[2:])])


def explanation_document(outcome: Outcome, place: str = "", stop: Stop | None = None) -> Document:
    """The three sentences, each cell's steps and causes, and three commands; for ``place`` see :func:`commands`.

    Of a run whose last visit was stopped the first sentence says so.
    """
    sections = []
    for cell in outcome.cells:
        sections += [
            Section(title=cell.name),
            Section(lead="step by step", lines=tuple(steps(cell)), style="facts"),
            Section(lead="what explains it", lines=causes(cell), style="facts"),
            Section(notes=tuple(_reasons(cell))),
        ]
    told = commands(outcome, place, go_on=stop is not None)
    how = "FAILED" if stop and stop.failed else "STOPPED"
    cut = f"{how} before its end, and can be resumed: {stop.code}: {printable(stop.text)}." if stop else ""
    masked = any(word.endswith("=...") for command in told for word in shlex.split(command))
    lead = "next, with your values in place of ..., which no record keeps" if masked else "next"
    lead += edits(told)
    sections += [Section(notes=tuple(run_notes(outcome))), Section(lead=lead, lines=told, style="commands")]
    return Document.of(dict.fromkeys(filter(None, [cut, closing(outcome), *three_sentences(outcome)])), sections)


def _reasons(cell: CellOutcome) -> list[NoteLine]:
    return [note for note in notes(cell) if note.kind == "reason"]

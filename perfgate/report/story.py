"""The story of an outcome: what it is, by how much, why, and what to do next. Every format and command tells this."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from perfgate.judge.outcome import EXACT_ENDS, PASSED, CellOutcome, GateOutcome, Outcome
from perfgate.judge.slow_share import SLOW_SHARE
from perfgate.metrics.catalogue import METRICS, split_name
from perfgate.metrics.kinds import parts_of_kinds
from perfgate.models import Note
from perfgate.report.closing_sentence import EXACTLY, closing
from perfgate.report.document import NoteLine, Section
from perfgate.report.outcome_lines import (
    FACTS,
    GateRow,
    cell_heading,
    cell_notes,
    detectable_of,
    first_line,
    gate_name,
    gate_notes,
    gate_row,
    gate_sentence,
    ordered_gates,
    place_of,
    run_notes,
)
from perfgate.report.setting_lines import cell_setting, counts_tell, next_steps, run_setting
from perfgate.units import percent, plural

OF_THE_STEP = {name for name, metric in METRICS.items() if metric.kind == "timed" and metric.decode != "none"}
"""Metrics that a longer decode step explains."""
MOST_NAMES = 2  # further metrics that a sentence names
LONGEST_SETTING = 120
IN_WORDS = {"lm-head": "lm-head (the projection to the logits)"}  # places that a name does not explain
CHANGED = ("other-kernels", "host-slack-lost", "work-changed")  # cautions that say what the head's step does otherwise


@dataclass(frozen=True)
class GateStory:
    """What is told of a gate."""

    outcome: GateOutcome  # its figures
    row: GateRow  # its row in the table of gates
    sentence: str  # the same in a sentence
    place: tuple[str, int]  # file and line that set its margins; an empty file where none did
    notes: tuple[NoteLine, ...]  # its reasons and cautions

    @cached_property
    def steps(self) -> str:
        """How it came to its verdict, and what would have changed that."""
        return f"{self.row.metric}: {' '.join(_steps(self.outcome))}"


@dataclass(frozen=True)
class CellStory:
    """What is told of a cell."""

    outcome: CellOutcome  # its figures
    title: str  # its name and what its figures rest on
    setting: str  # what it is of, in a line
    gates: tuple[GateStory, ...]  # what needs reading first comes first
    own_notes: tuple[NoteLine, ...]  # reasons and cautions of the cell as a whole
    facts: Mapping[str, str]  # lines about the machine and what no gate judges, each by the word before it

    @property
    def notes(self) -> tuple[NoteLine, ...]:
        """All reasons, then all cautions."""
        both = [*(note for gate in self.gates for note in gate.notes), *self.own_notes]
        return (*sorted(both, key=lambda note: note.kind != "reason"),)

    @cached_property
    def causes(self) -> tuple[str, ...]:
        """Which kernel, counter or change of the host explains the step's difference."""
        cell = self.outcome
        causes = [*sentences_of(cell, "moved"), *sentences_of(cell, "slower")]
        causes += [f"{note.code}: {first_line(note)}" for note in cell.cautions if note.code in CHANGED]
        if not causes and cell.verdict == "regressed":
            causes.append(_unknown(cell))
        return (*causes, *filter(None, [self.facts.get("states", "")]))

    @cached_property
    def lead(self) -> GateOutcome | None:
        """The gate to speak of: of those with the cell's verdict the decode step's, over both states."""
        gates = [gate.outcome for gate in self.gates if gate.outcome.change is not None and gate.outcome.must_catch > 0]
        gates = [gate for gate in gates if gate.verdict == self.outcome.verdict] or gates

        def rank(gate: GateOutcome) -> tuple[bool, bool, int, float]:
            size = -abs(gate.change or 0.0) / gate.must_catch
            return gate.metric != "itl_median", gate.state not in ("", "both"), -gate.pairs, size

        return min(gates, key=rank, default=None)


@dataclass(frozen=True)
class Story:
    """What is told of an outcome."""

    outcome: Outcome  # its figures
    verdict: str  # the verdict and what it means, in a sentence
    cells: tuple[CellStory, ...]  # in the plan's order
    notes: tuple[NoteLine, ...]  # reasons that concern the run as a whole
    measured: tuple[str, ...]  # what the figures are of, a line a fact
    next: tuple[str, ...]  # commands that tell more or go on

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The verdict; what got slower; by how much, with its interval; and why, or why nobody can say."""
        outcome = self.outcome
        cell = next((cell for cell in self.cells if cell.outcome.verdict == outcome.verdict), None)
        cell = cell or next(iter(self.cells), None)
        if cell is None:
            return (self.verdict, "No cell was measured.")
        gate = cell.lead
        if gate is None or outcome.verdict not in ("regressed", *PASSED, "inconclusive", "advisory"):
            said = self._unjudged(cell)
        else:
            said = (_what(outcome, cell.outcome, gate), f"{gate_name(gate)}: {gate_sentence(gate)}.",
                    _why(outcome, cell.outcome, gate))  # fmt: skip
        return (self.verdict, *filter(None, said))

    def _unjudged(self, cell: CellStory) -> tuple[str, ...]:
        first = next((note for note in (*self.notes, *cell.notes) if note.kind == "reason"), None)
        if first is None:
            return ("Nothing here is judged by a gate.",)
        return (f"Reason {first.code}: {first_line(first)}.".replace("..", "."), first.remedy)


def sentences_of(cell: CellOutcome, place: str) -> list[str]:
    """The sentences about a cell that kinds of trials have for a place in its story."""
    return [text for writer in parts_of_kinds("told", place) for text in writer(cell)]


def tell(outcome: Outcome) -> Story:
    """The story of an outcome, made once for all formats."""
    measured, steps = tuple(run_setting(outcome)), tuple(next_steps(outcome))
    return Story(outcome, closing(outcome), tuple(map(cell_story, outcome.cells)), run_notes(outcome), measured, steps)


def cell_story(cell: CellOutcome) -> CellStory:
    """The story of a cell by itself."""
    gates = tuple(
        GateStory(gate, gate_row(gate), gate_sentence(gate), place_of(gate), gate_notes(cell, gate))
        for gate in ordered_gates(cell)
    )
    # Of one side alone nothing was judged, its gated metrics neither.
    alone = all(None in (row.base, row.head) for row in cell.ungated)
    facts = {"measured" if alone and lead == "not gated" else lead: line
             for lead, line_of in FACTS.items() if (line := line_of(cell))}  # fmt: skip
    return CellStory(cell, cell_heading(cell), cell_setting(cell), gates, cell_notes(cell), facts)


def next_section(commands: tuple[str, ...]) -> Section:
    """What to run next; a command that edits a file, or lacks a value that no record keeps, is said before."""
    masked = any(word.endswith("=...") for command in commands for word in shlex.split(command))
    lead = "next, with your values in place of ..., which no record keeps" if masked else "next"
    learns = any(command.startswith("perfgate envelope learn") for command in commands)
    lead += " (perfgate envelope learn writes a kernels: block into the scenario)" if learns else ""
    return Section(lead=lead, lines=commands, style="commands", importance=2)


def _what(outcome: Outcome, cell: CellOutcome, gate: GateOutcome) -> str:
    others = [other.metric for other in cell.gates if other.verdict == gate.verdict and other.metric != gate.metric]
    also = _listed([*dict.fromkeys(others)])
    like = sum(other.verdict == cell.verdict for other in outcome.cells) - 1
    where = f" in {cell.name}" if len(outcome.cells) > 1 else ""
    where += f" and {plural(like, 'more cell')}" if like and outcome.verdict == "regressed" else ""
    exact = [EXACTLY[reason.code] for reason in cell.reasons if reason.code in EXACTLY]
    if outcome.verdict == "regressed" and gate.verdict != "regressed":
        return f"Blocked{where} by {' and '.join(dict.fromkeys(exact)) or 'what is judged exactly'}."
    worse, better = ("slower", "faster") if gate.unit in ("s", "tok/s") else ("worse", "better")
    passed = f"all gates of {len(outcome.cells)} cells" if where else f"all {len(cell.gates)} gates"
    passed = "the only gate" if not where and len(cell.gates) == 1 else passed
    name, more = _in_words(gate), f" (and {also})" if also else ""
    return {
        "regressed": f"{name} got {worse}{where}{f', and so did {also}' if also else ''}.",
        "pass": f"Nothing got slower by as much as must be caught: {passed} passed.",
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


def _why(outcome: Outcome, cell: CellOutcome, gate: GateOutcome) -> str:
    if outcome.verdict in PASSED:
        rates = f"a slowdown of a gate's must_catch passes in at most {percent(outcome.beta)} of runs"
        unit = "Each visit counts once" if gate.visits else "Each pair is two fresh engines in random order"
        return f"{unit}, and {rates}."
    if outcome.verdict != "regressed":
        lines = [first_line(note) for note in (*gate.reasons, *cell.reasons)]
        return f"Why it is open: {'; '.join(lines[:2])}." if lines else "It rests on data that cannot block."
    why = sentences_of(cell, "longer") if split_name(gate.metric)[0] in OF_THE_STEP else []
    why += [f"{sentence}." for sentence in sentences_of(cell, "slower")]
    why += [
        f"The head's step runs something else{_places(note)}: {first_line(note)}."
        for note in cell.cautions
        if note.code == "other-kernels"
    ]
    why += [f"{first_line(reason)}." for reason in cell.reasons if reason.code in EXACT_ENDS]
    return " ".join([*(why or sentences_of(cell, "moved") or [_unknown(cell)]), *_settings(cell)])


def _places(note: Note) -> str:
    """Where in a layer or behind it, for few places: as the lines of the difference say, behind the role."""
    places = dict.fromkeys(re.findall(r"(?m)^[-+~] \S+ \(([\w-]+)\) ", note.text))
    named = [IN_WORDS.get(place, place) for place in places]
    return f" at {' and '.join(named)}" if 0 < len(named) <= MOST_NAMES else ""


def _settings(cell: CellOutcome) -> Iterator[str]:
    """What the head was told to do otherwise, in a few words."""
    words = cell.setting.subjects["head"].words if cell.setting and "head" in cell.setting.subjects else ()
    settings = [word for word in words if word.startswith(("args.", "env."))]
    if 0 < len(settings) <= MOST_NAMES and max(map(len, settings)) <= LONGEST_SETTING:
        yield f"The head has {' and '.join(settings)}."


def _unknown(cell: CellOutcome) -> str:
    """That nothing of this run names a cause, and what would; see :func:`perfgate.report.setting_lines.next_steps`."""
    if cell.setting is None:
        return "What caused it is not known: figures alone do not name a cause."
    if counts_tell(cell):
        return "What caused it is not known, for no calls were counted; perfgate run --profile-only counts them."
    if cell.traced_pairs:
        return "What caused it is not known; no trace or count of this run tells."
    return "What caused it is not known, for no trace was taken; perfgate envelope check takes one."


def _bound(slowdown: float | None) -> str:
    """A bound with as many digits as tell it from a margin beside it."""
    return "none" if slowdown is None else f"{slowdown * 100:+.3g} %"


def _steps(gate: GateOutcome) -> Iterator[str]:
    notes = {note.code: note for note in (*gate.cautions, *gate.reasons)}
    if gate.metric == SLOW_SHARE:
        yield f"a sign test over {plural(gate.pairs, 'pair')} in which the sides differ: {gate.verdict}."
    elif not gate.pairs:
        lacking = "no data" if None in (gate.base, gate.head) else "too few trials"
        yield f"no look was reached ({'; '.join(map(first_line, gate.reasons)) or lacking}): {gate.verdict}."
    elif note := notes.get("counted-by-sign"):
        yield f"a sign test over {plural(gate.pairs, 'pair')}: {first_line(note)}: {gate.verdict}."
    elif note := notes.get("slower-apart"):
        yield f"{first_line(note)}: {gate.verdict}."
    else:
        yield from _by_bounds(gate)


def _by_bounds(gate: GateOutcome) -> Iterator[str]:
    ignorable, must_catch = percent(gate.ignorable), percent(gate.must_catch)
    low, high = gate.slowdown_bounds
    at = f"at {plural(gate.pairs, 'pair')} the slowdown's"
    if gate.verdict == "regressed":
        yield (f"{at} lower bound {_bound(low)} is above ignorable ({ignorable}), and p = {gate.p:.2g} is at most the "
               f"level {gate.block_level:.2g} that Holm's procedure leaves it: it blocks.")  # fmt: skip
        if low is not None and low > 0:
            yield f"With an ignorable margin of {percent(low)} it would not have blocked."
    elif gate.verdict in PASSED:
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
        if left := _share_of_pairs(gate, share):
            pairs = max(math.ceil(gate.pairs / left**2), gate.detectable_at or 0, gate.pairs + 1)
            yield (f"If further pairs are like these, it would {what} at about {pairs} pairs in all, or now if pairs "
                   f"spread by {min(left * 100, 99):.0f} % of what they do.")  # fmt: skip
        else:
            yield (f"Most of the error is what compilations of one build differ by, {percent(gate.carried_sd)}: more "
                   "pairs shorten it little.")  # fmt: skip
    if gate.pair_sd is not None:
        blocks = "" if gate.detectable is None else f"; a slowdown of {detectable_of(gate)} is what it can block"
        draws = f", compilations of one build by {percent(gate.carried_sd)}" if gate.carried_sd else ""
        yield f"The pairs spread by {gate.pair_sd * 100:.3g} %{draws}{blocks}."


def _share_of_pairs(gate: GateOutcome, share: float) -> float:
    """What the pairs' part of the error must shrink to, for all of it to be such a share; 0 where no share would do."""
    if not gate.carried_sd or gate.pair_sd is None:
        return share
    now, carried = gate.pair_sd**2 / gate.pairs, gate.carried_sd**2
    return math.sqrt(max(share**2 * (now + carried) - carried, 0.0) / now) if now else 0.0

"""The envelope: learnt from an A/A, checked on every traced trial, judged exactly and outside the error rates.

A step either fits a declared pattern or it does not; nothing is estimated, so nothing of alpha is spent. Shares (how
often a pattern occurs, what graphs cover, what no role knows) move from run to run and are cautions only.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from perfgate.errors import NotComparableError
from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import Finding
from perfgate.metrics.sides import Side
from perfgate.models import Note
from perfgate.scenario.expected_kernels import Bound, DeclaredPattern, Expectation, PerDecodeStep, Unlisted
from perfgate.scenario.kernel_names import ATTENTION, COMMUNICATION
from perfgate.trace.decode_step import DecodeSteps, Pattern, pool
from perfgate.trace.difference import difference, nearest
from perfgate.trace.families import short_name
from perfgate.trace.rank_steps import Ranks, RankSteps, pool_ranks
from perfgate.units import percent

HEADROOM = 2.0
"""A learnt share may double: what triggers a rare step (a block boundary of the cache) depends on where steps begin."""
LEAST_UNLISTED = 0.01
"""What a learnt block leaves to kernels that no role knows, at least."""
NAMED = (ATTENTION, COMMUNICATION)
"""Roles whose kernels are learnt by name: their backends are the engine's choice, and two may launch equally often.
Names of gemms are the library's choice, by shape and version."""
BY_CHANCE = 0.01
"""Below this probability it is not chance that a trial lacks a pattern that another one has."""


@dataclass(frozen=True)
class Outside:
    """Steps that fit no declared pattern.

    Args:
        mismatches: In what they differ from the declared pattern nearest to them.
    """

    pattern: Pattern
    mismatches: tuple[str, ...]


def judge_traced(evidence: Evidence) -> Iterator[Finding]:
    """What is judged of the traced trials of a cell; nothing where it declares none."""
    if evidence.cell.kernels is not None:
        ranks = ranks_by_side(evidence)
        yield judge_envelope(evidence.cell.kernels, evidence.held("decode"), ranks, priced=evidence.exact)


def ranks_by_side(evidence: Evidence) -> dict[Side, Ranks]:
    """What each rank of the traced engines did, of each side that was measured; none where there was one rank."""
    return {side: pool_ranks(trials) for side, trials in evidence.held("ranks").items()}


def judge_envelope(
    expected: Expectation,
    sides: Mapping[Side, Sequence[DecodeSteps]],
    ranks: Mapping[Side, Sequence[RankSteps]] = MappingProxyType({}),
    *,
    priced: bool = False,
) -> Finding:
    """Hold the traced trials of both sides against the declared envelope.

    Args:
        expected: The scenario's ``kernels:`` block.
        sides: The trials of base and head; of the head alone where no base was traced beside it, so that a stale
            envelope cannot be told from a head that leaves it.
        ranks: The same steps by rank, of sides whose engine has several.
        priced: Whether what differs inside the envelope is judged by its price, and so is told there.

    Returns:
        ``pass`` where every step of both sides is inside; ``regressed`` where only the head leaves it, with the
        difference; ``not-comparable`` where the base does already, so that the declared envelope is not its own;
        ``not-measured`` where a side has no traced trial. Shares out of their ranges, and steps that differ inside the
        envelope, are cautions.
    """
    missing = [side for side, trials in sides.items() if not trials]
    if missing:
        reason = Note(code="evidence-missing", text=f"no traced trial of {' and '.join(missing)}")
        return Finding("not-measured", (reason,))
    steps = {side: pool(trials) for side, trials in sides.items()}
    checked = {side: check(expected, pooled) for side, pooled in steps.items()}
    cautions = [
        Note(code=note.code, text=f"{side}: {note.text}") for side, (_, notes) in checked.items() for note in notes
    ]

    def of_side(side: Side) -> str:
        outside = checked[side][0]
        return f"{_in_words(outside, steps[side])}{_which_ranks(expected, ranks.get(side, ()))}"

    before, after, (outside, _) = steps.get("base"), steps["head"], checked["head"]
    if before is not None and checked["base"][0]:
        stale = Note(code="envelope-stale", text=f"base: {of_side('base')}")
        return Finding("not-comparable", (stale,), tuple(cautions))
    usual = outside[0].pattern if outside else after.patterns[0]
    changed = difference(before, after, nearest(usual, after, before), usual) if before is not None else None
    if outside:
        summary = of_side("head")
        alone = [f"head, traced alone: {summary}"]
        lines = alone if changed is None else [f"head: {summary}: {changed.headline}", *changed.lines]
        return Finding("regressed", (Note(code="outside-envelope", text="\n".join(lines)),), tuple(cautions))
    if changed and not priced:
        cautions.append(Note(code="other-kernels", text="\n".join(changed.told)))
    return Finding("pass", cautions=tuple(cautions))


def check(expected: Expectation, steps: DecodeSteps) -> tuple[list[Outside], list[Note]]:
    """One side's patterns outside the envelope, the most frequent first, and its shares out of their ranges.

    Without declared patterns only names can be outside.
    """
    declared = expected.per_decode_step.patterns
    seen: Counter[int] = Counter()
    outside = []
    for pattern in steps.patterns:
        strange = tuple(_strange_names(expected, pattern, steps))
        mismatches = [(*_mismatches(entry, pattern, steps), *strange) for entry in declared] or [strange]
        fits = next((n for n, differences in enumerate(mismatches) if not differences), None)
        if fits is None:
            outside.append(Outside(pattern, min(mismatches, key=len)))
        else:
            seen[fits] += pattern.steps
    return outside, list(_out_of_range(expected, steps, seen))


def learn(trials: Sequence[DecodeSteps], declared: Expectation | None = None) -> Expectation:
    """The block that the traced trials of an A/A fit: their patterns, and their shares with some headroom.

    A pattern gets a bound of twice the largest share that a trial shows, in whole percents, where that is below 100 %.

    Args:
        trials: All of them, whichever side they were taken of.
        declared: What the scenario says so far; how trials are traced and its own roles are kept.

    Raises:
        NotComparableError: A pattern that one trial runs often is missing in another, so these are not runs of one
            build; the text holds the diff.
        ValueError: There is no trial.
    """
    shares = [_shares(trial) for trial in trials]
    _check_same(trials, shares)
    both = pool(trials)
    patterns = []
    for pattern_json in dict.fromkeys(_declared(pattern, both).model_dump_json() for pattern in both.patterns):
        pattern = DeclaredPattern.model_validate_json(pattern_json)
        limit = _whole_percents(HEADROOM * max(share_of.get(pattern_json, 0.0) for share_of in shares))
        patterns.append(pattern.model_copy(update={"share": Bound("<=", limit)}) if limit < 1 else pattern)
    coverage = math.floor(100 * min(trial.graph_coverage for trial in trials)) / 100
    unlisted = max(_whole_percents(HEADROOM * max(trial.unlisted_share for trial in trials)), LEAST_UNLISTED)
    names = {
        role: tuple(sorted(set().union(*(_names(role, pattern, both) for pattern in both.patterns)))) for role in NAMED
    }
    step = PerDecodeStep(
        patterns=tuple(patterns),
        names={role: kernels for role, kernels in names.items() if kernels},
        graph_coverage=Bound(">=", coverage) if coverage else None,
    )
    learnt = {"per_decode_step": step, "unlisted": Unlisted(time_share=Bound("<=", unlisted))}
    return (declared or Expectation()).in_every_run().model_copy(update=learnt)


def union(blocks: Sequence[Expectation]) -> Expectation:
    """The block that every cell of a matrix fits, each having learnt its own; at least one."""
    steps = [block.per_decode_step for block in blocks]
    shares: dict[str, list[Bound | None]] = {}
    for pattern in (entry for step in steps for entry in step.patterns):
        pattern_json = pattern.model_copy(update={"share": None}).model_dump_json()
        shares.setdefault(pattern_json, []).append(pattern.share)
    patterns = [
        DeclaredPattern.model_validate_json(pattern_json).model_copy(update={"share": _widest(bounds)})
        for pattern_json, bounds in shares.items()
    ]
    names: dict[str, set[str]] = {}
    for role, kernels in (pair for step in steps for pair in step.names.items()):
        names.setdefault(role, set()).update(kernels)
    united = PerDecodeStep(
        patterns=tuple(patterns),
        names={role: tuple(sorted(kernels)) for role, kernels in names.items()},
        graph_coverage=_widest([step.graph_coverage for step in steps]),
    )
    unlisted = _widest([block.unlisted.time_share if block.unlisted else None for block in blocks])
    update = {"per_decode_step": united, "unlisted": Unlisted(time_share=unlisted) if unlisted else None}
    return blocks[0].model_copy(update=update)


def _widest(bounds: Sequence[Bound | None]) -> Bound | None:
    """The bound within which all of these lie; none where one is open, or where they face each other."""
    closed = [bound for bound in bounds if bound is not None]
    if len(closed) < len(bounds) or len({bound.relation for bound in closed}) > 1:
        return None
    return max(closed, key=lambda bound: bound.limit if bound.relation == "<=" else -bound.limit)


def _mismatches(declared: DeclaredPattern, pattern: Pattern, steps: DecodeSteps) -> Iterator[str]:
    """In what a step differs from a declared pattern; nothing where it fits."""
    launches = steps.role_launches(pattern)
    pairs = [("kernels", len(pattern.kernels), declared.launches)]
    pairs += [(role, launches[role], count) for role, count in (declared.roles or {}).items()]
    if declared.outside_graphs is not None:
        pairs.append(("outside graphs", len(pattern.outside_graphs), declared.outside_graphs))
    if declared.copies is not None:
        kinds = dict.fromkeys([*declared.copies, *pattern.copies])
        pairs += [(f"{kind} copies", pattern.copies.get(kind, 0), declared.copies.get(kind, 0)) for kind in kinds]
    yield from (f"{what} {count}, not {wanted}" for what, count, wanted in pairs if count != wanted)


def _strange_names(expected: Expectation, pattern: Pattern, steps: DecodeSteps) -> Iterator[str]:
    """Kernels of a role whose kernels the envelope names, and that are not among them."""
    for role, names in expected.per_decode_step.names.items():
        for name in sorted(_names(role, pattern, steps) - set(names)):
            yield f"{role} runs {name}"


def _names(role: str, pattern: Pattern, steps: DecodeSteps) -> set[str]:
    keys = (steps.keys[number] for number in set(pattern.kernels))
    return {short_name(key.name) for key in keys if key.role == role}


def _out_of_range(expected: Expectation, steps: DecodeSteps, seen: Counter[int]) -> Iterator[Note]:
    for number, pattern in enumerate(expected.per_decode_step.patterns):
        share = seen[number] / steps.steps
        if pattern.share is not None and not pattern.share.holds(share):
            often = f"{percent(share)} of {steps.steps} steps"
            text = f"steps of {pattern.launches} kernels: {often}, declared {pattern.share}"
            yield Note(code="envelope-shares", text=text)
    bound, coverage = expected.per_decode_step.graph_coverage, steps.graph_coverage
    if bound is not None and not bound.holds(coverage):
        yield Note(code="envelope-shares", text=f"CUDA graphs launch {percent(coverage)} of kernels, declared {bound}")
    if expected.unlisted is not None and not expected.unlisted.time_share.holds(steps.unlisted_share):
        taken = f"{percent(steps.unlisted_share)} of kernel time"
        text = f"kernels without a role take {taken}, declared {expected.unlisted.time_share}"
        yield Note(code="envelope-shares", text=text)


def _in_words(outside: Sequence[Outside], steps: DecodeSteps) -> str:
    count = sum(entry.pattern.steps for entry in outside)
    first = outside[0]
    often = f"{first.pattern.steps} of them: " if len(outside) > 1 else ""
    return f"{count} of {steps.steps} steps ({often}{'; '.join(first.mismatches)})"


def _which_ranks(expected: Expectation, ranks: Sequence[RankSteps]) -> str:
    """The ranks that leave the envelope, where not all do."""
    leaving = [rank.label for rank in ranks if check(expected, rank.decode)[0]]
    return f", on {', '.join(leaving)} of {len(ranks)}" if 0 < len(leaving) < len(ranks) else ""


def _declared(pattern: Pattern, steps: DecodeSteps) -> DeclaredPattern:
    """A pattern as a scenario declares it, whole; roles with most launches first."""
    roles = sorted(steps.role_launches(pattern).items(), key=lambda item: (-item[1], item[0]))
    return DeclaredPattern(
        launches=len(pattern.kernels),
        roles=dict(roles),
        outside_graphs=len(pattern.outside_graphs),
        copies=dict(pattern.copies),
    )


def _shares(steps: DecodeSteps) -> dict[str, float]:
    """How often each declared form occurs, by its JSON: steps that differ in names only have one form."""
    counts: Counter[str] = Counter()
    for pattern in steps.patterns:
        counts[_declared(pattern, steps).model_dump_json()] += pattern.steps
    return {pattern_json: count / steps.steps for pattern_json, count in counts.items()}


def _check_same(trials: Sequence[DecodeSteps], shares: Sequence[dict[str, float]]) -> None:
    """Refuse trials of which one lacks what another one does often, beyond what chance explains."""
    for (i, first), (j, second) in itertools.combinations(enumerate(trials), 2):
        lost = _missing(first, shares[i], second, shares[j])
        new = _missing(second, shares[j], first, shares[i])
        if lost is None and new is None:
            continue
        base = lost or nearest(new or second.patterns[0], second, first)
        changed = difference(first, second, base, new or nearest(base, first, second))
        text = f"trials {i} and {j} do not run the same steps, so this is not an A/A run: {changed.headline}"
        raise NotComparableError(
            "\n".join([text, *(f"    {line}" for line in changed.lines)]),
            remedy="Learn from two sides of one build, on one machine; if they are, look at what differs.",
        )


def _missing(
    first: DecodeSteps, shares: dict[str, float], second: DecodeSteps, second_shares: dict[str, float]
) -> Pattern | None:
    """A pattern of one trial that another one should have, were its steps drawn like those; the most frequent."""
    for pattern in first.patterns:
        pattern_json = _declared(pattern, first).model_dump_json()
        if pattern_json not in second_shares and (1 - shares[pattern_json]) ** second.steps < BY_CHANCE:
            return pattern
    return None


def _whole_percents(ratio: float) -> float:
    """Rounded up, at most all."""
    return min(math.ceil(100 * ratio - 1e-9), 100) / 100

"""Rounds: which pairs of a cell are under way, which come next, and in which order their trials are taken.

A round is one trial of the base and one of each head: with one head it is a pair, with one side alone a single trial.
Each head of a round is one pair with its base.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from perfgate.capture.job import Job
from perfgate.metrics.trial import Kind
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell, head_first, round_order


@dataclass(frozen=True)
class Aim:
    """What is measured for.

    Args:
        cell: The cell.
        pairs: Valid pairs that each of the heads is to have; of one side alone, valid trials.
        kind: The kind of trial.
        then: The kind that comes after these whatever they say; ``None`` where that is up to a look, or none comes.
        heads: The names of those, among several heads, that go on; of one alone it is empty.
        undecided: The kind that comes where that is up to a look, and it decides nothing; ``None`` where nothing does.
    """

    cell: Cell
    pairs: int
    kind: Kind
    heads: tuple[str, ...] = ("",)
    then: Kind | None = None
    undecided: Kind | None = None

    def done(self, record: Record) -> int:
        """The pairs of the head that has fewest; one that was stopped wants none."""
        taken = (record.of(head).measured(self.kind) for head in self.heads if head not in record.stops)
        return min(taken, default=self.pairs)


class Rounds:
    """The rounds of a visit that are under way; who uses it holds a lock.

    Args:
        run: Its manifest.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begun: dict[int, tuple[str, ...]] = {}

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._begun)

    def begin(self, record: Record, aim: Aim) -> int | None:
        """The number of a round that nobody has begun, if one more than those under way is wanted."""
        begun = [*itertools.chain.from_iterable(self._begun.values())]
        heads = [head for head in aim.heads if head not in record.stops]
        wanted = tuple(head for head in heads if record.of(head).measured(aim.kind) + begun.count(head) < aim.pairs)
        if record.stopped is not None or not wanted:
            return None
        number = self.next_number(record, aim.kind, self._begun)
        self._begun[number] = wanted
        return number

    def end(self, number: int) -> None:
        """The round is over."""
        self._begun.pop(number, None)

    def heads(self, number: int, record: Record) -> tuple[str, ...]:
        """The heads of a round that is under way, but for those that were stopped."""
        return tuple(head for head in self._begun[number] if head not in record.stops)

    def builds(self, heads: Collection[str]) -> tuple[str, ...]:
        """What is measured in a round of these heads, the base first."""
        return ("base", *heads) if self._run.several else tuple(self._run.subjects)

    def order(self, cell: Cell, number: int, heads: Collection[str]) -> list[tuple[int, str]]:
        """The builds of a round with their places, in the order that the seed draws."""
        plan = self._run.plan
        if self._run.several:
            drawn = round_order(plan.seed, cell.cell_id, number, self._run.heads)
            return [(place, label) for place, label in enumerate(drawn) if label in self.builds(heads)]
        labels = [*self._run.subjects]
        if self._run.alone is None and head_first(plan.seed, cell.cell_id, number, plan.orders):
            labels.reverse()
        return [*enumerate(labels)]

    def have_look_after(self, pairs: int, record: Record, kind: Kind) -> bool:
        """Whether more pairs of a kind come where a look at so many decides nothing, and nothing else does."""
        alone = len(self._run.cells) == 1 and not (self._run.quick or self._run.fixed)
        return alone and pairs < record.schedule(kind).looks[-1]

    def after(
        self, job: Job, number: int, aim: Aim, record: Record, warm: Collection[str] = ()
    ) -> list[tuple[Kind, str]]:
        """What is measured next if nothing fails, in trials of which kind: in this round and the next two.

        Args:
            job: The trial: one of a round, or a warm-up trial before it.
            number: Of that round.
            aim: What is measured for.
            record: What was measured before the trial.
            warm: Builds that will need no warm-up trial.
        """
        heads = self.heads(number, record)
        order = [label for _, label in self.order(job.cell, number, heads)]
        builds = self.builds(heads)
        if job.label not in builds:  # a head that another station has stopped meanwhile
            return []
        if job.pair is None:
            later = [(job.kind, label) for label in builds[builds.index(job.label) + 1 :] if label not in warm]
            later += [(aim.kind, label) for label in order]
        else:
            later = [(aim.kind, label) for label in order[order.index(job.label) + 1 :]]
        earlier = [*self._begun].index(number)  # rounds that began sooner end sooner, and then others follow them
        for before in (earlier, earlier + len(self)):
            wanted = aim.done(record) + len(self) + before < aim.pairs
            if kind := aim.kind if wanted else aim.then or aim.undecided:
                begun = self._begun if kind == aim.kind else ()
                following = self.order(job.cell, self.next_number(record, kind, begun, before), heads)
                later += [(kind, label) for _, label in following]
            if not wanted:  # of what comes after these one round is known
                break
        return later

    @staticmethod
    def next_number(record: Record, kind: Kind, begun: Collection[int], before: int = 0) -> int:
        """The first that no round of a kind has, once some others have begun beside those that are under way.

        Dropped rounds keep their numbers, and what a killed visit never began is free.
        """
        taken = {trial.pair for trial in record.trials if trial.kind == kind}
        free = (number for number in itertools.count() if number not in taken and number not in begun)
        return next(itertools.islice(free, before, None))

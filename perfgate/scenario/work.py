"""Work: what a driver gives its engines, as the core asks about it; a batch here, and what rooms bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from perfgate import rooms
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import SETTLED, Iteration, Trial
from perfgate.models import FieldError, FieldPath, Note, Strict
from perfgate.scenario.drivers import DRIVERS
from perfgate.scenario.margins import Gate
from perfgate.scenario.workload import Workload
from perfgate.units import plural


class Work:
    """A cell's workload with what depends on its driver. The answers here are those of a batch; a subclass has others.

    Args:
        given: The workload, as it is declared: a :attr:`model`.
    """

    model: ClassVar[type[Strict]] = Workload
    """What a scenario declares under ``workload:``."""
    example: ClassVar[dict[str, JsonValue]] = {"batch": 8, "input_tokens": 512, "output_tokens": 128}
    """Such a declaration."""
    expected: ClassVar[str] = "expected a batch"
    """What a scenario is told that declares another one."""
    iteration: ClassVar[str] = "iteration"
    """What one pass of it is called."""
    steps_in_order: ClassVar[bool] = True
    """Whether a record has the times of its decode steps in the order in which they were taken."""
    runs_already: ClassVar[bool] = False
    """Whether an engine that somebody else started (``url=``) can be given it."""
    longer_warmup: ClassVar[frozenset[str]] = frozenset({SETTLED})
    """Figures of trials whose warm-up was longer than declared."""
    file_path: ClassVar[FieldPath] = ()
    """Where a scenario names a file that belongs to it."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def check(
        self, gates: Sequence[Gate], matrix: Mapping[str, object], warmup: int, profiled: Mapping[str, object]
    ) -> None:
        """See that what is declared beside it goes with it.

        Args:
            gates: What can block.
            matrix: Values of keys.
            warmup: Iterations of warm-up.
            profiled: By key, what is declared of trials that profile the engine.

        Raises:
            FieldError: Something does not.
        """

    def file(self, _scenario: Path) -> Path | None:
        """The file that it names beside the file of its scenario, absolute; ``None`` where it names none."""
        return None

    def file_problem(self, file: Path, root: Path) -> str:
        """Why a file cannot be that one, in the repository ``root``; empty where it can.

        Raises:
            OSError: It cannot be read, or RuntimeError or ValueError for a path that none can be.
        """
        raise NotImplementedError

    def pinned(self, _scenario: Path) -> Any:
        """The workload with digests of the files that it names.

        Raises:
            UsageError: One cannot be read.
        """
        return self.given

    def pinned_as(self, _measured: Strict) -> Any:
        """The same by the workload that was measured, whose files may be elsewhere."""
        return self.given

    def keep(self, scenario: Path, run_folder: Path) -> None:
        """Keep the files that it names in the folder of a run; raises OSError."""

    @property
    def no_floor(self) -> str:
        """Why there is no bound that its decode steps could be held against; empty where there is."""
        return "how many tokens an image becomes is not known" if self.given.images is not None else ""

    def seconds(self, _warmup: int, _iterations: int) -> tuple[float, str] | None:
        """What a trial takes at least by the declaration alone, and what that is; ``None`` where it does not say it."""
        return None

    def unlike(self, iterations: Sequence[Iteration]) -> str:
        """Why these cannot be iterations of it; empty where they can."""
        sizes = (self.given.batch, self.given.output_tokens)
        if any((len(iteration.ttft_ns), iteration.output_tokens) != sizes for iteration in iterations):
            return "holds iterations of another batch or length than its cell's"
        return ""

    def setting(self) -> dict[str, Any]:
        """What a report says of it: fields of :class:`perfgate.judge.cell_facts.Setting`."""
        images = self.given.images
        shown = f"{plural(images.count, 'image')} of {images.width} x {images.height}" if images else ""
        return {**self.given.model_dump(include={"batch", "input_tokens", "output_tokens"}), "images": shown}

    def cautions(self, _sides: Mapping[Side, Sequence[Trial]]) -> Iterator[Note]:
        """What is to be known of how trials of base and head were measured."""
        yield from ()

    def unfit(self, _arguments: Mapping[str, Any], _scenario: Path) -> Iterator[tuple[FieldPath, str]]:
        """Where and why it does not go with the engine's arguments, beside what is told of every batch."""
        yield from ()

    def figures(self, _scenario: Path) -> tuple[int, str]:
        """How many figures an iteration has in a record, and of what it has them, in words."""
        batch, tokens = self.given.batch, self.given.output_tokens
        return 2 * batch + tokens, f"{batch} requests and {tokens} tokens each"

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest iteration that the record has no times of; 0 where it has them of the largest."""
        return 0


def work_of(driver: str) -> type[Work]:
    """What the engines of a driver are given."""
    work: type[Work] = rooms.bring(DRIVERS[driver].work)
    return work


def check_work(driver: str, workload: Strict, gates: Sequence[Gate]) -> Work:
    """What the engines of a driver are given.

    Raises:
        FieldError: It is none for this driver, or a gate is on what another driver's trials alone carry.
    """
    work = work_of(driver)
    if not isinstance(workload, work.model):
        raise FieldError(("workload",), work.expected)
    for number, gate in enumerate(gates):
        if (carrier := gate.measured.driver) not in ("", driver):
            text = f"{gate.metric} is a {carrier}'s: it needs driver: {carrier}"
            raise FieldError(("gates", number, "metric"), text)
    return work(workload)

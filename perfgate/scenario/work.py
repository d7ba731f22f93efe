"""Work: what a driver gives its engines, as the core asks about it; a batch here, and what rooms bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import JsonValue

from perfgate import rooms
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import SETTLED, Iteration, Trial
from perfgate.models import FieldError, FieldPath, Note, Strict
from perfgate.scenario.drivers import DRIVERS
from perfgate.scenario.margins import Gate
from perfgate.scenario.workload import Workload
from perfgate.units import plural

Given = TypeVar("Given", bound=Strict)


class Work(Generic[Given]):
    """A cell's workload with what depends on its driver: each question of the core is a method.

    What a subclass does not answer differently holds for a workload of which nothing of that kind is to be said.

    Args:
        given: The workload, as it is declared.
    """

    model: ClassVar[type[Strict]]
    """What a scenario declares under ``workload:``."""
    example: ClassVar[dict[str, JsonValue]]
    """Such a declaration."""
    expected: ClassVar[str]
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

    def __init__(self, given: Given) -> None:
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

    def file(self, scenario: Path) -> Path | None:
        """The file that it names beside the file of its scenario, absolute; ``None`` where it names none."""
        del scenario
        return None

    def file_problem(self, file: Path, root: Path) -> str:
        """Why a file cannot be that one; empty where it can.

        Args:
            file: The file.
            root: The repository, which it must be in.

        Raises:
            OSError: It cannot be read, or RuntimeError or ValueError for a path that none can be.
        """
        raise NotImplementedError

    def pinned(self, scenario: Path) -> Given:
        """The workload with digests of the files that it names.

        Raises:
            UsageError: One cannot be read.
        """
        del scenario
        return self.given

    def pinned_as(self, measured: Strict) -> Given:
        """The same by the workload that was measured, whose files may be elsewhere."""
        del measured
        return self.given

    def keep(self, scenario: Path, run_folder: Path) -> None:
        """Keep the files that it names in the folder of a run.

        Raises:
            OSError: They cannot be written.
        """

    @property
    def no_floor(self) -> str:
        """Why there is no bound that its decode steps could be held against; empty where there is."""
        return ""

    def seconds(self, warmup: int, iterations: int) -> tuple[float, str] | None:
        """What a trial takes at least by the declaration alone, and what that is; ``None`` where it does not say it."""
        del warmup, iterations
        return None

    def unlike(self, iterations: Sequence[Iteration]) -> str:
        """Why these cannot be iterations of it; empty where they can."""
        raise NotImplementedError

    def setting(self) -> dict[str, Any]:
        """What a report says of it: fields of :class:`perfgate.judge.cell_facts.Setting`."""
        raise NotImplementedError

    def cautions(self, sides: Mapping[Side, Sequence[Trial]]) -> Iterator[Note]:
        """What is to be known of how trials of base and head were measured."""
        del sides
        yield from ()

    def unfit(self, arguments: Mapping[str, Any], scenario: Path) -> Iterator[tuple[FieldPath, str]]:
        """Where and why it does not go with the engine's arguments."""
        del arguments, scenario
        yield from ()

    def figures(self, scenario: Path) -> tuple[int, str]:
        """How many figures an iteration has in a record, and of what it has them, in words."""
        raise NotImplementedError

    @property
    def most_tokens(self) -> int:
        """Tokens that an iteration may come to which is no part of the record; 0 where those that are have as many."""
        return 0


class BatchWork(Work[Workload]):
    """A batch."""

    model = Workload
    example: ClassVar[dict[str, JsonValue]] = {"batch": 8, "input_tokens": 512, "output_tokens": 128}
    expected = "expected a batch"

    @property
    def no_floor(self) -> str:
        """Of images it is not known how many tokens they become."""
        return "how many tokens an image becomes is not known" if self.given.images is not None else ""

    def unlike(self, iterations: Sequence[Iteration]) -> str:
        """By the numbers of requests and tokens."""
        sizes = (self.given.batch, self.given.output_tokens)
        if any((len(iteration.ttft_ns), iteration.output_tokens) != sizes for iteration in iterations):
            return "holds iterations of another batch or length than its cell's"
        return ""

    def setting(self) -> dict[str, Any]:
        """Its numbers and images."""
        images = self.given.images
        shown = f"{plural(images.count, 'image')} of {images.width} x {images.height}" if images else ""
        return {**self.given.model_dump(include={"batch", "input_tokens", "output_tokens"}), "images": shown}

    def figures(self, scenario: Path) -> tuple[int, str]:
        """Two times a request, and one a step."""
        del scenario
        batch, tokens = self.given.batch, self.given.output_tokens
        return 2 * batch + tokens, f"{batch} requests and {tokens} tokens each"


def work_of(driver: str) -> type[Work[Any]]:
    """What the engines of a driver are given."""
    work: type[Work[Any]] = rooms.bring(DRIVERS[driver].work)
    return work


def check_work(driver: str, workload: Strict, gates: Sequence[Gate]) -> Work[Any]:
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

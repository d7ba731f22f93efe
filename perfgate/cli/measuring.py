"""What commands that measure have in common: options, the builds that they name, and how a measurement is shown.

As in :mod:`perfgate.cli.main`, imports stand in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli import completion
from perfgate.cli.output_options import RUN_FOLDER

if TYPE_CHECKING:
    from perfgate.capture.session import Progress
    from perfgate.gate import Finished
    from perfgate.judge.outcome import Outcome
    from perfgate.metrics.trial import Role
    from perfgate.record.run_record import Run
    from perfgate.scenario.subject import Subject

SCENARIOS = click.argument("scenarios", nargs=-1, type=click.Path(path_type=Path))
BASE_OPTION = click.option(
    "--base",
    "base_words",
    multiple=True,
    shell_complete=completion.subjects,
    metavar="KEY=VALUE",
    help="The reference build: a subject of perfgate.toml, or python=, path=, env.K=, args.K=, ref=; repeat for more.",
)
HEAD_OPTION = click.option(
    "--head",
    "head_words",
    multiple=True,
    shell_complete=completion.subjects,
    metavar="KEY=VALUE",
    help="The build under test, named the same way; what it does not set is taken from the base.",
)

BUDGET_OPTION = click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(0, min_open=True),
    callback=lambda _, __, minutes: float("inf") if minutes is None else minutes * 60,
    metavar="MINUTES",
    help="Begin no pair that would not end within this time.",
)


@contextlib.contextmanager
def measuring() -> Iterator[Progress]:
    """A block that measures: told of each step, and stopped by signals as by Ctrl-C."""
    from perfgate.cli.progress import progress_to

    with signals_as_interrupt(), progress_to(sys.stderr) as progress:
        yield progress


def measured(finished: Finished) -> Outcome:
    """The outcome of what was measured, once it is told where that lies."""
    click.echo(f"run folder: {finished.folder}", err=True)
    click.get_current_context().meta[RUN_FOLDER] = finished.folder
    return finished.outcome


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is gone, stop a run as Ctrl-C does: engines end, what was measured stays.

    Who had one ignored, as nohup has SIGHUP, has it ignored still.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before: dict[int, Callable[..., Any] | int | None] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def subjects_of(
    base_words: Sequence[str],
    head_words: Sequence[str],
    progress: Callable[[str], None],
    *,
    ref: str | None = None,
    runs: Path = Path("runs"),
    scenarios: Sequence[Path] = (),
    build: bool = True,
) -> dict[Role, Subject]:
    """The subjects that words, ``perfgate.toml`` and ``--against REF`` name.

    Args:
        base_words: Words of ``--base``.
        head_words: Words of ``--head``.
        progress: Told what is being built.
        ref: The ref of ``--against``.
        runs: The folder of run folders, which are no uncommitted change.
        scenarios: Read first: a mistake in one must not wait for a build.
        build: Build refs; without it a subject may name a build that is not there yet.

    Raises:
        UsageError: A scenario, ``perfgate.toml`` or a word is wrong.
        NotMeasuredError: ``build-failed``.
    """
    from perfgate.project.build import Builder
    from perfgate.project.config import find_config, load_config
    from perfgate.project.subjects import against, resolve
    from perfgate.scenario.declaration import load

    for file in scenarios:
        load(file)
    config = load_config(find_config(Path.cwd()))
    if ref is not None:
        base_words, head_words = against(ref, base_words, head_words, config.subjects)
    builder = Builder(config, progress, (runs,))
    return resolve(base_words, head_words, config.subjects, builder if build else builder.planned)


def restore_builds(progress: Callable[[str], None]) -> Callable[[Run], None]:
    """A function that makes the builds of a run's subjects again where the cache has lost them.

    It raises what :meth:`perfgate.project.build.Builder.restore` does.
    """

    def restore(run: Run) -> None:
        from perfgate.project.build import Builder
        from perfgate.project.config import find_config, load_config

        built = [subject for subject in run.subjects.values() if subject.built_from]
        if built:
            builder = Builder(load_config(find_config(Path.cwd())), progress)
            for subject in built:
                builder.restore(subject)

    return restore

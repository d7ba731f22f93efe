"""What commands that measure have in common: options, the builds that they name, and how a measurement is shown.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate import rooms
from perfgate.cli.output_options import RUN_FOLDER, RUNS_OPTION, complete_runs, complete_subjects, subject_tables
from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.capture.pace import Progress
    from perfgate.gate import Finished
    from perfgate.judge.outcome import Outcome
    from perfgate.metrics.sides import Side
    from perfgate.record.run_record import Run
    from perfgate.scenario.declaration import LoadedScenario
    from perfgate.scenario.subject import Subject

Words = tuple[str, ...]
SCENARIOS = click.argument("scenarios", nargs=-1, type=click.Path(path_type=Path))
_WORDS: dict[str, Any] = {"multiple": True, "shell_complete": complete_subjects, "metavar": "KEY=VALUE"}
BASE_OPTION = click.option(
    "--base", "base_words", **_WORDS,
    help="The reference build: a subject of perfgate.toml, or python=, path=, env.K=, args.K=, ref=; repeat for more. "
    "url=http://HOST:PORT is a server that runs already.",
)  # fmt: skip
HEAD_OPTION = click.option(
    "--head", "head_words", **_WORDS,
    help="The build under test, named the same way; what it does not set is taken from the base. path=FOLDER replaces "
    "the base's path=, path=+FOLDER puts a folder in front of it. Several subjects, or "
    "NAME:KEY=VALUE with several names, are several heads of one run.",
)  # fmt: skip
BUDGET_OPTION = click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(0, min_open=True),
    callback=lambda _, __, minutes: float("inf") if minutes is None else minutes * 60,
    metavar="MINUTES",
    help="Begin no pair that would not end within this time.",
)
GPUS_OPTION = click.option(
    "--gpus",
    default="",
    metavar="all|0,2,5",
    help="Measure pairs on these GPUs of the host at once: all that are free, or as CUDA_VISIBLE_DEVICES names them.",
)

PRESET_OPTION = click.option(
    "--preset",
    type=click.Choice(["quick", "comprehensive", "scaling"]),
    help="quick: one short trial a subject of the first cell, no verdict. comprehensive: until decided, and where the "
    "host's time goes. scaling: a matrix over batch, lengths and tensor parallel size, shown as curves.",
)

USUAL = Path("scenarios")  # where a scenario is looked for if none is named; `perfgate init` writes one there

QUIET = "perfgate.quiet"  # where the context of a command keeps whether it is quiet
QUIET_OPTION = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, quiet: context.meta.update({QUIET: quiet}),
    help="No progress on stderr: warnings, errors and the name of the folder alone.",
)


def resume_option(folder: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--resume`` with the folder of a run or a night."""
    path = click.Path(path_type=Path, file_okay=False)
    more = f"Go on with {text}"
    return click.option("--resume", "folder", type=path, shell_complete=complete_runs, metavar=folder, help=more)


@dataclass(frozen=True)
class Builds:
    """The builds that a command line names."""

    base: Words  # words of `--base`
    head: Words  # words of `--head`
    runs: Path  # the folder of run folders, which do not count as an uncommitted change of a build

    def subjects(
        self, progress: Callable[[str], None], scenarios: Sequence[Path] = (), *, build: bool = True
    ) -> dict[Side, Subject]:
        """The subjects that the words and ``perfgate.toml`` name: a base, and one head at most.

        Args:
            progress: Told what is being built.
            scenarios: Read first: a mistake in one must not wait for a build.
            build: Build refs; without it a subject may name a build that is not there yet.

        Raises:
            UsageError: A scenario, ``perfgate.toml`` or a word is wrong, or there are several heads.
            NotMeasuredError: ``build-failed``.
        """
        from perfgate.scenario.subject_words import resolve

        make = self._making(progress, scenarios, build=build)
        return resolve(self.base, self.head, subject_tables(), make)

    def with_heads(
        self,
        progress: Callable[[str], None],
        scenarios: Sequence[Path] = (),
        *,
        ref: str | None = None,
        build: bool = True,
    ) -> dict[str, Subject]:
        """The same where there may be several heads, each by its name; ``ref`` is that of ``--against``.

        Raises:
            UsageError: As above; or ``ref`` has several heads to take the merge base of.
            NotMeasuredError: ``build-failed``.
        """
        from perfgate.scenario.subject_words import against, resolve_several, words_by_head

        make, tables = self._making(progress, scenarios, build=build), subject_tables()
        words = (self.base, self.head)
        if ref is not None:
            rooms.use("builds")  # which a ref needs
            heads = words_by_head(self.head, tables)
            if len(heads) > 1:
                remedy = f"Name the base of all: --base ref={ref}"
                raise UsageError(f"--against {ref} takes one head, and there are {', '.join(heads)}", remedy=remedy)
            words = against(ref, self.base, heads[""], tables)
        return resolve_several(*words, tables, make)

    def _making(
        self, progress: Callable[[str], None], scenarios: Sequence[Path], *, build: bool = True
    ) -> Callable[[str], Mapping[str, Any]] | None:
        """What makes builds of refs; ``None`` where this perfgate has nothing that does."""
        from perfgate.scenario.declaration import load

        for file in scenarios:
            load(file)
        if (builds := rooms.offered("builds")) is None:
            return None
        builder = builds.Builder(rooms.use("config").load_config(), progress, (self.runs,))
        made: Callable[[str], Mapping[str, Any]] = builder if build else builder.planned
        return made

    def names_a_base(self, subjects: Mapping[str, Subject]) -> bool:
        """Whether a base beside the heads was named, by words or in ``perfgate.toml``: else perfgate's own serves."""
        return len(subjects) > 1 and bool(self.base or "base" in subject_tables())

    def anchor(self, progress: Callable[[str], None]) -> Subject | None:
        """``[subjects.anchor]``, which heads are measured beside; ``None`` where there is none."""
        from perfgate.scenario.subject_words import resolve

        tables = subject_tables()
        return resolve(("anchor",), (), tables, self._making(progress, ()))["base"] if "anchor" in tables else None


def naming_builds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--base``, ``--head`` and ``--runs``, which it gets as its ``builds``."""

    @BASE_OPTION
    @HEAD_OPTION
    @RUNS_OPTION
    @functools.wraps(command)
    def with_builds(*passed: Any, base_words: Words, head_words: Words, runs: Path, **rest: Any) -> Any:
        return command(*passed, builds=Builds(base_words, head_words, runs), **rest)

    return with_builds


def as_preset(scenarios: Iterable[Path], preset: str | None) -> tuple[LoadedScenario, ...]:
    """The scenarios as a preset measures them here; as they are without one.

    Raises:
        UsageError: A scenario is wrong, or has nothing that the preset could scale.
    """
    from perfgate.machine.accelerator import connect
    from perfgate.scenario.declaration import load
    from perfgate.scenario.presets import with_preset

    loaded = tuple(load(file) for file in scenarios)
    if preset is None:
        return loaded
    with connect() or contextlib.nullcontext() as nvml:
        gpus = len(nvml.gpus()) if nvml is not None else 1
    return tuple(with_preset(scenario, preset, gpus) for scenario in loaded)


def how_to_measure(new: dict[str, Any]) -> dict[str, Any]:
    """What the options of a new run say to :func:`perfgate.gate.run`."""
    how = {name: new[name] for name in ("seed", "quick", "exact_only", "host_profile")}
    how["quick"] |= new["preset"] == "quick"
    how["host_profile"] |= new["preset"] == "comprehensive"
    return how


def names_a_reference(word: str | None) -> bool:
    """Whether ``--against`` names stored baselines: ``baseline``, or the file of one; else it is a git ref."""
    return word is not None and (word == "baseline" or word.endswith(".json"))


def scenarios_or_usual(named: Sequence[Path]) -> tuple[Path, ...]:
    """Those that were named, else the only one here."""
    return (*named,) or (the_scenario(USUAL),)


def the_scenario(folder: Path) -> Path:
    """The only scenario in a folder.

    Raises:
        UsageError: There is none, or a choice.
    """
    scenarios = sorted(file for suffix in ("yaml", "yml") for file in folder.glob(f"*.{suffix}"))
    if len(scenarios) == 1:
        click.echo(f"perfgate: measuring {scenarios[0]}, the only scenario here", err=True)
        return scenarios[0]
    if not scenarios:
        remedy = "Name scenario files, or begin with perfgate init. A run that was stopped goes on with --resume."
        raise UsageError(f"nothing to measure: {folder}/ holds no scenario", remedy=remedy)
    files = " ".join(shlex.quote(str(file)) for file in scenarios)
    remedy = f"Name those to measure: perfgate run {shlex.quote(str(scenarios[0]))}, or all of them."
    raise UsageError(f"which scenario? {folder}/ holds {len(scenarios)}: {files}", remedy=remedy)


@contextlib.contextmanager
def measuring() -> Iterator[Progress]:
    """A block that measures: told of each step, and stopped by signals as by Ctrl-C."""
    from perfgate.cli.progress import progress_to

    quiet = click.get_current_context().meta.get(QUIET, False)
    with signals_as_interrupt(), progress_to(sys.stderr, quiet=quiet) as progress:
        yield progress


def measured(finished: Finished) -> Outcome:
    """The outcome of what was measured, once its folder has been printed."""
    click.echo(f"run folder: {finished.folder}", err=True)
    click.get_current_context().meta[RUN_FOLDER] = finished.folder
    return finished.outcome


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is gone, stop a run as Ctrl-C does: engines end, what was measured stays.

    A signal that was ignored before, as nohup ignores SIGHUP, stays ignored.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, interrupt)) for number in heeded]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def restore_builds(progress: Callable[[str], None], run: Run) -> None:
    """Make the builds of a run's subjects again where the cache has lost them.

    It raises what :meth:`perfgate.project.build.Builder.restore` does.
    """
    for subject in run.built.values():
        if subject.built_from:
            rooms.use("builds").Builder(rooms.use("config").load_config(), progress).restore(subject)

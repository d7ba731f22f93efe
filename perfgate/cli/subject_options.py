"""What commands say of subjects: the options, and which builds they name; refs among them are built.

As in :mod:`perfgate.cli.main`, imports stand in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.cli import completion

if TYPE_CHECKING:
    from perfgate.metrics.trial import Role
    from perfgate.record.run_record import Run
    from perfgate.scenario.subject import Subject

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
    help="The build under test, likewise; what it does not say is taken from the base.",
)


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

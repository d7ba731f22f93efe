"""``perfgate run --on``: the options, and what they do. Ray is imported where they are given and nowhere else.

Slow imports are in the bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.measuring import Builds, measured, measuring, names_a_reference, scenarios_or_usual
from perfgate.cli.output_options import complete_runs
from perfgate.errors import UsageError
from perfgate.fleet.commands import class_of, planned

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.cluster.cluster_run import ClusterRun
    from perfgate.gate import Finished


def on_clusters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``perfgate run`` its ``--on`` and ``--attach``, which take the call for themselves."""
    path: Any = click.Path(path_type=Path)

    @click.option("--on", metavar="auto|ray://HOST:PORT",
                  help="Measure on a Ray cluster, each cell where it has room: docs/ray.md.")  # fmt: skip
    @click.option("--attach", type=path, metavar="RUN", shell_complete=complete_runs,
                  help="With --on: look on at this run, which the cluster measures or has measured.")  # fmt: skip
    @functools.wraps(command)
    def elsewhere(
        collector: Collector | None, scenarios: tuple[Path, ...], builds: Builds, on: str | None,
        attach: Path | None, **new: Any,
    ) -> Any:  # fmt: skip
        if not on and attach is None:
            return command(collector, scenarios=scenarios, builds=builds, **new)
        options = {**new, "on": on, "attach": attach}
        return measured(measured_on_cluster(scenarios, builds, options, collector))

    return elsewhere


def measured_on_cluster(
    scenarios: Sequence[Path], builds: Builds, new: dict[str, Any], collector: Collector | None
) -> Finished:
    """Do what ``perfgate run --on`` was asked for.

    Raises:
        UsageError: Ray is missing, or an option does not go with ``--on``.
        PerfgateError: See :func:`perfgate.cluster.submission.run_on`.
    """
    address: str | None = new["on"]
    if not address:
        raise UsageError("--attach looks on at a cluster", remedy="Name it: --attach RUN --on auto.")
    check_options(scenarios, builds, new)
    if find_spec("ray") is None:
        remedy = "Install perfgate with its extra: pip install 'perfgate[ray]', in a clone '.[ray]'."
        raise UsageError("--on needs ray", remedy=remedy)
    from perfgate.cluster.cluster_run import most_gpus
    from perfgate.cluster.submission import go_on, nodes_at, run_on

    with measuring() as progress:
        means = (builds.runs, progress, new["budget_s"], collector)
        if (word := new["attach"] or new["folder"]) is not None:
            return go_on(address, word, *means, attach=new["attach"] is not None)
        gpus = partial(most_gpus, nodes=nodes_at(address)) if new["preset"] else None
        return run_on(address, declared(scenarios_or_usual(scenarios), builds, new, progress, gpus), *means)


def declared(
    scenarios: Sequence[Path], builds: Builds, new: dict[str, Any], progress: Callable[[str], None],
    gpus: Callable[[str], int] | None = None,
) -> ClusterRun:  # fmt: skip
    """The run that scenarios and builds make, a shard for each cell; refs are not built here.

    ``gpus`` says how many a class of machines has, where scenarios are scaled to them.

    Raises:
        ScenarioError: No engine could run a scenario.
        UsageError: Scenarios and builds do not go together, or a server that runs already is named.
    """
    from perfgate import __version__
    from perfgate.capture.engine import gpus_of
    from perfgate.cluster.cluster_run import ClusterRun, scaled
    from perfgate.gate import look_ahead
    from perfgate.project.config import load_config
    from perfgate.record.shards import cell_by_cell
    from perfgate.scenario.declaration import load
    from perfgate.scenario.subject import runs_already

    subjects = builds.with_heads(progress, scenarios, ref=new["against"], build=False)
    files = [load(file) for file in scenarios]
    scaled_to = tuple(gpus(class_of(load_config(), file).name) for file in files) if gpus else ()
    loaded = scaled(files, scaled_to)
    look_ahead(loaded, subjects, progress, ask=False)  # nodes have the builds
    whole, name, classes = planned(loaded, new["seed"])
    if runs_already(subjects):
        raise UsageError("--on: a server that runs already is measured from one place", remedy="Leave --on out.")
    builds_of_cell = [[{**cell.engine.args, **subject.args} for subject in subjects.values()] for cell in whole.cells]
    return ClusterRun(
        perfgate=__version__, folder=str(Path.cwd()), scenarios=tuple(str(file.absolute()) for file in scenarios),
        scaled_to=scaled_to, subjects=subjects, plan=cell_by_cell(whole, name, classes),
        ranks=tuple(max(map(gpus_of, arguments)) for arguments in builds_of_cell),
    )  # fmt: skip


def check_options(scenarios: Sequence[Path], builds: Builds, new: dict[str, Any]) -> None:
    """Refuse what does not go with ``--on``: cells are measured by pairs, each on the GPUs that Ray gives it.

    Raises:
        UsageError: Such an option was given.
    """
    stored = names_a_reference(new["against"])
    going_on = new["folder"] is not None or new["attach"] is not None
    refused = {
        "--quick": new["quick"],
        # quick is never a verdict, and comprehensive adds a host profile
        f"--preset {new['preset']}": new["preset"] and (going_on or new["preset"] != "scaling"),
        "--profile-only": new["exact_only"],
        "--host-profile": new["host_profile"],
        "--gpus": new["gpus"],
        "--shard": new["shard_word"],
        "--left": new["left_file"],
        "--more": new["more"] is not None,
        f"--against {new['against']}": stored or (going_on and new["against"]),
        "--resume beside --attach": new["folder"] is not None and new["attach"] is not None,
        "a scenario beside --resume or --attach": going_on and scenarios,
        "a build beside --resume or --attach": going_on and (builds.base or builds.head),
        "--seed beside --resume or --attach": going_on and new["seed"] is not None,
        "--budget beside --attach": new["attach"] is not None and new["budget_s"] < float("inf"),
    }
    if given := [option for option, is_given in refused.items() if is_given]:
        raise UsageError(f"--on: {', '.join(given)} cannot be given")

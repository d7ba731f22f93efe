"""The command line: thin commands over :mod:`perfgate.gate`; results on stdout, progress on stderr.

Imports stand in the command bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from perfgate import __version__
from perfgate.cli import completion
from perfgate.cli.baseline_commands import BASELINES_OPTION, baseline
from perfgate.cli.check import check
from perfgate.cli.github_commands import RUN_FOLDER, github
from perfgate.cli.init import init
from perfgate.cli.machine_commands import clean, clocks, doctor, signals_as_interrupt
from perfgate.cli.nightly_command import nightly
from perfgate.cli.outlet import outlets
from perfgate.cli.output_options import RUNS_OPTION, echo_document, reported, terminal_width
from perfgate.cli.profiles import counters, kernels
from perfgate.cli.streams import abandon, lasting_streams
from perfgate.cli.subject_options import BASE_OPTION, HEAD_OPTION, restore_builds, subjects_of
from perfgate.cli.verify import verify
from perfgate.errors import ExitStatus, PerfgateError, ScenarioError

if TYPE_CHECKING:
    from perfgate.capture.job import Collector
    from perfgate.judge.outcome import Outcome
    from perfgate.metrics.trial import Role
    from perfgate.scenario.subject import Subject


SCENARIOS = Path("scenarios")
"""Where a scenario is looked for if none is named; ``perfgate init`` writes one there."""


class _Errors(click.Group):
    """Turns perfgate's errors into a message and an exit status; what it prints steers nothing."""

    def main(self, *words: Any, **options: Any) -> Any:
        with outlets(), lasting_streams():
            return super().main(*words, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PerfgateError as error:
            code = f"{error.code}: " if error.code else ""
            click.echo(f"perfgate: {code}{error}" if not isinstance(error, ScenarioError) else str(error), err=True)
            ctx.exit(error.exit_status)
        except BrokenPipeError:
            abandon(sys.stdout)
            ctx.exit(ExitStatus.INTERNAL_ERROR)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"perfgate: {place}{error.strerror or error}", err=True)
            ctx.exit(ExitStatus.NOT_MEASURED)
        except KeyboardInterrupt:
            _interrupted(ctx)
        except Exception as error:
            if not _stems_from_interrupt(error):
                raise
            _interrupted(ctx)


def _interrupted(ctx: click.Context) -> NoReturn:
    click.echo("perfgate: interrupted", err=True)
    ctx.exit(ExitStatus.INTERRUPTED)


def _stems_from_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: it may come while a library is imported that makes another of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@click.group(cls=_Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfgate")
def main() -> None:
    """Did decode get slower, where, and how sure are we?

    perfgate measures two builds of vLLM in interleaved pairs of fresh engines and decides with declared error rates.

    \b
    Exit status: 0 pass, 10 regressed, 20 inconclusive or advisory,
    21 not comparable, 22 not measured, 2 usage or scenario error,
    1 internal error, 130 interrupted or out of budget.
    """  # noqa: D301 (click reads a real backspace: keep the lines)


@main.command()
@click.argument("scenarios", nargs=-1, type=click.Path(path_type=Path))
@BASE_OPTION
@HEAD_OPTION
@click.option(
    "--against",
    metavar="REF|baseline|FILE",
    help="A git ref: its merge base with HEAD is built as the base, the working tree as the head ([build] says how). "
    "Or measure one side and hold it against the stored baselines, or against the one in a file that ends in .json.",
)
@BASELINES_OPTION
@RUNS_OPTION
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order within pairs; drawn if not given.")
@click.option("--quick", is_flag=True, help="One trial a subject: a look at the numbers, never a verdict.")
@click.option(
    "--resume",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=completion.runs,
    metavar="RUN",
    help="Go on with the open cells of this run instead (a folder, its name, or latest); it knows its scenarios, "
    "subjects and seed. Where scenarios and subjects are given too it must be a run of these.",
)
@click.option(
    "--more",
    type=int,
    metavar="PAIRS",
    help="With --resume: look again at cells that are inconclusive at their last look, after so many pairs more.",
)
@click.option(
    "--budget",
    "minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="Begin no pair that would not end within this time.",
)
@click.pass_obj
@reported
def run(
    collector: Collector | None,
    folder: Path | None,
    more: int | None,
    minutes: float | None,
    baselines: Path,
    **new: Any,
) -> Outcome:
    """Measure two builds in interleaved pairs and judge them.

    With --base alone one side is measured, for a later comparison. Against a stored baseline the head is measured
    alone; with --base alone that is the head. A run that was stopped goes on with --resume.

    \b
    perfgate run scenarios/cpu-tiny.yaml --base python=A/bin/python --head python=B/bin/python
    perfgate run scenarios/cpu-tiny.yaml --base python=A/bin/python --head args.max_num_seqs=32
    perfgate run scenarios/cpu-tiny.yaml --against main
    perfgate run --resume latest
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate import gate
    from perfgate.cli.progress import progress_to
    from perfgate.report.run_folders import find_run

    check_resume(folder, more, new)
    if folder is not None:
        folder = find_run(folder, new["runs"])
    with signals_as_interrupt(), progress_to(sys.stderr) as progress:
        means: dict[str, Any] = {"collector": collector, "progress": progress}
        if minutes is not None:
            means["budget_s"] = minutes * 60
        if folder is not None:
            if new["scenarios"]:
                said = (new["base_words"], new["head_words"], progress)
                means["only"] = (new["scenarios"], subjects_of(*said, scenarios=new["scenarios"]))
            finished = gate.resume(folder, more=more, prepare=restore_builds(progress), **means)
        else:
            scenarios, runs, word = new.pop("scenarios"), new["runs"], new.pop("against")
            base_words, head_words = new.pop("base_words"), new.pop("head_words")
            stored = baselines_meant(word, baselines)
            ref = word if stored is None else None
            subjects = subjects_of(base_words, head_words, progress, ref=ref, runs=runs, scenarios=scenarios)
            if stored is not None:
                means["against"] = stored
                subjects = {"head": subjects.get("head", subjects["base"])}
            finished = gate.run(scenarios, subjects, **new, **means)
    click.echo(f"run folder: {finished.folder}", err=True)
    click.get_current_context().meta[RUN_FOLDER] = finished.folder
    return finished.outcome


def baselines_meant(word: str | None, folder: Path) -> Path | None:
    """The stored baselines that ``--against`` names: their folder, or the file of one; ``None`` for a git ref."""
    if word == "baseline":
        return folder
    return Path(word) if word is not None and word.endswith(".json") else None


def check_resume(folder: Path | None, more: int | None, new: dict[str, Any]) -> None:
    """Refuse a mixture of a new run's words and those that go on with an old one.

    Raises:
        UsageError: There is nothing to measure, or a word that a run folder has its own answer to.
    """
    from perfgate.errors import UsageError

    if folder is None:
        if more is not None:
            raise UsageError("--more goes on with a run", remedy="Name its folder: --resume FOLDER --more 4.")
        new["scenarios"] = new["scenarios"] or (the_scenario(SCENARIOS),)
        return
    if new["scenarios"]:  # with their subjects: the run is held against them
        new = {**new, "base_words": (), "head_words": ()}
    words = {"base_words": "--base without a scenario", "head_words": "--head without a scenario",
             "against": "--against", "quick": "--quick"}  # fmt: skip
    given = [word for name, word in words.items() if new[name]] + ["--seed"] * (new["seed"] is not None)
    if given:
        raise UsageError(f"--resume goes on with the run's own plan and subjects: {', '.join(given)} cannot be given")


def the_scenario(folder: Path) -> Path:
    """The only scenario in a folder.

    Raises:
        UsageError: There is none, or a choice.
    """
    from perfgate.errors import UsageError

    found = sorted(file for suffix in ("yaml", "yml") for file in folder.glob(f"*.{suffix}"))
    if len(found) == 1:
        click.echo(f"perfgate: measuring {found[0]}, the only scenario here", err=True)
        return found[0]
    if not found:
        remedy = "Name scenario files, or begin with perfgate init. A run that was stopped goes on with --resume."
        raise UsageError(f"nothing to measure: {folder}/ holds no scenario", remedy=remedy)
    files = " ".join(shlex.quote(str(file)) for file in found)
    remedy = f"Name those to measure: perfgate run {shlex.quote(str(found[0]))}, or all of them."
    raise UsageError(f"which scenario? {folder}/ holds {len(found)}: {files}", remedy=remedy)


@main.group()
def envelope() -> None:
    """The kernels that a decode step may run: learn them from a build, check another against them."""


@envelope.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@BASE_OPTION
@RUNS_OPTION
@click.option("--from", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="RUN",
              help="Learn from the traced pairs of this run instead of tracing.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the scenario instead of writing it.")
def learn(
    scenario: Path,
    base_words: tuple[str, ...],
    runs: Path,
    folder: Path | None,
    dry_run: bool,  # noqa: FBT001 (a flag)
) -> None:
    """Trace one build against itself and write what its decode steps run into the scenario's kernels block.

    Read the difference before committing it: it is what every later head is held to, exactly. Where tracing was
    interrupted, go on with perfgate run --resume FOLDER and then learn --from FOLDER.
    """
    from perfgate import gate
    from perfgate.cli.progress import progress_to
    from perfgate.machine.atomic_files import write_atomically
    from perfgate.report.run_folders import find_run

    if folder is not None:
        folder = find_run(folder, runs)
    else:
        with signals_as_interrupt(), progress_to(sys.stderr) as progress:
            base = subjects_of(base_words, (), progress, runs=runs)["base"]
            both: dict[Role, Subject] = {"base": base, "head": base}
            folder = gate.run([scenario], both, runs=runs, progress=progress, kernels_only=True).folder
        click.echo(f"run folder: {folder}", err=True)
    text = gate.learn_envelope(scenario, folder)
    if dry_run:
        click.echo(text, nl=False)
        return
    write_atomically(scenario, text)
    click.echo(f"perfgate: {scenario} has a new kernels block", err=True)


@envelope.command("check")
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@BASE_OPTION
@HEAD_OPTION
@RUNS_OPTION
@reported
def check_envelope(
    scenarios: tuple[Path, ...], base_words: tuple[str, ...], head_words: tuple[str, ...], runs: Path
) -> Outcome:
    """Trace a pair and hold both sides' decode steps against the scenario's kernels block; minutes, no latency."""
    from perfgate import gate
    from perfgate.cli.progress import progress_to

    with signals_as_interrupt(), progress_to(sys.stderr) as progress:
        subjects = subjects_of(base_words, head_words, progress, runs=runs, scenarios=scenarios)
        finished = gate.check_envelope(scenarios, subjects, runs=runs, progress=progress)
    click.echo(f"run folder: {finished.folder}", err=True)
    click.get_current_context().meta[RUN_FOLDER] = finished.folder
    return finished.outcome


@main.command()
@click.argument("folder", metavar="[RUN]", default="latest", type=click.Path(path_type=Path, file_okay=False),
                shell_complete=completion.runs)  # fmt: skip
@RUNS_OPTION
@reported
def judge(folder: Path, runs: Path) -> Outcome:
    """Judge a run again from its records, the latest one if none is named; needs no engine and no GPU.

    RUN is its folder, the folder's name, or the word latest.
    """
    from perfgate import gate
    from perfgate.report.run_folders import find_run

    found = find_run(folder, runs)
    click.get_current_context().meta[RUN_FOLDER] = found
    return gate.judge_folder(found, lambda text: click.echo(f"perfgate: {text}", err=True))


@main.command("list")
@RUNS_OPTION
def list_runs(runs: Path) -> None:
    """List the runs, the newest first: when each began, what it measured and its verdict."""
    from perfgate.report.run_folders import list_runs as list_all
    from perfgate.report.run_folders import runs_document

    found = list_all(runs)
    if found:
        echo_document(runs_document(found), width=terminal_width())
    else:
        click.echo(f"{runs}/ holds no run")


@main.command()
@click.argument("files", nargs=-1, required=True, shell_complete=completion.runs)
@click.option("--scenario", type=click.Path(path_type=Path), help="Gates for a CSV.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="METRIC:IGNORABLE:MUST_CATCH",
    help="A gate for a CSV, a role's like kernel_time_per_step[gemm]:1%:5%; may be given several times.",
)
@RUNS_OPTION
@reported
def compare(files: tuple[str, ...], scenario: Path | None, gates: tuple[str, ...], runs: Path) -> Outcome:
    """Compare two runs or records, or the two sides of a CSV.

    \b
    perfgate compare RUN_A RUN_B
        unpaired, advisory; a run is a folder, its name, the word latest,
        or one of its records; RUN:base or RUN:head picks a side
    perfgate compare RUN BASELINE.json
        against a stored baseline, which blocks from four visits on
    perfgate compare FILE.csv --gate itl_median:0.1%:0.5%
        columns pair,subject,metric,unit,value; without pair advisory
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate import gate
    from perfgate.baseline.store import is_baseline
    from perfgate.errors import UsageError
    from perfgate.report.run_folders import find_record
    from perfgate.scenario.declaration import load
    from perfgate.scenario.plan import resolve_cells

    if len(files) == 1 and files[0].endswith(".csv"):
        planned = [gate.parse_gate(word) for word in gates]
        planned += resolve_cells(load(scenario))[0].gates if scenario else ()
        if not planned:
            raise UsageError("a CSV needs gates", remedy="Give --scenario FILE or --gate itl_median:0.1%:0.5%.")
        return gate.compare_table(Path(files[0]), planned)
    if len(files) == 2:  # noqa: PLR2004 (base and head)
        if scenario or gates:
            raise UsageError("records carry their own gates; --scenario and --gate are for a CSV")
        if is_baseline(Path(files[1])):
            return gate.compare_with_baseline(find_record(files[0], runs), Path(files[1]))
        return gate.compare_records(*(find_record(word, runs) for word in files))
    raise UsageError("expected two runs or records, or one file that ends in .csv")


@main.command()
@click.argument("code", required=False, shell_complete=completion.codes)
def explain(code: str | None) -> None:
    """Print the page of a reason code, or the list of all codes."""
    from perfgate.errors import UsageError
    from perfgate.reasons import REASONS
    from perfgate.report.reasons_page import render_page
    from perfgate.scenario.yaml_document import did_you_mean

    if code is None:
        width = max(map(len, REASONS))
        for reason in REASONS.values():
            click.echo(f"{reason.code.ljust(width)}  {reason.meaning.split('. ')[0].rstrip('.')}.")
        return
    if code not in REASONS:
        raise UsageError(f"no reason code {code!r}{did_you_mean(code, REASONS)}", remedy="perfgate explain lists them.")
    click.echo(render_page(REASONS[code]), nl=False)


@main.command()
@click.argument("what", type=click.Choice(["scenario", "config", "verdict", "doctor"]), default="scenario")
def schema(what: str) -> None:
    """Print the JSON Schema (draft-07) of scenario files, perfgate.toml, verdict.json or what doctor prints."""
    import json

    from perfgate.doctor.diagnosis import diagnosis_schema
    from perfgate.judge.outcome import verdict_schema
    from perfgate.project.config import config_schema
    from perfgate.scenario.declaration import json_schema

    schemas = {
        "scenario": json_schema, "config": config_schema, "verdict": verdict_schema, "doctor": diagnosis_schema,
    }  # fmt: skip
    click.echo(json.dumps(schemas[what](), indent=2))


for command in (check, kernels, counters, doctor, clocks, clean, baseline, github, nightly, init, verify):
    main.add_command(command)

"""Commands that read what was measured: judge, list, compare, report, explain; and the schemas of files.

Slow imports are in the bodies of commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from perfgate import rooms
from perfgate.cli.output_options import (
    RUN_FOLDER,
    RUNS,
    RUNS_OPTION,
    complete_runs,
    complete_runs_and_codes,
    echo_document,
    in_project,
    reported,
    run_named,
    say,
    terminal_width,
)
from perfgate.errors import UsageError
from perfgate.reasons import REASONS, current

if TYPE_CHECKING:
    from perfgate.judge.outcome import Outcome

SCHEMAS = {"scenario": "perfgate.scenario.declaration:json_schema", "verdict": "perfgate.judge.outcome:verdict_schema"}
"""What makes each schema, imported when it is asked for; rooms bring more."""


@click.command()
@click.argument("folders", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path, file_okay=False),
                shell_complete=complete_runs)  # fmt: skip
@RUNS_OPTION
@reported
@rooms.with_options("judge")
def judge(folders: tuple[Path, ...], runs: Path) -> Outcome:
    """Judge a run again from its records, the latest one if none is named; needs no engine and no GPU.

    RUN is its folder, the folder's name, or the word latest. The shards of a plan are joined to one run and judged
    together; what is missing of the plan is not measured. With --plan they must be of the plan that was printed.

    \b
    perfgate judge
    perfgate judge shard-*/ --plan plan.json
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate import gate
    from perfgate.record.shards import is_shard
    from perfgate.report.run_folders import LATEST

    words = folders or (Path(LATEST),)
    run_folder = run_named(words[0], runs)
    if len(words) > 1 or is_shard(run_folder):
        raise rooms.missing("fleet", "the shards of a plan")
    click.get_current_context().meta[RUN_FOLDER] = run_folder
    return gate.judge_folder(run_folder, say)


@click.command("list")
@RUNS_OPTION
def list_runs(runs: Path) -> None:
    """List the runs, the newest first: when each began, what it measured and its verdict."""
    from perfgate.report.run_folders import list_runs as list_all
    from perfgate.report.run_folders import runs_document

    listed = list_all(runs)
    if listed:
        echo_document(runs_document(listed), width=terminal_width())
    else:
        click.echo(f"{runs}/ holds no run")


@click.command()
@click.argument("files", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--scenario", type=click.Path(path_type=Path), help="Gates for a CSV.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="METRIC:IGNORABLE:MUST_CATCH",
    help="A gate for a CSV, a role's like kernel_time_per_step[gemm]:1%:5%; may be given several times.",
)
@click.option(
    "--order",
    type=click.Choice(["randomised"]),
    help="Of a CSV without a column order: a coin decided for each pair which side ran first, and both did.",
)
@RUNS_OPTION
@reported
def compare(
    files: tuple[str, ...],
    scenario: Path | None,
    gates: tuple[str, ...],
    order: Literal["randomised"] | None,
    runs: Path,
) -> Outcome:
    """Compare two runs or records, or the two sides of a CSV.

    \b
    perfgate compare RUN_A RUN_B
        unpaired, advisory; a run is a folder, its name, the word latest,
        or one of its records; RUN:base or RUN:head picks a side
    perfgate compare RUN BASELINE.json
        against a stored baseline, which blocks from four visits on
    perfgate compare A.json B.json
        results of vllm bench, sglang.bench_serving, GuideLLM, aiperf,
        genai-perf or llama-bench; advisory
    perfgate compare FILE.csv --gate itl_median:0.1%:0.5%
        columns pair,order,subject,metric,unit,value; without pair advisory;
        order is the place in the pair, 1 or 2, without which nothing blocks
    """  # noqa: D301 (click reads a real backspace: keep the lines)
    from perfgate.judge.comparison import compare_records, compare_table, parse_gate
    from perfgate.scenario.declaration import load
    from perfgate.scenario.plan import resolve_cells

    if len(files) == 1 and files[0].endswith(".csv"):
        planned = [parse_gate(word) for word in gates]
        planned += resolve_cells(load(scenario))[0].gates if scenario else ()
        if not planned:
            raise UsageError("a CSV needs gates", remedy="Give --scenario FILE or --gate itl_median:0.1%:0.5%.")
        return compare_table(Path(files[0]), planned, order)
    if len(files) == 2:  # noqa: PLR2004 (base and head)
        if scenario or gates or order:
            raise UsageError("records carry their own gates; --scenario, --gate and --order are for a CSV")
        from perfgate.report.run_folders import find_record

        def found(word: str) -> str:
            return find_record(word, runs, say)

        for place in rooms.entries("comparisons").values():
            outcome: Outcome | None = rooms.bring(place)(files[0], Path(files[1]), found)
            if outcome is not None:
                return outcome
        return compare_records(*map(found, files))
    raise UsageError("expected two runs or records, or one file that ends in .csv")


@click.command()
@click.argument("folder", metavar="[RUN]", default="latest", type=click.Path(path_type=Path, file_okay=False),
                shell_complete=complete_runs)  # fmt: skip
@click.option("--output", "file", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the page to this file; by default report.html in the run's folder.")  # fmt: skip
@RUNS_OPTION
def report(folder: Path, file: Path | None, runs: Path) -> None:
    """Write a run, the latest one if none is named, as one HTML file: the verdict, the evidence and the cause.

    The file opens from disk and loads nothing. RUN is its folder, the folder's name, or the word latest.
    """
    from perfgate import gate
    from perfgate.report.html import run_html
    from perfgate.report.run_page import MeasuredRun

    run_folder = run_named(folder, runs)
    page = file or run_folder / "report.html"
    page.write_text(run_html(MeasuredRun.of(gate.outcome_of(run_folder), run_folder)), encoding="utf-8")
    click.echo(page)


@click.command()
@click.argument("what", metavar="[RUN|CODE]", required=False, shell_complete=complete_runs_and_codes)
@RUNS_OPTION
def explain(what: str | None, runs: Path) -> None:
    """Say why a run has its verdict, step by step; print the page of a reason code, or the list of all codes.

    RUN is its folder, the folder's name, or the word latest.
    """
    from perfgate import gate
    from perfgate.record.run_names import RUN
    from perfgate.record.stop import read_stop
    from perfgate.report.outcome_document import explanation_document
    from perfgate.report.run_folders import LATEST
    from perfgate.scenario.yaml_document import did_you_mean

    if what is None:
        width = max(map(len, REASONS))
        for reason in REASONS.values():
            click.echo(f"{reason.code.ljust(width)}  {reason.meaning.split('. ')[0].rstrip('.')}.")
    elif (code := current(what)) in REASONS:
        reason = REASONS[code]
        meaning, remedy = (textwrap.fill(text, 100) for text in (reason.meaning, reason.remedy))
        click.echo(f"{reason.code}\n\n{meaning}\n\nWhat to do: {remedy}")
    elif what == LATEST or Path(what).is_dir() or (runs / what).is_dir():
        folder = run_named(Path(what), runs)
        outcome = gate.outcome_of(folder)
        by_name = Path(in_project(RUNS), outcome.run).resolve() == folder.resolve()
        document = explanation_document(outcome, "" if by_name else str(folder), read_stop(folder))
        echo_document(document, width=terminal_width())
    else:
        near = did_you_mean(what, (*REASONS, *(file.parent.name for file in runs.glob(f"*/{RUN}"))))
        remedy = "perfgate list shows the runs, perfgate explain the reason codes."
        raise UsageError(f"{what!r} is neither a run in {runs}/ nor a reason code{near}", remedy=remedy)


@click.command()
@click.argument("what", type=click.Choice([*SCHEMAS, *rooms.entries("schemas")]), default="scenario")
def schema(what: str) -> None:
    """Print the JSON Schema (draft-07) of scenario files, perfgate.toml, verdict.json or what doctor prints."""
    click.echo(json.dumps(rooms.bring((SCHEMAS | rooms.entries("schemas"))[what])(), indent=2))

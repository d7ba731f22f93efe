"""The command line: every command, what goes to which stream, and the exit statuses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, STEP_S, cell, gate, record, scenario_file, spread, trial

from perfgate import __version__, rooms
from perfgate import gate as use_cases
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.judge.outcome import Outcome, verdict_schema
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import write_record
from perfgate.report.formats import render

pytestmark = pytest.mark.usefixtures("no_orphans")

SLOWER = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)
SAME = FakeSpec(restart_sd=0.0003)
NOISY = FakeSpec(restart_sd=0.02)
PROFILES = ("baseline", "calls", "kernels")
TWO_SIDES = ("--base", "python=/bin/true", "--head", "env.BUILD=new", "--seed", "1")

Invoke = Callable[..., Result]


COMMANDS = rooms.entries("commands")


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """A function that runs perfgate in an empty project with a fake that takes the trials."""
    monkeypatch.chdir(tmp_path)
    scenario_file(tmp_path)

    def one(*words: str, spec: FakeSpec = SAME, collector: FakeCollector | None = None) -> Result:
        return CliRunner().invoke(main, words, obj=collector or FakeCollector(spec))

    return one


def run_folder() -> Path:
    """The one run folder of the project."""
    (folder,) = Path("runs").iterdir()
    return folder


class Raising(FakeCollector):
    """A fake that raises at its third trial."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(SAME)
        self.error = error

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Raise, or take a fake trial."""
        if job.index == 3:
            raise self.error
        return super().collect(job, progress)


# --- errors of the system


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("no lock is to be had"), "perfgate: no lock is to be had\n"),
        (OSError(28, "No space left on device"), "perfgate: No space left on device\n"),
        (OSError(28, "No space left on device", "a.md"), "perfgate: a.md: No space left on device\n"),
    ],
)
def test_an_error_of_the_system(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, line: str
) -> None:
    """An error that names no file is told without one."""

    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr("perfgate.gate.judge_folder", refused)

    result = invoke("judge", str(tmp_path))

    assert (result.stderr, result.exit_code) == (line, 22)


# --- run


@pytest.mark.parametrize(
    ("spec", "words", "status", "sentence"),
    [
        (SLOWER, TWO_SIDES, 10, "REGRESSED: itl"),
        (SAME, TWO_SIDES, 0, "PASS: every gate"),
        (FakeSpec(head_ratio={"step": 0.99}, restart_sd=0.0003), TWO_SIDES, 0, "PASS, IMPROVED: "),
        (NOISY, TWO_SIDES, 20, "INCONCLUSIVE: "),
        (FakeSpec(failures={1: "engine-start-failed"}), TWO_SIDES, 22, "NOT MEASURED: "),
        (SAME, TWO_SIDES[:2], 21, "MEASURED ONE SIDE: "),
        (SLOWER, (*TWO_SIDES, "--quick"), 20, "INCONCLUSIVE: "),
        (SLOWER, (*TWO_SIDES, "--exit-zero"), 0, "REGRESSED: itl"),
    ],
    ids=["slower", "same", "faster", "noisy", "failing", "one-side", "quick", "exit-zero"],
)
def test_run(invoke: Invoke, spec: FakeSpec, words: tuple[str, ...], status: int, sentence: str) -> None:
    """A run ends with the status of its verdict and says it in Markdown's first line; judged again it says the same."""
    result = invoke("run", "tiny.yaml", *words, spec=spec)
    before = (run_folder() / "verdict.json").read_bytes()
    again = invoke("judge", str(run_folder()), "--format", "json", *({"--exit-zero"} & {*words}))

    assert (result.exit_code, again.exit_code) == (status, status)
    assert result.stdout.startswith(f"**{sentence}")
    assert again.stdout.encode() == (run_folder() / "verdict.json").read_bytes() == before


def test_outputs(invoke: Invoke) -> None:
    """Every --output is written in the format of its suffix; the report alone is on stdout, all else on stderr."""
    result = invoke("run", "tiny.yaml", *TWO_SIDES, "--output", "a.md", "--output", "b.txt", "--output", "c.json")

    outcome = Outcome.model_validate_json(Path("c.json").read_text())
    assert Path("c.json").read_bytes() == (run_folder() / "verdict.json").read_bytes()
    assert Path("a.md").read_text() == render("outcome", "markdown", outcome) == result.stdout
    assert Path("b.txt").read_text() == render("outcome", "text", outcome)
    assert "trial 000 warm-up base: ITL 5." in result.stderr
    assert result.stderr.splitlines()[-1] == f"run folder: {run_folder()}"


@pytest.mark.parametrize(
    ("file", "says"),
    [("a.pdf", "unknown suffix '.pdf'"), ("none/a.md", "its folder does not exist"), ("a.md", "may not write there")],
)
def test_impossible_output(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, file: str, says: str) -> None:
    """An output that cannot be written is refused before anything is measured."""
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)

    result = invoke("run", "tiny.yaml", *TWO_SIDES, "--output", file)

    assert result.exit_code == 2
    assert says in result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("spec", "more", "status", "verdict"),
    [(SAME, (), 22, "pass"), (SLOWER, (), 10, "regressed"), (SLOWER, ("--exit-zero",), 22, "regressed")],
)
def test_output_lost(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, spec: FakeSpec, more: tuple[str, ...], status: int, verdict: str
) -> None:
    """An output that fails costs no other report and no verdict that blocks, but 0 promises every report."""
    whole = Path.write_text

    def refuse(file: Path, *words: str, **options: str) -> int:
        if file.name == "a.md":
            raise OSError(28, "No space left on device", "a.md")
        return whole(file, *words, **options)

    monkeypatch.setattr(Path, "write_text", refuse)

    result = invoke("run", "tiny.yaml", *TWO_SIDES, "--output", "a.md", "--output", "b.json", *more, spec=spec)

    assert result.exit_code == status
    assert result.stdout.startswith(f"**{verdict.upper()}")
    *_, lost, kept = result.stderr.splitlines()
    assert lost.endswith("--output a.md: No space left on device")
    assert kept.endswith(f" perfgate judge {run_folder()}.")
    assert Outcome.model_validate_json(Path("b.json").read_text()).verdict == verdict


def test_internal_error(invoke: Invoke) -> None:
    """An unknown error of perfgate's own ends with 1, and the report has the traceback."""
    result = invoke("run", "tiny.yaml", *TWO_SIDES, collector=Raising(ValueError("no such thing")))

    assert (result.exit_code, "ValueError: no such thing" in result.stdout) == (1, True)


@pytest.mark.needs("project")
def test_subjects_of_the_project(invoke: Invoke) -> None:
    """Subjects named in perfgate.toml can be named on the command line."""
    Path("perfgate.toml").write_text('[subjects.main]\npython = "/bin/true"\n[subjects.pr]\npath = "new"\n')

    assert invoke("run", "tiny.yaml", "--base", "main", "--head", "pr").exit_code == 0
    subjects = json.loads((run_folder() / "run.json").read_text())["subjects"]
    assert subjects["head"]["path"] == [str(Path("new").absolute())]


# --- mistakes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "none.yaml", *TWO_SIDES), "none.yaml"),
        (("run", "tiny.yaml", "--base", "nobody"), "--base nobody: no such subject"),
        pytest.param(
            ("run", "tiny.yaml", "--base", "ref=main"), "ref=main needs [build]", marks=pytest.mark.needs("project")
        ),
        (("run", "tiny.yaml", "tiny.yaml", *TWO_SIDES), "tiny.yaml has the same name, tiny"),
        (("run",), "nothing to measure: scenarios/ holds no scenario"),
        (("run", "tiny.yaml", "--seed", "-1"), "--seed"),
        (("run", "tiny.yaml", "--format", "pdf"), "pdf"),
        (("fly",), "No such command 'fly'"),
        (("judge", "none"), "none: does not exist, and runs/ holds no run of that name"),
        (("judge",), "runs: holds no run"),
        (("judge", "."), "not a run folder: it has no run.json"),
        (("compare", "a.json"), "expected two runs or records, or one file that ends in .csv"),
        (("compare", "a.json", "b.json"), "a.json: does not exist"),
        (("compare", "a.json", "b.json", "--gate", "itl_median:1%:2%"), "records carry their own gates"),
        (("compare", "t.csv"), "a CSV needs gates"),
        (("compare", "t.csv", "--gate", "itl_median:1%:2%"), "t.csv: does not exist"),
        (("compare", "t.csv", "--gate", "itl_median"), "expected METRIC:IGNORABLE:MUST_CATCH"),
        (("schema", "record"), "record"),
        (("run", "tiny.yaml", *TWO_SIDES, "--head", "env.CUDA_VISIBLE_DEVICES=1"), "env.CUDA_VISIBLE_DEVICES: set it"),
        *(
            pytest.param(words, text, marks=pytest.mark.needs(*rooms))
            for words, text, rooms in (
                (("envelope", "check", "tiny.yaml", *TWO_SIDES[:4]), "envelope learn tiny.yaml --base", ("kernels",)),
                (("profile", "learn", "tiny.yaml", "--base", "python=/bin/true"), "a profile needs a reason", PROFILES),
                (("profile", "learn", "--reason", "why"), "name a scenario, or a run with --from", PROFILES),
                (("profile", "learn", "tiny.yaml", "--from", "latest", "--reason", "why"), "or a run", PROFILES),
                (("run", "tiny.yaml", "--profile-only", "--against", "baseline"), "no times to hold", PROFILES),
                (("run", "--resume", "latest", "--profile-only"), "--profile-only cannot be given", PROFILES),
            )
        ),
    ],
)
def test_usage_errors(invoke: Invoke, words: tuple[str, ...], says: str) -> None:
    """A wrong command line ends with 2, says what was wrong on stderr, prints nothing and makes no run folder."""
    result = invoke(*words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("runs").exists()


@pytest.mark.needs("project")
def test_gpus_are_chosen_for_all_of_perfgate(invoke: Invoke) -> None:
    """Engines cannot be sent to GPUs that are not guarded: neither by a scenario nor by a subject of the project."""
    file = Path("tiny.yaml")
    file.write_text(file.read_text().replace("engine: {", 'engine: {env: {CUDA_VISIBLE_DEVICES: "1"}, '))
    in_scenario = invoke("run", "tiny.yaml", *TWO_SIDES)
    scenario_file(Path())
    Path("perfgate.toml").write_text(
        '[subjects.main]\npython = "/bin/true"\nenv = {CUDA_DEVICE_ORDER = "PCI_BUS_ID"}\n'
    )
    in_subject = invoke("run", "tiny.yaml", "--base", "main")

    assert (in_scenario.exit_code, in_subject.exit_code) == (2, 2)
    assert in_scenario.stderr.startswith("tiny.yaml:3:16: engine.env.CUDA_VISIBLE_DEVICES: ")
    assert "perfgate.toml: subjects.main.env.CUDA_DEVICE_ORDER: " in in_subject.stderr


@pytest.mark.needs("kernels")
def test_an_envelope_check_needs_a_head(invoke: Invoke) -> None:
    """One side alone cannot be checked, however well the envelope is declared."""
    scenario_file(Path(), more="kernels: {per_decode_step: {names: {attention: [FlashAttnFwdSm90]}}}")

    result = invoke("envelope", "check", "tiny.yaml", "--base", "python=/bin/true")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "no head to check" in result.stderr


@pytest.mark.needs("kernels")
def test_an_envelope_learnt_from_a_run_folder(invoke: Invoke) -> None:
    """``learn --from`` writes what the traced pairs of a finished run show, without an engine; without any it is 22."""
    file = Path("tiny.yaml")
    before = file.read_text()
    with_traces, without = (
        use_cases.run([file], {"base": BASE, "head": BASE}, collector=FakeCollector(SAME), kernels_only=only)
        for only in (True, False)
    )

    failed = invoke("envelope", "learn", "tiny.yaml", "--from", str(without.folder))
    shown = invoke("envelope", "learn", "tiny.yaml", "--from", str(with_traces.folder), "--dry-run")
    unwritten = file.read_text()
    written = invoke("envelope", "learn", "tiny.yaml", "--from", str(with_traces.folder))

    assert (failed.exit_code, failed.stdout) == (22, "")
    assert f"perfgate: evidence-missing: {without.folder}: tiny: " in failed.stderr
    assert unwritten == before
    assert (shown.exit_code, written.exit_code) == (0, 0)
    assert file.read_text() == shown.stdout
    assert shown.stdout.startswith(before.rstrip())
    assert "launches: 326" in shown.stdout.removeprefix(before.rstrip())


@pytest.mark.needs("baseline", "calls", "kernels")
@pytest.mark.parametrize(("lines", "status", "written"), [(1.0, 0, 1), (1.03, 0, 1), (1.3, 10, 0)])
def test_a_profile_is_learnt_of_engines_that_pass(invoke: Invoke, lines: float, status: int, written: int) -> None:
    """Where two engines of one build are not alike, no check could pass: the report says so, and nothing is written."""
    words = ("profile", "learn", "tiny.yaml", "--base", "python=/bin/true", "--reason", "why")

    learnt = invoke(*words, spec=replace(SAME, head_ratio={"lines": lines}))

    assert (learnt.exit_code, len([*Path().glob("profiles/*.json")])) == (status, written)
    assert ("REGRESSED: the work of a step (exact)." in learnt.stdout) == ("learn --from runs/" in learnt.stderr)
    assert ("no profile was written" in learnt.stderr) == (not written)
    accepted = invoke("profile", "learn", "--from", "latest", "--reason", "it is so")
    assert (accepted.exit_code, len([*Path().glob("profiles/*.json")])) == (0, 1)


@pytest.mark.needs("baseline", "calls", "kernels")
def test_no_profile_is_offered_of_engines_that_failed(invoke: Invoke) -> None:
    """There is nothing to accept: the report says what went wrong."""
    failing = replace(SAME, failures=dict.fromkeys(range(9), "engine-failed"))

    learnt = invoke("profile", "learn", "tiny.yaml", "--base", "python=/bin/true", "--reason", "why", spec=failing)

    assert learnt.exit_code == 22
    assert "no profile was written" in learnt.stderr
    assert "--from" not in learnt.stderr
    assert "engine-failed" in learnt.stdout


@pytest.mark.parametrize("command", [("run", "wrong.yaml", *TWO_SIDES), ("check", "wrong.yaml")])
def test_scenario_errors(invoke: Invoke, command: tuple[str, ...]) -> None:
    """Every mistake of a scenario is a line ``file:line:column: field: text`` on stderr."""
    text = (
        Path("tiny.yaml").read_text().replace("batch: 2", "batch: two").replace("must_catch: 0.5%", "must_catch: 0.5")
    )
    Path("wrong.yaml").write_text(text)

    result = invoke(*command)

    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("wrong.yaml:4:19: workload.batch: expected ")
    assert second.startswith("wrong.yaml:6:59: gates[0].must_catch: expected a percentage")


# --- check, schema, help


def test_check(invoke: Invoke, golden: Callable[[str, str], None]) -> None:
    """Cells, pairs, engine starts, gates and error rates are the golden file's, of several heads too; none starts."""
    scenario_file(Path(), "more", "{metric: ttft_median, ignorable: 2%, must_catch: 8%, floor: 1ms}",
                  "matrix: {batch: [1, 8]}")  # fmt: skip
    scenario_file(Path(), "twin")
    heads = ["--head", "a:args.max_num_seqs=4", "--head", "b:args.max_num_seqs=8"]

    shown = [invoke("check", *words)
             for words in (("tiny.yaml", "more.yaml", "twin.yaml"), ("tiny.yaml", *TWO_SIDES[:2], *heads))]  # fmt: skip

    assert [one.exit_code for one in shown] == [0, 0]
    golden("check.txt", "\n".join(one.stdout for one in shown))
    assert not Path("runs").exists()


def test_check_prices_a_cell_by_its_newest_record(invoke: Invoke) -> None:
    """After a run, check names minutes and detectable effects from its record."""
    assert invoke("run", "tiny.yaml", *TWO_SIDES).exit_code == 0

    printed = invoke("check", "tiny.yaml").stdout

    assert re.search(r"minutes until each look: [0-9, ]+ \(from the record of ", printed)
    (name,) = (folder.name for folder in Path("runs").iterdir())
    assert re.search(rf"pair spread 0\.[0-9]+ % \(from the record of run {name}\); detectable at ", printed)
    assert re.search(r"detectable at 4, 6, 8, 12 pairs: cannot block(, 0\.[0-9]+ %){3}", printed)


def test_dump(invoke: Invoke) -> None:
    """A dumped scenario has its defaults filled in and is the same cell."""
    dumped = invoke("check", "--dump", "tiny.yaml")
    Path("dumped.yaml").write_text(dumped.stdout)

    assert dumped.exit_code == 0
    assert "max_dropped_pairs: 2" in dumped.stdout
    ids = [invoke("check", name).stdout.split()[2] for name in ("tiny.yaml", "dumped.yaml")]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ((), "perfgate scenario"),
        (("verdict",), "perfgate verdict"),
        pytest.param(("config",), "perfgate.toml", marks=pytest.mark.needs("project")),
    ],
)
def test_schema(invoke: Invoke, words: tuple[str, ...], title: str) -> None:
    """Schema prints the JSON Schema asked for, that of scenarios by default."""
    result = invoke("schema", *words)

    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    assert schema["title"] == title
    if words == ("verdict",):
        assert schema == verdict_schema()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help(invoke: Invoke, name: str) -> None:
    """Every command and every option of it has help text, and --help prints it."""
    command = main.get_command(click.Context(main), name)
    assert command

    assert command.help
    assert command.get_short_help_str(200) == COMMANDS[name]["help"]
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert command.help.split()[:4] == result.stdout.partition("\n\n")[2].split()[:4]
    assert "\\b" not in result.stdout


def test_commands(invoke: Invoke) -> None:
    """The help lists the commands; the version is the package's."""
    shown = invoke("-h").stdout

    assert {"run", "check", "judge", "compare", "schema"} <= {*COMMANDS}
    assert all(name in shown for name in COMMANDS)
    assert invoke("--version").stdout == f"perfgate, version {__version__}\n"


# --- compare


def save(name: str, factor: float = 1.0, cell_name: str = "cell") -> str:
    """Write a one-sided record of six trials."""
    measured = cell(cell_name, [gate("itl_median", "1%", "5%")])
    taken = [trial(n, n, "base", STEP_S * factor + 1e-5 * (n % 3)) for n in range(6)]
    write_record(Path(name), record(measured, taken, subjects={"base": BASE}))
    return name


def test_compare_records(invoke: Invoke) -> None:
    """Two one-sided records are compared as advice, with 20."""
    result = invoke("compare", save("a.json"), save("b.json", 1.2))

    assert result.exit_code == 20
    assert result.stdout.startswith("**ADVISORY: would be regressed ")


def test_compare_other_cells(invoke: Invoke) -> None:
    """Records of different cells end with 21 and both names."""
    result = invoke("compare", save("a.json"), save("b.json", cell_name="other"))

    assert (result.exit_code, result.stdout) == (21, "")
    assert "a.json holds cell (cell), b.json holds other (other)" in result.stderr


def write_table(slowdowns: list[float], *, paired: bool = True) -> str:
    """A CSV of itl_median in milliseconds, each side first in every other pair."""
    rows = ["pair,order,subject,metric,unit,value" if paired else "subject,metric,unit,value"]
    for n, d in enumerate(slowdowns):
        base, head = (f"{n},{1 + (n + place) % 2}," if paired else "" for place in (0, 1))
        rows += [f"{base}base,itl_median,ms,5.0", f"{head}head,itl_median,ms,{5 * (1 + d)}"]
    Path("t.csv").write_text("\n".join(rows))
    return "t.csv"


@pytest.mark.parametrize(
    ("slowdowns", "paired", "status"),
    [
        (spread(0.0, 0.0002, 6), True, 0),
        (spread(0.02, 0.0002, 7), True, 10),
        (spread(0.02, 0.0002, 6), True, 20),
        (spread(0.02, 0.0002, 6), False, 20),
        (spread(0.0, 0.0002, 6), False, 20),
    ],
)
@pytest.mark.parametrize("gates", [("--gate", "itl_median:0.1%:0.5%"), ("--scenario", "tiny.yaml")])
def test_compare_table(
    invoke: Invoke, slowdowns: list[float], status: int, gates: tuple[str, ...], *, paired: bool
) -> None:
    """A paired CSV passes, blocks or stays open by the rule; an unpaired one is advice."""
    assert invoke("compare", write_table(slowdowns, paired=paired), *gates).exit_code == status


def test_compare_wrong_table(invoke: Invoke) -> None:
    """A mistake in a CSV ends with 2 and its line."""
    file = write_table([0.0] * 4)
    Path(file).write_text(Path(file).read_text().replace("1,1,head,itl_median", "1,1,head,itl"))

    result = invoke("compare", file, "--gate", "itl_median:0.1%:0.5%")

    assert result.exit_code == 2
    assert "t.csv:5: unknown metric 'itl'" in result.stderr


# --- runs by name


@pytest.fixture
def two_runs(invoke: Invoke) -> tuple[Path, Path]:
    """Two runs of the project that regressed, the second one begun a day later."""
    for words in (TWO_SIDES, (*TWO_SIDES[:2], "--head", "env.TOKEN=secret", "--head", "args.max_num_seqs=2")):
        invoke("run", "tiny.yaml", *words, spec=SLOWER)
    folders = sorted(Path("runs").iterdir(), key=lambda one: (one / "run.json").stat().st_mtime_ns)
    older, newest = (folder.rename(f"runs/tiny-2026010{day}T000000Z-abc") for day, folder in enumerate(folders, 1))
    return older, newest


def test_the_latest_run(invoke: Invoke, two_runs: tuple[Path, Path]) -> None:
    """A run is meant by its folder, its name or ``latest``, and judge alone takes the newest."""
    older, newest = two_runs

    said = [invoke("judge", *words, "--format", "json").stdout
            for words in ((), ("latest",), (newest.name,), (str(newest),), (str(older),))]  # fmt: skip

    assert [json.loads(one)["run"] == json.loads(said[0])["run"] for one in said] == [True] * 4 + [False]
    assert json.loads(said[0])["run"] == json.loads((newest / "run.json").read_text())["name"]


def test_go_on_with_the_latest_run(invoke: Invoke, two_runs: tuple[Path, Path]) -> None:
    """``run --resume latest`` goes on with the newest run; a decided one has nothing left to measure."""
    result = invoke("run", "--resume", "latest")

    assert result.exit_code == 10
    assert result.stderr.splitlines()[-1] == f"run folder: {two_runs[1]}"


def test_compare_run_folders(invoke: Invoke, two_runs: tuple[Path, Path]) -> None:
    """Runs are compared like records, cell by cell, and two-sided ones need their side."""
    older, newest = two_runs

    unsaid = invoke("compare", str(older), "latest")
    same = invoke("compare", f"{older.name}:base", "latest:base")
    slower = invoke("compare", f"{older}:base", f"{newest}:head", "--format", "json")

    assert (unsaid.exit_code, same.exit_code, slower.exit_code) == (2, 20, 20)
    assert f"Say which: {older}:base or {older}:head." in unsaid.stderr
    assert same.stdout.startswith("**ADVISORY: would be ")
    assert json.loads(slower.stdout)["would_be"] == "regressed"


def test_compare_several_cells(invoke: Invoke) -> None:
    """Every cell that is in both runs is compared, and one that is in one of them alone is named."""
    scenario_file(Path(), "both", more="matrix: {batch: [1, 2]}")
    invoke("run", "both.yaml", *TWO_SIDES)
    scenario_file(Path(), "both", more="matrix: {batch: [2, 1, 4]}")
    invoke("run", "both.yaml", *TWO_SIDES, spec=SLOWER)
    one, other = sorted(Path("runs").iterdir(), key=lambda run: len([*run.glob("records/*")]))

    result = invoke("compare", f"{one}:base", f"{other}:head", "--format", "json")

    outcome = Outcome.model_validate_json(result.stdout)
    assert [cell.name for cell in outcome.cells] == ["both[batch=2]", "both[batch=1]"]
    assert {cell.verdict for cell in outcome.cells} == {"advisory"}
    assert outcome.reasons[0].text.endswith("; not in both: both[batch=4]")


@pytest.mark.needs("project")
def test_folders_of_a_project_are_found_from_below(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder below, runs go to and are found beside perfgate.toml, as it is; without one they are where one is."""
    Path("perfgate.toml").touch()
    Path("scenarios").mkdir()
    Path("tiny.yaml").rename("scenarios/tiny.yaml")
    Path("model").rename("scenarios/model")
    root = Path.cwd()
    monkeypatch.chdir("scenarios")

    ran = invoke("run", "tiny.yaml", *TWO_SIDES)
    assert ran.exit_code == 0, ran.output
    (folder,) = (root / "runs").iterdir()
    assert f"run folder: ../runs/{folder.name}" in ran.output
    assert folder.name in invoke("list").stdout
    assert folder.name in invoke("check", "tiny.yaml").stdout
    assert folder.name in invoke("explain", "latest").stdout
    (root / "perfgate.toml").unlink()
    assert invoke("list").stdout == "runs/ holds no run\n"


def test_list(invoke: Invoke, two_runs: tuple[Path, Path]) -> None:
    """Runs are listed with date, verdict and subjects, the newest first; values of variables are not shown."""
    (two_runs[0] / "verdict.json").unlink()
    broken = Path("runs/broken-20250101T000000Z-abc")
    broken.mkdir()
    (broken / "run.json").write_text("{")

    result = invoke("list")

    assert result.exit_code == 0
    heading, *rows = result.stdout.splitlines()
    assert heading.split()[0] == "run"
    assert [" ".join(row.split()) for row in rows[:2]] == [
        "tiny-20260102T000000Z-abc 2026-01-02 00:00 regressed python=/bin/true env.TOKEN=... args.max_num_seqs=2",
        "tiny-20260101T000000Z-abc 2026-01-01 00:00 open python=/bin/true env.BUILD=...",
    ]
    assert "run.json" in rows[2]
    assert "secret" not in result.stdout
    assert invoke("list", "--runs", "nowhere").stdout == "nowhere/ holds no run\n"


def test_a_row_of_the_list_is_one_line(invoke: Invoke, two_runs: tuple[Path, Path]) -> None:
    """Also where the path of an interpreter holds a line end."""
    file = two_runs[1] / "run.json"
    manifest = json.loads(file.read_text())
    manifest["subjects"]["base"]["python"] = "/bin/a\nb"
    file.write_text(json.dumps(manifest))

    assert [row.split()[0] for row in invoke("list").stdout.splitlines()[1:]] == [run.name for run in two_runs[::-1]]


@pytest.mark.parametrize("verdict", ["passed", "pass\n| pass |", "x" * 5000, ["pass"]])
def test_a_verdict_that_perfgate_does_not_know_is_not_listed(
    invoke: Invoke, two_runs: tuple[Path, Path], verdict: object
) -> None:
    """Whoever has a run folder may have changed it: no row shows words of his in the place of a verdict."""
    file = two_runs[1] / "verdict.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"verdict": verdict}))

    row = invoke("list").stdout.splitlines()[1]

    assert " ".join(row.split()[3:7]) == "verdict.json cannot be read"


@pytest.mark.parametrize(("count", "status"), [(1, 0), (2, 2)])
def test_run_alone(invoke: Invoke, count: int, status: int) -> None:
    """``perfgate run`` takes the only scenario of scenarios/; between several it does not choose."""
    folder = Path("scenarios")
    folder.mkdir()
    for number in range(count):
        scenario_file(folder, f"s{number}")

    result = invoke("run", *TWO_SIDES)

    assert result.exit_code == status
    assert " ".join(f"scenarios/s{number}.yaml" for number in range(count)) in result.stderr

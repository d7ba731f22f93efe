"""What must not change while the house is rebuilt: every recorded input, and what perfgate says of it.

An entry is a name and a function that makes what is kept of one input, as JSON. Sentences are left out: their wording
is held by the golden files of the reports, and may change. Nothing else may.
"""

from __future__ import annotations

import copy
import csv
import inspect
import json
import lzma
import random
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from hand_made import cell, gate, judged
from probed_runs import probed
from readers import CORPUS, READERS, refusal
from recorded_runs import FIXTURES, RUNS, _kept, recorded, recorded_together

from perfgate import gate as api
from perfgate.baseline.exact_profile import Profile
from perfgate.baseline.profile_comparison import judge_profiles
from perfgate.cli.main import main
from perfgate.errors import ExitStatus, PerfgateError
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import Outcome, verdict_json
from perfgate.machine.versioned_json import validated
from perfgate.metrics.catalogue import LOAD_METRICS, METRICS, PART_METRICS
from perfgate.metrics.trial import Iteration
from perfgate.record.run_record import Record, Run

Entry = Callable[[Path], Any]
"""Makes what is kept of one input; the folder is empty and for its own use."""

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("runs.tar.xz")
"""Run folders of a real engine: a server's, and one with trials of each kind that a CPU can take."""
WORDS = {"text", "lines", "title", "perfgate", "source", "description", "message"}
"""Keys whose values are sentences, or the version."""
TABLE_GATES = (
    ("itl_median:0.1%:0.5%",),
    ("itl_median:1%:3%",),
    ("itl_median:0.1%:0.5%", "tpot_mean:0.2%:1%", "ttft_median:1%:5%"),
)
SLOWER = (0.0, 0.003, 0.01)
"""What the head of a recording on GPUs that jump takes longer."""
PAYLOADS = {"calls": 9, "counted": 9, "decode": 9, "iterations": 3, "ranks": 9, "startup": 1, "telemetry": 1}
"""Fields of a trial that most changes go into, with how often."""
COMPARED = (
    "keys",
    "key_launches",
    "key_ns",
    "key_shapes",
    "copy_bytes",
    "waits",
    "patterns",
    "held",
    "steps",
    "launches",
)
"""Of these, what is held against the other build."""
MUTATIONS = 40
"""Of each recorded record."""
EXACT = "h200-exact.json.xz"


def entries() -> Iterator[tuple[str, Entry]]:
    """Every frozen input by name."""
    yield from _recorded()
    yield from _tables()
    yield from _files()
    yield from _surfaces()


def _recorded() -> Iterator[tuple[str, Entry]]:
    for name in RUNS:
        yield f"run {name}", partial(_run_facts, name)
    yield "runs together", lambda _: outcome_facts(recorded_together().outcome)
    for name in exact()["records"]:
        yield f"profile {name}", partial(_profile_facts, name)
    for name in (*RUNS, "exact"):
        for number in range(MUTATIONS):
            yield f"changed {name} {number}", partial(changed, name, number)
    for name in kept_names():
        yield f"folder {name}", partial(folder_facts, name)
        for number in range(MUTATIONS):
            yield f"tampered {name} {number}", partial(tampered, name, number)


def _tables() -> Iterator[tuple[str, Entry]]:
    for file in sorted(FIXTURES.glob("*.csv")):
        heading, *rows = csv.reader(file.read_text(encoding="utf-8", errors="replace").splitlines())
        for gates in TABLE_GATES if "metric" in heading else TABLE_GATES[:1]:
            for order in ((), ("--order", "randomised")):
                words = [word for one in gates for word in ("--gate", one)]
                yield f"table {file.name} {' '.join((*gates, *order))}", saying("compare", placed(file), *words, *order)
        if "settle_ns" in heading or file.name == "h200-x8-probe.csv":
            unknown = {row[0] for row in rows if not row[heading.index("before_ns")]}
            for run in sorted({row[0] for row in rows} - unknown):
                for slower in SLOWER:
                    yield f"jumping {file.name} {run} {slower}", partial(jumping, file.name, run, slower)


def _files() -> Iterator[tuple[str, Entry]]:
    for pattern, command in (("*torch*.json.gz", "kernels"), ("*.sqlite.gz", "kernels"), ("*ncu*", "counters")):
        for file in sorted(FIXTURES.glob(pattern)):
            yield f"{command} {file.name}", saying(command, placed(file))
    ranks = [placed(FIXTURES / f"cpu-tiny-tp2-rank{rank}.torch-2.13.json.gz") for rank in (0, 1)]
    yield "kernels of two ranks", saying("kernels", *ranks)
    yield "kernels of two builds", saying("kernels", ranks[0], "--diff", ranks[1])
    yield "baseline", saying("baseline", "show", placed(next((FIXTURES / "baselines").rglob("*.json"))))
    for name in sorted(READERS):
        for file in sorted((CORPUS / name).glob("*")):
            yield f"read {name} {file.name}", partial(read, name, file)


def _surfaces() -> Iterator[tuple[str, Entry]]:
    yield "commands", lambda _: commands(main)
    for schema in ("scenario", "config", "verdict", "doctor"):
        yield f"schema {schema}", partial(_schema, schema)
    yield "python", lambda _: {name: signature(getattr(api, name)) for name in api.__all__}
    yield "action", lambda _: action()
    by_role: list[Mapping[str, Any]] = [
        {name: one for name, one in PART_METRICS.items() if one.kind == kind} for kind in ("traced", "counted")
    ]
    tables: tuple[Mapping[str, Any], ...] = (METRICS, *by_role, LOAD_METRICS)
    for table in tables:
        yield f"metrics from {next(iter(table))}", partial(_units, table)
    yield "exit statuses", lambda _: {status.name: status.value for status in ExitStatus}


def _run_facts(name: str, _: Path) -> Any:
    return outcome_facts(recorded(name).outcome)


def _profile_facts(name: str, _: Path) -> Any:
    return exact_facts(name, exact()["records"][name])


def _schema(name: str, _: Path) -> Any:
    return without_words(json.loads(called("schema", name)[1]))


def _units(table: Mapping[str, Any], _: Path) -> dict[str, str]:
    return {name: metric.unit for name, metric in sorted(table.items())}


def signature(function: Callable[..., Any]) -> str:
    """Of a function: names, types and defaults of what it takes."""
    return re.sub(" at 0x[0-9a-f]+", "", str(inspect.signature(function)))


def outcome_facts(outcome: Outcome) -> Any:
    """Verdict, exit status, and all figures and codes of each cell and gate."""
    return without_words(json.loads(verdict_json(outcome)))


def without_words(content: Any) -> Any:
    """What is no sentence."""
    if isinstance(content, dict):
        return {key: without_words(value) for key, value in content.items() if key not in WORDS}
    return [without_words(value) for value in content] if isinstance(content, list) else content


@cache
def exact() -> dict[str, Any]:
    """A profile of exact counts, the run of a check, and a record for each head."""
    content: dict[str, Any] = json.loads(lzma.decompress((FIXTURES / EXACT).read_bytes()))
    return content


def exact_facts(name: str, record: dict[str, Any]) -> Any:
    """A record held against the profile."""
    measured = validated(Record, record, name)
    profile = validated(Profile, exact()["profile"], "profile")
    cell_id = measured.cell.cell_id
    run = validated(Run, exact()["run"], "run")
    facts = outcome_facts(judge_profiles(run, {cell_id: measured}, {cell_id: [profile]}))
    for judged_cell in facts["cells"]:
        judged_cell.pop("record")  # the digest of a record whose paths are made absolute, hence of this checkout
        judged_cell["setting"].pop("subjects")
    return facts


def jumping(file: str, run: str, slower: float, _: Path) -> Any:
    """Trials on a GPU with states, as a run of three gates."""
    taken = [one.model_copy(update={"iterations": tuple(map(partial(longer, 1 + slower), one.iterations))})
             if one.subject == "head" else one for one in probed(run, file)]  # fmt: skip
    margins = (("itl_median", "0.1%", "0.5%"), ("ttft_median", "1%", "5%"), ("tpot_mean", "0.1%", "0.5%"))
    return outcome_facts(judged(taken, cell(gates=[gate(*one) for one in margins], looks=(6, 8, 12))))


def longer(factor: float, measured: Iteration) -> Iteration:
    """Every time of an iteration, as much longer."""
    times = {
        name: tuple(round(factor * ns) for ns in getattr(measured, name)) for name in ("ttft_ns", "e2e_ns", "itl_ns")
    }
    return measured.model_copy(update=times)


def changed(name: str, number: int, _: Path) -> Any:
    """A recorded run of which one value of one trial of the head is another: which, and what is judged otherwise."""
    if name == "exact":
        record, run = copy.deepcopy(exact()["records"]["same"]), None
    else:
        kept = _kept(name)
        (record,), run = kept["records"], kept["run"]
    draw = random.Random(f"{name} {number}")  # noqa: S311
    trials = [trial for trial in record["trials"] if trial["subject"] == "head"]
    kind = draw.choice(sorted({trial["kind"] for trial in trials}))
    trial = draw.choice([trial for trial in trials if trial["kind"] == kind])
    place, path = trial, [kind]
    if payloads := [key for key in PAYLOADS if trial.get(key) and draw.random() < 0.9]:
        path += draw.choices(payloads, [PAYLOADS[key] for key in payloads])
        place = trial[path[-1]]
        if compared := [key for key in COMPARED if isinstance(place, dict) and place.get(key)]:
            place = {key: place[key] for key in compared if isinstance(place[key], (dict, list))} or place
    what = f"{'.'.join(path)}.{mutated(place, draw)}"
    try:
        if run is None:
            facts = exact_facts(name, record)
        else:
            measured = validated(Record, record, "record")
            facts = outcome_facts(judge(validated(Run, run, "run"), {measured.cell.cell_id: measured}))
    except PerfgateError as error:
        return {"what": what, "refused": error.exit_status, "code": error.code}
    return {"what": what, "verdict": facts["verdict"], "facts": difference(unchanged(name), flat(facts))}


@cache
def unchanged(name: str) -> dict[str, Any]:
    """What is said of the recording itself."""
    return flat(
        exact_facts("same", exact()["records"]["same"]) if name == "exact" else outcome_facts(recorded(name).outcome)
    )


def mutated(content: Any, draw: random.Random) -> str:
    """Change one value somewhere below, each level as likely as another; where, and how."""
    place, path = content, []
    while True:
        keys = sorted(place) if isinstance(place, dict) else [*range(len(place))]
        key = draw.choice([key for key in keys if place[key] not in (None, [], {}, "")] or keys)
        path.append(str(key))
        inner = place[key]
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.9:
            place = inner
            continue
        break
    if isinstance(inner, bool) or inner is None:
        how, place[key] = "not", not inner
    elif isinstance(inner, int):
        how = draw.choice(["doubled", "nothing", "more"])
        place[key] = {"doubled": 2 * inner, "nothing": 0, "more": inner + 1}[how]
    elif isinstance(inner, float):
        how, place[key] = "a tenth more", 1.1 * inner
    elif isinstance(inner, str):
        how, place[key] = "another word", inner + "x"
    else:
        how = draw.choice(["gone", "twice"]) if isinstance(place, list) else "gone"
        if how == "twice":
            place.append(copy.deepcopy(inner))
        else:
            del place[key]
    return f"{'.'.join(path)}: {how}"


def flat(content: Any, path: str = "") -> dict[str, Any]:
    """Values by their path."""
    if not isinstance(content, (dict, list)) or not content:
        return {path: content}
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    return {inner: value for key, below in pairs for inner, value in flat(below, f"{path}/{key}").items()}


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What is added or other, and ``gone`` for what is no longer there; identities follow the content."""
    after = {path: value for path, value in after.items() if not path.endswith("/record")}
    gone = {path: "gone" for path in before.keys() - after.keys() if not path.endswith("/record")}
    return gone | {path: value for path, value in after.items() if path not in before or before[path] != value}


def kept_names() -> list[str]:
    """Of the run folders."""
    with tarfile.open(KEPT) as kept:
        return sorted({name.split("/")[0] for name in kept.getnames()})


def unpacked(name: str, folder: Path) -> Path:
    """A run folder, written out."""
    with tarfile.open(KEPT) as kept:
        kept.extractall(folder, [one for one in kept.getmembers() if one.name.split("/")[0] == name], filter="data")
    return folder / name


def folder_facts(name: str, folder: Path) -> Any:
    """Judged again, verified and explained."""
    run = str(unpacked(name, folder))
    return {"judge": saying("judge", run)(folder), "verify": verified(run), "explain": called("explain", run)[0]}


def verified(run: str) -> Any:
    """The exit status of ``verify``, and the result of each check."""
    status, out, _ = called("verify", run)
    return [status, [line.split()[0] for line in out.splitlines() if line.startswith("  ")]]


def tampered(name: str, number: int, folder: Path) -> Any:
    """A file of a run folder of which a byte, a line or a value is another: what ``verify`` and ``judge`` say."""
    run = unpacked(name, folder)
    called("judge", str(run))  # its verdict.json has the words of this version
    draw = random.Random(f"{name} {number}")  # noqa: S311
    file = draw.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    data = file.read_bytes()
    how = draw.choice(["value", "value", "line", "byte", "gone"])
    if how == "value" and file.suffix == ".json":
        content = json.loads(data)
        how = mutated(content, draw)
        file.write_text(json.dumps(content))
    elif how == "gone":
        file.unlink()
    elif how == "line":
        lines = data.splitlines(keepends=True)
        del lines[draw.randrange(len(lines) or 1) : draw.randrange(len(lines) or 1) + 1]
        file.write_bytes(b"".join(lines))
    else:
        how, at = "byte", draw.randrange(len(data) or 1)
        file.write_bytes(data[:at] + bytes([(data[at] + 1) % 256 if data else 0]) + data[at + 1 :])
    checks = verified(str(run))
    status, out, _ = called("judge", str(run), "--format", "json")
    verdict = json.loads(out)["verdict"] if out.startswith("{") else ""
    return {
        "file": file.relative_to(run).as_posix(),
        "how": how,
        "verify": checks,
        "judge": [status, verdict],
    }


def called(*words: str) -> tuple[int, str, str]:
    """The command line in this process: exit status, output and errors."""
    ended = CliRunner().invoke(main, list(words))
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def saying(*words: str) -> Entry:
    """What a command prints as JSON, with its exit status; of an error the code, where it has one."""

    def said(_: Path) -> Any:
        status, out, err = called(*words, *(() if words[0] == "baseline" else ("--format", "json")))
        if out.startswith("{"):
            return [status, without_words(json.loads(out))]
        code = re.match(r"perfgate: ([a-z-]+): ", err)
        return [status, code[1] if code else ""]

    return said


def placed(file: Path) -> str:
    """As a person names it who stands in the project's root."""
    return file.relative_to(ROOT).as_posix()


def read(name: str, file: Path, folder: Path) -> str:
    """Whether a reader takes a file that was made to break it."""
    return "refused" if refusal(name, file.read_bytes(), folder / "read") else "read"


def commands(command: click.Command) -> Any:
    """Every command with its options: names, kind, and whether it is a flag, repeated or required."""
    context = click.Context(command)
    parameters = {
        "/".join([*one.opts, *one.secondary_opts]): [
            sorted(one.type.choices) if isinstance(one.type, click.Choice) else one.type.name,
            bool(getattr(one, "is_flag", False)), one.multiple, one.required, one.nargs,
        ]
        for one in command.params if isinstance(one, (click.Option, click.Argument))
    }  # fmt: skip
    if not isinstance(command, click.Group):
        return parameters
    inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {"": parameters} | {name: commands(one) for name, one in inner.items() if one}


def action() -> Any:
    """Inputs and outputs of the GitHub action."""
    from ruamel.yaml import YAML  # noqa: PLC0415

    content = YAML(typ="safe").load(ROOT / "action.yml")
    return {
        "inputs": {
            name: [one.get("required", False), one.get("default", "")] for name, one in content["inputs"].items()
        },
        "outputs": sorted(content["outputs"]),
    }

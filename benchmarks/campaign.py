"""Try perfgate with faults, kills and hostile inputs, and count what held.

``python benchmarks/campaign.py [--seed 1] [--kills 200] [--inputs 2000] [--results 200] [--traces 500] [--stride 1]
[--only PART ...]``

* **faults**: each write, fsync, rename and new folder of a run fails once (``tests/cli/test_faults.py``), for want of
  room and of memory. The exit status is a documented one, nothing finished is lost, ``--resume`` ends in the verdict.
* **streams**: standard output and error closed, full, or without a reader. The verdict is written all the same.
* **engines**: the stand-in engine in each of its faults. The run ends with a verdict or 22, and leaves no process.
* **kills**: perfgate, its worker or both are killed at random moments (``benchmarks/kills.py``).
* **clocks**: runs that lock the clocks of a stand-in GPU are killed or asked to end. A run that is asked ends with 130
  or a verdict and no lock; no lock is ever without a lease; nothing finished is lost; ``--resume`` ends in the verdict.
* **results**: a result of each load driver that is read (``tests/other_results.py``) beside itself with one field
  changed. Each figure that is shown is the files' own, what was asked for otherwise is named, and no number is a guess.
* **inputs**: a file for each reader (``tests/readers.py``) with words and bytes replaced, dropped, doubled and cut. It
  is read, or refused by an error of perfgate's own.
* **traces**: small traces (``tests/damaged_traces.py``, in both formats, and H200 recordings of two ranks) with kernels
  dropped, times zeroed or stretched, kernels overlapping, a second rank mixed in. Figures of decode steps that differ
  from those of the whole trace come with a caution that it has not, or not at all.

Prints a Markdown table of what was tried and what held, and ends with 1 where anything did not. The same seed tries the
same.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest import mock

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("standins", ".", "cli")] + [str(ROOT / "benchmarks")]

from changed_results import changes, silently_wrong  # noqa: E402 (the line above lets it be found)
from damaged_traces import DAMAGES, SORTS, Event, damaged, event, whole_trace, write_events, write_export  # noqa: E402
from fake_collector import FakeCollector, FakeSpec  # noqa: E402
from fake_nvml import STATE as FAKE  # noqa: E402
from fake_nvml import FakeMachine, fake_uuid  # noqa: E402
from kills import carry_out, draw  # noqa: E402
from other_results import SAMPLES  # noqa: E402
from perfgate_process import PROGRAM, SCENARIO, PerfgateProcess, fake_words, marked_processes, stub_words  # noqa: E402
from readers import refusal  # noqa: E402
from test_faults import KINDS, run_with_fault  # noqa: E402
from whole_inputs import WHOLE  # noqa: E402

from perfgate import gate  # noqa: E402 (sorted after what the tests bring)
from perfgate.capture.job import Job as CollectorJob  # noqa: E402
from perfgate.cli.main import main as command_line  # noqa: E402
from perfgate.errors import PerfgateError  # noqa: E402
from perfgate.machine.clock_lease import find_leases  # noqa: E402
from perfgate.machine.locks import STATE  # noqa: E402
from perfgate.machine.sampler import Sampler  # noqa: E402
from perfgate.metrics.trial import Trial  # noqa: E402
from perfgate.record.run_record import read_records, read_run  # noqa: E402
from perfgate.trace.rank_steps import summarise_ranks  # noqa: E402
from perfgate.trace.trace_file import read_trace  # noqa: E402

Tried = tuple[str, str]
"""What was tried, and what was wrong with it; empty where it held."""

DOCUMENTED: Final = (0, 10, 20, 21, 22, 130)
SAME: Final = FakeSpec(restart_sd=0.0003, step_s=1.0, sleep_s=0.01)
"""Its decode claims the seconds before the end of a trial, so that every reading taken in the trial falls into it."""
ENGINE_FAULTS: Final = (
    "import fails", "import dies", "arguments fail", "start fails", "start exits", "start dies", "step fails",
    "step exits", "step dies", "step dies, child stays", "garbage", "other answer", "other code", "short outputs",
    "request aborted", "preempts", "stop fails", "leaves a child",
)  # fmt: skip
"""Modes of the stand-in engine that end by themselves."""


# --- faults


def faults(seed: int, stride: int) -> Iterator[Tried]:
    """A fault at each place of a run, or at each so many."""
    for kind in KINDS:
        at = seed % stride
        met = True
        while met:
            with tempfile.TemporaryDirectory(prefix="perfgate-campaign-") as scratch:
                try:
                    met, wrong = run_with_fault(Path(scratch), kind, at), ""
                except AssertionError as error:
                    wrong = str(error).splitlines()[0]
            if met:
                yield f"fault: {kind}", wrong
            at += stride


# --- streams


def streams() -> Iterator[Tried]:
    """Runs whose output goes nowhere."""
    for which in ("stdout", "stderr"):
        for how in ("closed", "full", "unread"):
            with tempfile.TemporaryDirectory(prefix="perfgate-campaign-") as scratch:
                yield f"stream: {which} {how}", _run_into(Path(scratch), which, how)


def _run_into(folder: Path, which: str, how: str) -> str:
    words = [sys.executable, "-c", PROGRAM, "0.001", "run", *fake_words(folder)]
    number = {"stdout": 1, "stderr": 2}[which]
    with contextlib.ExitStack() as opened:
        given: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if how == "closed":
            words = ["/bin/sh", "-c", f'exec "$@" {number}>&-', "sh", *words]
        elif how == "full":
            given[which] = opened.enter_context(Path("/dev/full").open("w"))
        else:
            reading, given[which] = os.pipe()
            os.close(reading)
            opened.callback(os.close, given[which])
        status = subprocess.run(words, cwd=folder, check=False, **given).returncode
    verdicts = list((folder / "runs").glob("*/verdict.json"))
    return "" if verdicts and status in DOCUMENTED else f"ended {status}, {len(verdicts)} verdicts"


# --- engines


def engines() -> Iterator[Tried]:
    """Runs of which one side's engine is broken."""
    for mode in ENGINE_FAULTS:
        with tempfile.TemporaryDirectory(prefix="perfgate-campaign-") as scratch:
            started = PerfgateProcess(Path(scratch), stub_words(Path(scratch), mode))
            status = started.process.wait(300)
            left = marked_processes(started.run_folder.name)
            wrong = "" if status in (0, 22) and not left else f"{mode}: ended {status}, left {left}"
            yield "broken engine", wrong


# --- kills


def kills(seed: int, count: int) -> Iterator[Tried]:
    """Kills of runs with fake trials and with the stand-in engine, three to one."""
    for number in range(count):
        kill = draw("stub" if number % 4 == 3 else "fake", number, seed)  # noqa: PLR2004 (every fourth)
        with tempfile.TemporaryDirectory(prefix="perfgate-kill-") as scratch:
            found = carry_out(kill, Path(scratch), "")
        yield f"kill: {kill.victim}", "; ".join(found.faults)


# --- kills while clocks are locked

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
LOCKED: Final = "clocks: {mode: lock, sm_mhz: 1500}\n"
READING_S: Final = 10.0
"""A trial without a reading for so long is not waited for: it does not count, and is seen."""
WINDOW_S: Final = 1.0
"""Signals come so long after the run's folder is there, which is about as long as a run takes then."""


def clocks(seed: int, count: int) -> Iterator[Tried]:
    """Runs with locked clocks that get a signal at a random moment."""
    dice = random.Random(f"clocks {seed}")  # noqa: S311 (no secret)
    for number in range(count):
        sent = SIGNALS[number % len(SIGNALS)]
        with tempfile.TemporaryDirectory(prefix="perfgate-clocks-") as scratch:
            yield f"clocks locked: {sent.name}", _end_locked(Path(scratch), sent, dice.uniform(0, WINDOW_S))


def _end_locked(folder: Path, sent: signal.Signals, delay_s: float) -> str:
    os.environ |= {STATE: str(folder / "state"), FAKE: str(folder / "nvml.json")}
    machine = FakeMachine.build(folder / "nvml.json", {})
    text = SCENARIO.format(name="locked", engine="", measure="", ignorable="0.1%", must_catch="0.5%") + LOCKED
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "perfgate.toml").touch()
    (folder / "scenario.yaml").write_text(text)
    victim = _fork_run(folder)
    while not list((folder / "runs").glob("*/run.json")):
        time.sleep(0.002)
    time.sleep(delay_s)
    os.kill(victim, sent)
    status = os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1])
    return _after(folder, machine, sent, status)


def _fork_run(folder: Path) -> int:
    """``perfgate run`` in a fork of this process, which saves the imports; its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chdir(folder)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        words = ["run", "scenario.yaml", "--base", "python=/bin/true", "--head", "env.A=1", "--seed", "1"]
        command_line(words, obj=_Watched(SAME))
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    finally:
        os._exit(1)


def _after(folder: Path, machine: FakeMachine, sent: signal.Signals, status: int) -> str:
    wrong = []
    locked, leases = machine.gpu().locked != (None, None), find_leases([fake_uuid(0)])
    if locked and not leases:
        wrong.append("a lock without a lease")
    if sent is not signal.SIGKILL:
        if status not in (*DOCUMENTED, -sent):
            wrong.append(f"ended {status}")
        if status == -sent and (folder / "stderr").read_text():
            wrong.append(f"ended by {sent.name} after it had begun")
        if locked or leases:
            wrong.append(f"left {leases}")
    (run_folder,) = (file.parent for file in (folder / "runs").glob("*/run.json"))
    finished = {int(n) for n in re.findall(r" trial (\d+) .*\n", (folder / "stderr").read_text())}
    kept = {t.index for record in read_records(run_folder, read_run(run_folder)) for t in record.trials}
    if finished - kept:
        wrong.append(f"lost trials {sorted(finished - kept)}")
    wrong += _go_on(run_folder)
    if machine.gpu().locked != (None, None) or find_leases([fake_uuid(0)]):
        wrong.append("locked after the resumed run")
    return "; ".join(wrong)


class _Watched(FakeCollector):
    """Fake trials that last until the GPU has been read in them, as a real one does; a busy machine may take long."""

    _read = threading.Event()

    def collect(self, job: CollectorJob, progress: Callable[[str], None]) -> Trial:
        """Invent one trial."""
        sample = Sampler._sample  # noqa: SLF001 (it is to be known when it reads)

        def noted(sampler: Sampler) -> None:
            sample(sampler)
            self._read.set()

        self._read.clear()
        with mock.patch.object(Sampler, "_sample", noted):
            self._read.wait(READING_S)
        return super().collect(job, progress)


def _go_on(run_folder: Path) -> list[str]:
    outcome = gate.resume(run_folder, collector=_Watched(SAME)).outcome
    reasons = [reason.text for one in outcome.cells for reason in one.reasons]
    decided = outcome.verdict in ("pass", "improved", "inconclusive", "regressed")
    return [] if decided else [f"resumed to {outcome.verdict}: {reasons}"]


# --- results of other load drivers


def results(seed: int, count: int, folder: Path) -> Iterator[Tried]:
    """Results with one field changed, so many of each sample."""
    folder.mkdir()
    for name, sample in SAMPLES.items():
        dice = random.Random(f"results {name} {seed}")  # noqa: S311 (no secret)
        for path, value in islice(changes(sample, dice), count):
            try:
                wrong = silently_wrong(sample, path, value, folder)
            except Exception as error:  # noqa: BLE001 (what is counted here)
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
            yield f"result: {name}", wrong and f"{path} = {value!r}: {wrong}"


# --- inputs

NASTY: Final = (
    b"", b"null", b"-1", b"1e999", b"NaN", b"9" * 400, b"9" * 5000, b'"\\ud800"', b"\x00", b"\xff\xfe", b"\x1b[31m",
    b"{}", b"[]", b"[" * 2000, b"../..", b"true", b"''", b'"', b"\r", b"&a", b"*a", b"!!python/object:os.system x",
    b"=" * 50, b"18446744073709551616", b"0.0000001%", b"::add-mask::x", b"-0", b" " * 1000,
)  # fmt: skip
"""What takes the place of a word."""


def mutated(data: bytes, dice: random.Random) -> bytes:
    """A file with one to three words or spans replaced, dropped, doubled, swapped, or with the end cut off."""
    words = re.findall(rb"[\w.%-]+|\s+|.", data, re.DOTALL)
    for _ in range(dice.randint(1, 3)):
        one, other = dice.randrange(len(words)), dice.randrange(len(words))
        kind = dice.choice(("nasty", "nasty", "drop", "double", "swap", "cut", "flip"))
        if kind == "nasty":
            words[one] = dice.choice(NASTY)
        elif kind == "drop":
            words[one] = b""
        elif kind == "double":
            words[one] = words[one] * dice.randint(2, 20)
        elif kind == "swap":
            words[one], words[other] = words[other], words[one]
        elif kind == "flip" and words[one]:
            place = dice.randrange(len(words[one]))
            flipped = bytes([words[one][place] ^ (1 << dice.randrange(8))])
            words[one] = words[one][:place] + flipped + words[one][place + 1 :]
        elif kind == "cut":
            words = words[: max(1, one)]
    return b"".join(words)


def inputs(seed: int, count: int, folder: Path) -> Iterator[Tried]:
    """Mutated files of each reader, so many each."""
    for name, whole in WHOLE.items():
        dice = random.Random(f"{name} {seed}")  # noqa: S311 (no secret)
        for _ in range(count):
            wrong = ""
            try:
                refusal(name, mutated(whole, dice), folder)
            except Exception as error:  # noqa: BLE001 (what is counted here)
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
            yield f"input: {name}", wrong


# --- traces

RECORDED: Final = ROOT / "tests/fixtures/h200-x2-ranks.sqlite.gz"
SAME_SHARE: Final = 0.001
SAME_NS: Final = 100
"""Figures that differ by less, as a share and in nanoseconds, differ by rounding."""
Figures = dict[str, float]


def traces(seed: int, count: int, folder: Path) -> Iterator[Tried]:
    """Damaged traces of each kind of damage, so many each; every eighth is of the recording."""
    folder.mkdir(exist_ok=True)
    whole: dict[tuple[Any, ...], tuple[Figures, set[str]] | None] = {}
    for how in DAMAGES:
        dice = random.Random(f"{how} {seed}")  # noqa: S311 (no secret)
        for number in range(count):
            recorded = number % 8 == 7 and how != "ranks mixed"  # noqa: PLR2004 (it has two ranks already)
            made = ("recorded", 0) if recorded else (dice.choice(SORTS), dice.randint(4, 8))
            events = _recorded_events() if recorded else whole_trace(*made)
            write = write_export if recorded or dice.random() < 0.5 else write_events  # noqa: PLR2004 (either format)
            file = folder / ("trace.sqlite" if write is write_export else "trace.json")
            if (made, write) not in whole:
                whole[made, write] = _figures(write(file, events))
            found = _figures(write(file, damaged(events, how, dice)))
            yield f"trace: {how}", _silently_wrong(whole[made, write], found)


def _recorded_events() -> list[Event]:
    """One rank of the recording in the terms of a Chrome trace: its steps, launches and kernels."""
    if not _RECORDED:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "ranks.sqlite"
            file.write_bytes(gzip.decompress(RECORDED.read_bytes()))
            with contextlib.closing(sqlite3.connect(file)) as connection:
                _RECORDED.extend(_rows_as_events(connection))
    return _RECORDED


_RECORDED: list[Event] = []


def _rows_as_events(connection: sqlite3.Connection) -> Iterator[Event]:
    (owner,) = connection.execute("SELECT MIN(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    ranges = (
        "SELECT COALESCE(s.value, n.text), n.start, n.end FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
    )
    launches = (
        "SELECT s.value, r.start, r.end, r.correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s "
        "ON s.id = r.nameId WHERE s.value GLOB '*Launch*' AND r."
    )
    kernels = (
        "SELECT s.value, k.start, k.end, k.correlationId, k.deviceId, k.streamId, COALESCE(k.graphNodeId, 0) "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName WHERE k.globalPid = ?"
    )
    of_rank = f"globalTid & ~0xFFFFFF = {owner}"
    for name, start, end in connection.execute(f"{ranges} WHERE n.{of_rank} AND n.end IS NOT NULL"):
        yield event("user_annotation", name, start / 1000, (end - start) / 1000, 100)
    for name, start, end, number in connection.execute(launches + of_rank):
        yield event("cuda_runtime", name, start / 1000, (end - start) / 1000, 100, correlation=number)
    for name, start, end, number, device, stream, node in connection.execute(kernels, (owner,)):
        graph = {"graph id": node >> 32, "graph node id": node & 0xFFFFFFFF} if node else {}
        where = {"device": device, "stream": stream, "correlation": number}
        yield event("kernel", name, start / 1000, (end - start) / 1000, device, **where, **graph)


def _figures(file: Path) -> tuple[Figures, set[str]] | None:
    """Means of the decode steps, of several ranks of the first, and the cautions; nothing where perfgate refuses."""
    try:
        steps, ranks = summarise_ranks([read_trace(file)])
    except PerfgateError:
        return None
    said = {f"{code}: {text}" for code, text in steps.cautions}
    steps = ranks[0].decode if ranks else steps
    columns = {name: getattr(steps, name) for name in ("step_ns", "span_ns", "busy_ns", "kernel_ns")}
    columns |= {f"role {role}": times for role, times in steps.role_ns.items()}
    known = {name: [one for one in column if one is not None] for name, column in columns.items()}
    means = {name: sum(column) / len(column) for name, column in known.items() if column}
    return {**means, "kernels": sum(steps.key_launches) / steps.steps}, said


def _silently_wrong(before: tuple[Figures, set[str]] | None, after: tuple[Figures, set[str]] | None) -> str:
    if before is None:
        return "the whole trace has no figures"
    if after is None or after[1] - before[1]:
        return ""
    figures = {name: (before[0].get(name, 0.0), after[0].get(name, 0.0)) for name in {**before[0], **after[0]}}
    wrong = {n: (was, now) for n, (was, now) in figures.items() if abs(now - was) > max(SAME_SHARE * was, SAME_NS)}
    return ", ".join(f"{name} {was:.0f} is {now:.0f}" for name, (was, now) in wrong.items())


def table(found: dict[str, list[str]]) -> str:
    """What was tried and how much of it held, a row each."""
    rows = ["| tried | times | held | open |", "|---|---|---|---|"]
    rows += [f"| {what} | {len(w)} | {w.count('')} | {len(w) - w.count('')} |" for what, w in found.items()]
    every = [wrong for words in found.values() for wrong in words]
    return "\n".join([*rows, f"| all | {len(every)} | {every.count('')} | {len(every) - every.count('')} |"])


def main() -> None:
    """Try everything, print the table, and end with 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200, help="with locked clocks; a quarter without")
    parser.add_argument("--inputs", type=int, default=2000, help="for each reader")
    parser.add_argument("--results", type=int, default=200, help="for each sample of a load driver's result")
    parser.add_argument("--traces", type=int, default=500, help="for each kind of damage")
    parser.add_argument("--stride", type=int, default=1, help="of the places of a fault only each so many")
    parts = ("faults", "streams", "engines", "kills", "clocks", "inputs", "results", "traces")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    said = parser.parse_args()
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="perfgate-inputs-") as scratch:
        os.environ[STATE] = f"{scratch}/state"
        tried: dict[str, Callable[[], Iterator[Tried]]] = {
            "faults": lambda: faults(said.seed, said.stride),
            "streams": streams,
            "engines": engines,
            "kills": lambda: kills(said.seed, said.kills // 4),
            "inputs": lambda: inputs(said.seed, said.inputs, Path(scratch) / "input"),
            "results": lambda: results(said.seed, said.results, Path(scratch) / "results"),
            "traces": lambda: traces(said.seed, said.traces, Path(scratch) / "traces"),
            "clocks": lambda: clocks(said.seed, said.kills),  # last: it changes which GPUs there are
        }
        for part in (part for part in tried if part in said.only):
            for what, wrong in tried[part]():
                found.setdefault(what, []).append(wrong)
                if wrong:
                    print(f"{what}: {wrong}", file=sys.stderr)
    print(table(found))
    sys.exit(any(wrong for words in found.values() for wrong in words))


if __name__ == "__main__":
    main()

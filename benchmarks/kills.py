"""Kill perfgate, its worker or both at random moments, go on with the run, and see that nothing is lost.

``python benchmarks/kills.py [--fake 130] [--stub 60] [--heads 60] [--stations 100] [--engine 10 --python .../python]``

After each kill: every record loads; every trial that the killed process had reported finished is in it; ``--resume``
ends in a verdict; no process of the run is left. Prints a table and ends with 1 if any of that failed. Fake trials
start no engine, so that kills land in perfgate's own work too; the stand-in of ``tests/stub_engine.py`` has a real
worker. ``heads`` are two heads of it beside one base. ``stations`` are three of these pairs at once, on GPUs that are
not there, with a worker parked at each; such a run goes on with one, two or three of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

import fake_nvml  # noqa: E402
from fake_collector import FakeCollector, FakeSpec  # noqa: E402
from perfgate_process import (  # noqa: E402 (the line above lets it be found)
    FOUR_PAIRS,
    SCENARIO,
    PerfgateProcess,
    fake_words,
    marked_processes,
    stub_words,
)

from perfgate import gate  # noqa: E402 (sorted after what the tests bring)
from perfgate.capture import neighbours  # noqa: E402
from perfgate.capture.gpus import VISIBLE  # noqa: E402
from perfgate.capture.parking import SWITCH  # noqa: E402
from perfgate.capture.station import utc_now  # noqa: E402
from perfgate.errors import PerfgateError  # noqa: E402
from perfgate.machine import nvml  # noqa: E402
from perfgate.machine.fingerprint import read_machine  # noqa: E402
from perfgate.machine.locks import STATE, hold_devices  # noqa: E402
from perfgate.machine.versioned_json import write_model  # noqa: E402
from perfgate.metrics.catalogue import METRICS  # noqa: E402
from perfgate.record.run_record import read_records, read_run  # noqa: E402

SLEEP_S = 0.01
WINDOW_S = {"fake": 0.3, "stub": 1.4, "heads": 2.1, "stations": 2.2, "engine": 60.0}
"""Kills come within so many seconds after the run folder is there, about what an undisturbed run takes."""
TWICE_S = 1.0
"""A second signal comes within so many seconds of a polite one."""
PLACES = ("in a trial", "in a write", "between", "after the end")


@dataclass(frozen=True)
class Kill:
    """One kill, drawn from the seed.

    Args:
        collector: ``fake``, ``stub``, ``heads``, ``stations`` or ``engine``.
        victim: ``perfgate``, ``worker`` or ``both``.
        number: The signal.
        again_s: So long after it the same signal is sent once more; ``None``: it is not.
        delay_s: After the run folder appeared.
        gpus: Where the run goes on.
    """

    collector: str
    victim: str
    number: signal.Signals
    delay_s: float
    gpus: str = ""
    again_s: float | None = None

    @property
    def name(self) -> str:
        """The signal, in a word or two."""
        return f"{self.number.name}{'' if self.again_s is None else ' twice'}"


@dataclass(frozen=True)
class Found:
    """What one kill left behind and what became of it.

    Args:
        place: Where it landed, of :data:`PLACES`.
        reported: Trials reported as finished.
        lost: Of these, not in the record.
        faults: What was wrong, in words.
    """

    place: str
    reported: int
    lost: int
    faults: tuple[str, ...]


def draw(collector: str, number: int, seed: int) -> Kill:
    """The kill of that number."""
    dice = random.Random(f"kill {seed} {collector} {number}")  # noqa: S311 (no secret)
    victim = dice.choice(("perfgate", "worker", "both")) if collector != "fake" else "perfgate"
    polite = victim == "perfgate" and dice.random() < (0.6 if collector == "stations" else 0.3)  # most are rude
    sent = dice.choice((signal.SIGINT, signal.SIGTERM)) if polite else signal.SIGKILL
    delay_s = dice.uniform(0, WINDOW_S[collector])
    gpus = dice.choice(("0", "2,1", "all")) if collector == "stations" else ""
    again_s = dice.uniform(0, TWICE_S) if polite and dice.random() < 1 / 2 else None
    return Kill(collector, victim, sent, delay_s, gpus, again_s)


def carry_out(kill: Kill, folder: Path, python: str) -> Found:
    """Start a run, kill, look at what is there, and go on."""
    fake = FakeCollector(FakeSpec(restart_sd=0.0003)) if kill.collector == "fake" else None
    started = PerfgateProcess(folder, prepare(kill.collector, folder, python), SLEEP_S if fake else 0.0)
    run_folder = started.run_folder
    time.sleep(kill.delay_s)
    strike(kill, started)
    if kill.again_s is not None:
        time.sleep(kill.again_s)
        strike(kill, started)
    started.process.wait(600)

    faults: list[str] = []
    measured: set[int] = set()
    place = landed(run_folder, started)
    try:
        measured = {t.index for record in read_records(run_folder, read_run(run_folder)) for t in record.trials}
    except PerfgateError as error:
        faults.append(f"unreadable: {error}")
    lost = started.reported() - measured
    if lost:
        faults.append(f"lost: trials {sorted(lost)}")
    if kill.number != signal.SIGKILL and kill.again_s is None and not (run_folder / "verdict.json").exists():
        faults.append(f"ended {started.process.returncode} without judging what there is")
    faults += go_on(run_folder, fake, kill.gpus)
    return Found(place, len(started.reported()), len(lost), tuple(faults))


def strike(kill: Kill, started: PerfgateProcess) -> None:
    """Send the signal to the victims that are alive."""
    victims = []
    if kill.victim != "worker":
        victims.append(psutil.Process(started.process.pid))
    if kill.victim != "perfgate":
        worker = started.worker()
        victims += [worker] if worker else []
    for victim in victims:
        try:
            victim.send_signal(kill.number)
        except psutil.NoSuchProcess:
            continue


def landed(run_folder: Path, started: PerfgateProcess) -> str:
    """Where the kill landed, from what it left behind."""
    if any(run_folder.rglob(".*.part")):
        return "in a write"
    if started.process.returncode in (0, 10, 20, 22):  # ended by itself: after the end, or only the worker was killed
        dropped = " FAILED " in started.stderr
        return "in a trial" if dropped else "after the end"
    last = max((int(file.name) for file in (run_folder / "trials").iterdir()), default=-1)
    return "in a trial" if last > max(started.reported(), default=-1) else "between"


def go_on(run_folder: Path, collector: FakeCollector | None, gpus: str) -> list[str]:
    """Resume until the end; what is wrong with the outcome, in words."""
    faults = []
    try:
        outcome = gate.resume(run_folder, collector=collector, gpus=gpus).outcome
        if outcome.verdict not in ("pass", "improved", "inconclusive", "regressed"):
            faults.append(f"resumed to {outcome.verdict}")
    except PerfgateError as error:
        faults.append(f"not resumed: {error}")
    faults += [f"left: {process}" for process in marked_processes(run_folder.name)]
    if gpus:
        try:
            with hold_devices([fake_nvml.fake_uuid(n) for n in range(3)], "the next", lambda _: None, 0.0):
                pass
        except PerfgateError as error:
            faults.append(f"locked: {error}")
    return faults


def prepare(collector: str, folder: Path, python: str) -> list[str]:
    """Write what the run needs, and return its words."""
    if collector == "engine":
        return engine_words(folder, python)
    if collector == "stations":
        return [*stub_words(folder), "--gpus", "all"]
    if collector == "heads":
        *words, _, head, seed, number = stub_words(folder)
        return [*words, "--head", f"a:{head}", "--head", f"b:{head}", seed, number]
    return {"fake": fake_words, "stub": stub_words}[collector](folder)


@contextlib.contextmanager
def on_gpus(folder: Path) -> Iterator[None]:
    """A host with three GPUs that do nothing to one another, here and in processes that are started."""
    machine = fake_nvml.FakeMachine.build(folder / "nvml.json", {}, {}, {})
    before, real = dict(os.environ), vars(nvml)["pynvml"]
    os.environ.update({**machine.environment, STATE: str(folder / "state"), SWITCH: "1"})
    os.environ.pop(VISIBLE, None)
    vars(nvml)["pynvml"] = fake_nvml
    try:
        with nvml.Nvml() as driver:
            gpus = driver.gpus({})
            here = read_machine(gpus[:1], driver.driver, driver.cuda)
        figures = {name: neighbours.Figure(alone=(1.0,), beside=(1.0,)) for name in METRICS}
        found = neighbours.Neighbours(
            machine=here, uuids=tuple(gpu.uuid for gpu in gpus), figures=figures, gates=(), t0_utc=utc_now()
        )
        write_model(neighbours.kept_in(), found)
        yield
    finally:
        vars(nvml)["pynvml"] = real
        os.environ.clear()
        os.environ.update(before)


def engine_words(folder: Path, python: str) -> list[str]:
    """A scenario of two pairs with one iteration of a tiny model on a real engine, and the words that run it."""
    model = ROOT / "scenarios" / "models" / "llama-tiny" / "config.json"
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_bytes(model.read_bytes())
    (folder / "perfgate.toml").touch()
    engine = (
        ", args: {dtype: bfloat16, max_model_len: 256, max_num_seqs: 8, enforce_eager: true, "
        "kv_cache_memory_bytes: 67108864}, env: {VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: '1'}"
    )
    text = SCENARIO.format(name="engine", engine=engine, measure=FOUR_PAIRS, ignorable="500%", must_catch="1000%")
    (folder / "scenario.yaml").write_text(text)
    return ["scenario.yaml", "--base", f"python={python}", "--head", f"python={python}", "--seed", "1"]


def table(kills: Sequence[tuple[Kill, Found]]) -> str:
    """A Markdown table, one row a collector, victim and signal."""
    head = ("trials of", "victim", "signal", "kills", *PLACES, "trials reported", "lost", "faults")
    rows = [head, ("---",) * len(head)]
    groups = dict.fromkeys((k.collector, k.victim, k.name) for k, _ in kills)
    for group in (*groups, ("all", "", "")):
        found = [f for k, f in kills if group in ((k.collector, k.victim, k.name), ("all", "", ""))]
        places = Counter(f.place for f in found)
        sums = (sum(f.reported for f in found), sum(f.lost for f in found), sum(len(f.faults) for f in found))
        rows.append((*group, *map(str, (len(found), *(places[p] for p in PLACES), *sums))))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Carry out all kills, print the table, and end with 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("fake", 130), ("stub", 60), ("heads", 0), ("stations", 0), ("engine", 0)):
        parser.add_argument(f"--{name}", type=int, default=count, help=f"kills of runs with {name} trials")
    parser.add_argument("--python", default="", help="interpreter that has vllm, for --engine")
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    kills = []
    for collector in WINDOW_S:
        for number in range(getattr(said, collector)):
            kill = draw(collector, number, said.seed)
            with tempfile.TemporaryDirectory(prefix="perfgate-kill-") as scratch:
                folder = Path(scratch)
                with on_gpus(folder) if collector == "stations" else contextlib.nullcontext():
                    found = carry_out(kill, folder, said.python)
            kills.append((kill, found))
            for fault in found.faults:
                print(f"{kill}: {fault}")
            print(f"{len(kills)} {kill} {found.place}", file=sys.stderr)
    print(f"{len(kills)} kills, seed {said.seed}, {os.cpu_count()} cores\n")
    print(table(kills))
    sys.exit(any(found.faults for _, found in kills))


if __name__ == "__main__":
    main()

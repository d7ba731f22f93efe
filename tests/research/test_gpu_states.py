"""What ``research/gpu_states.py`` plans, how its replays are labelled, and what its summary says of readings."""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
states: Any = importlib.import_module("gpu_states")
replay: Any = importlib.import_module("state_replay")
summaries: Any = importlib.import_module("state_summary")
recorded: Any = importlib.import_module("recorded_states")

pytestmark = pytest.mark.slow

SLOW_US, FAST_US = 4000.0, 3850.0


class FakeGpu:
    """Replays of invented length: slow until a ``flush``, slow again after a ``capture``."""

    def __init__(self) -> None:
        self._slow = True
        self._random = np.random.default_rng(1)

    def batch(self) -> tuple[list[tuple[float, float, float]], Mapping[str, float]]:
        """Four replays within 0.1 % of their level; the second probe has one level."""
        step = SLOW_US if self._slow else FAST_US
        probe = 600.0 if self._slow else 500.0
        noise = self._random.normal(1, 0.0005, (4, 3))
        return [(step * a, probe * b, 480 * c) for a, b, c in noise], {"sm_mhz": 1965.0}

    def act(self, lead: str) -> None:
        """Jump, or say that it cannot be done."""
        if lead == "nvml":
            raise replay.UnavailableError("pynvml is missing")
        self._slow = {"flush": False, "capture": True}.get(lead, self._slow)


def follow(folder: Path, gpu: str, processes: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Have a fake GPU follow processes, a tenth of a second a batch, into files of readings."""
    notes: list[dict[str, Any]] = []
    ticks = itertools.count()

    def clock() -> float:
        return next(ticks) / 30

    for number, leads in enumerate(processes):
        with replay.readings(folder / f"readings-{gpu}-{number:02}.csv.gz") as write:
            labels = {"gpu": gpu, "process": number}
            replay.follow(FakeGpu(), leads, labels, (1.0, 1e9), write=write, note=notes.append, clock=clock)
    return notes


def test_each_gpu_begins_at_another_lead() -> None:
    """Schedules are the same round, rotated."""
    assert states.rotated(["a", "b", "c", "d"], 0, 2, 6) == ["a", "b", "c", "d", "a", "b"]
    assert states.rotated(["a", "b", "c", "d"], 1, 2, 6) == ["c", "d", "a", "b", "c", "d"]


def test_nothing_shares_a_process_with_a_variable_of_the_driver() -> None:
    """After a lead with variables of its own, leads inside a process get a plain one."""
    leads = ["watch", "fresh", "idle", "modules", "memory", "one-stream", "flush"]

    assert [process.leads for process in states.processes(leads)] == [
        ("begins", "watch"), ("fresh", "idle"), ("modules",), ("begins", "memory"), ("one-stream",),
        ("begins", "flush"),
    ]  # fmt: skip
    assert states.Process(("modules",)).beginning.variables == {"CUDA_MODULE_LOADING": "EAGER"}


def test_every_lead_can_be_acted_on() -> None:
    """Each lead of the catalogue is either a process of its own or an action that the replays know."""
    source = (ROOT / "research" / "state_replay.py").read_text()

    assert [name for name, lead in states.LEADS.items() if not lead.begins and f'"{name}": ' not in source] == []


def test_an_unknown_lead_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line names the lead that is not there, and those that are."""
    with pytest.raises(SystemExit):
        states.parsed(["--leads", "watch,prayer"])

    assert "no lead is called prayer; there are watch, one-stream" in capsys.readouterr().err


def test_levels_need_six_standard_deviations() -> None:
    """One level with noise has no boundary; two levels 4 % apart have one between them."""
    noise = np.random.default_rng(2).normal(1, 0.001, 400)

    assert summaries.boundary(4000 * noise) is None
    assert summaries.boundary(4000 * noise * np.where(np.arange(400) < 300, 1, 0.96)) == pytest.approx(3919, abs=3)
    assert summaries.boundary(4000 * noise * np.where(np.arange(400) < 300, 1, 0.996)) is None


def test_a_lead_that_moves_the_gpu_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    """The summary says before and after each lead, and counts the jumps that came at once."""
    notes = follow(tmp_path, "0", [("begins", "watch", "flush", "nvml", "watch", "capture"), ("fresh", "flush")])
    lines = summaries.summary(tmp_path)

    assert notes == [{"gpu": "0", "process": 0, "lead": "nvml", "skipped": "pynvml is missing"}]
    overall, gpu, *leads = lines
    assert overall == {"jumps": 3, "to_fast": 2, "near_another_gpus": 0}
    assert gpu["began_slow"] == [True, True]
    assert gpu["step_us"]["gap_ns_a_kernel"] == pytest.approx(358, abs=5)
    assert gpu["agreement_probe_us"] == 1.0
    assert "one level" in gpu["again_us"]
    assert [(jump["lead"], jump["to"]) for jump in gpu["jumps"]] == [
        ("flush", "fast"), ("capture", "slow"), ("flush", "fast"),
    ]  # fmt: skip
    by_name = {line["lead"]: line for line in leads}
    assert (by_name["flush"]["slow_before"], by_name["flush"]["slow_after"]) == (1.0, 0.0)
    assert by_name["flush"]["at_once"] == {"fast": 2, "slow": 0}
    assert (by_name["watch"]["slow_before"], by_name["watch"]["slow_after"]) == (0.5, 0.5)
    assert by_name["watch"]["at_once"] == {"fast": 0, "slow": 0}


def test_jumps_of_several_gpus_at_one_time_are_counted(tmp_path: Path) -> None:
    """Two GPUs that jump within a second of each other are an event of the host."""
    for gpu in ("0", "1"):
        follow(tmp_path, gpu, [("begins", "flush")])

    assert summaries.summary(tmp_path)[0] == {"jumps": 2, "to_fast": 2, "near_another_gpus": 2}


def test_no_lead_begins_after_the_deadline(tmp_path: Path) -> None:
    """What is left of a process's leads is noted where the time is up."""
    notes: list[dict[str, Any]] = []
    with replay.readings(tmp_path / "readings-0-00.csv.gz") as write:
        follows = {"write": write, "note": notes.append, "clock": lambda: 5.0}
        replay.follow(FakeGpu(), ["begins", "flush"], {"gpu": "0"}, (1.0, 5.5), **follows)

    assert notes == [{"gpu": "0", "out of time before": ["begins", "flush"]}]
    assert summaries.summary(tmp_path) == []


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """A process that was killed leaves a torn archive; whole rows before the tear count."""
    follow(tmp_path, "0", [("begins", "watch", "flush")])
    file = tmp_path / "readings-0-00.csv.gz"
    whole = len(summaries.read(tmp_path))
    with gzip.open(file) as text:
        rows = text.read()
    torn = gzip.compress(rows[: len(rows) // 2])
    file.write_bytes(torn[:-12])

    assert whole / 3 < len(summaries.read(tmp_path)) <= whole / 2


def test_a_process_that_fails_is_noted_and_the_folder_summarised(tmp_path: Path) -> None:
    """Without torch or a GPU the program ends with 1 and its notes say why."""
    words = ["--gpus", "0", "--minutes", "0.02", "--stretch", "1", "--leads", "watch", "--into", str(tmp_path)]

    assert states.main(words) == 1
    failed = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    assert [line["gpu"] for line in failed] == ["0"]
    assert "torch" in failed[0]["failed"].lower()


def test_recorded_jumps_within_a_trial_go_to_the_fast_level() -> None:
    """The table of the recording from four GPUs: seven jumps to the fast level, none to the slow one."""
    *lines, _, totals = recorded.table(ROOT / "tests" / "fixtures" / "h200-x4-states.csv").splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    assert [(row[0], row[1]) for row in cells] == [
        ("block-size-64", "base"), ("block-size-64", "head"),
        ("tp2-other-all-reduce", "base"), ("tp2-other-all-reduce", "head"),
    ]  # fmt: skip
    assert [row[8] for row in cells] == ["1, 0", "2, 0", "2, 0", "2, 0"]
    assert [row[9:] for row in cells[::2]] == [["1.44 %", "0.10 %"], ["2.20 %", "0.16 %"]]
    assert totals == (
        "23 of 26 trials began slow (13 of 15 behind one that ended slow, 8 of 9 behind one that ended fast); within "
        "trials 7 jumps to the fast level, 0 to the slow one."
    )

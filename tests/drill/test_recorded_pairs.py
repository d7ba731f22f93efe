"""Recorded trials are read pair by pair from every kind of place that keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, HEAD, scenario_file

from perfgate import gate
from perfgate.drill.recordings import STEP, read_recordings, same_run
from perfgate.errors import RecordError
from perfgate.metrics.catalogue import METRICS
from perfgate.record.run_record import read_records, read_run
from perfgate.scenario.subject import Subject

FIXTURES = Path(__file__).parents[1] / "fixtures"
ITERATIONS, STATES = FIXTURES / "h200-llama-8b-iterations.csv", FIXTURES / "h200-x4-states.csv"
HEADER = "run,pair,subject,iteration,itl_ns\n"


def written(folder: Path, *lines: str, name: str = "times.csv") -> Path:
    """A CSV by iteration."""
    file = folder / name
    file.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return file


def test_whole_pairs_by_iteration(tmp_path: Path) -> None:
    """A trial's value is the median of its iterations; warm-up trials and a pair with one side are left out."""
    steps = {"": 9, "0": 10, "1": 20, "2": 30}
    lines = [
        f"r,{pair},{side},{n},{step + 2 * (side == 'head') + n}"
        for pair, step in steps.items()
        for side in ("base", "head")
        for n in range(3)
        if (pair, side) != ("2", "head")
    ]

    (one,) = read_recordings(written(tmp_path, *lines))

    assert (one.name, one.pairs, one.same_build) == ("r", 2, False)
    assert np.array(one.metrics[STEP].base) == pytest.approx([11e-9, 21e-9])
    assert np.array(one.metrics[STEP].head) == pytest.approx([13e-9, 23e-9])
    assert one.iterations is not None
    assert one.iterations[1] == pytest.approx(np.array([[12e-9, 13e-9, 14e-9], [22e-9, 23e-9, 24e-9]]))


def test_a_warm_up_trial_after_a_pair_begins_a_visit() -> None:
    """The recording that was interrupted after its first pair has two visits, the others one."""
    visits = {one.name: one.visits for one in read_recordings(ITERATIONS)}

    assert visits.pop("twelve pairs, same build") == (0, *[1] * 11)
    assert {visit for each in visits.values() for visit in each} == {0}


def test_states_of_a_gpu_are_read_by_the_cards_they_used() -> None:
    """A recording of two GPUs is another kind than those of one, and the step time spreads where levels changed."""
    found = {one.name: one for one in read_recordings(STATES)}

    assert {name: one.pairs for name, one in found.items()} == {
        "block-size-64": 6, "tp2-other-all-reduce": 5, "same-build-card-1": 6,
    }  # fmt: skip
    assert found["block-size-64"].kind == found["same-build-card-1"].kind != found["tp2-other-all-reduce"].kind
    assert [one.same_build for one in found.values()] == [False, False, True]
    spread = {name: one.log_ratios(STEP).std(ddof=1) for name, one in found.items()}
    assert spread["block-size-64"] == pytest.approx(0.0144, abs=1e-4)
    assert spread["same-build-card-1"] == pytest.approx(0.0009, abs=1e-4)


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    """By iteration and by trial the same restarts are one recording, the one that tells more."""
    by_iteration = read_recordings(ITERATIONS)
    (taken,) = (one.metrics[STEP] for one in by_iteration if one.name == "same build")
    lines = [f"{pair},{side},itl_median,s,{value:.9f}" for side, values in (("base", taken.base), ("head", taken.head))
             for pair, value in enumerate(values)]  # fmt: skip
    by_trial = tmp_path / "same-build.csv"
    by_trial.write_text("\n".join(["pair,subject,metric,unit,value", *lines]))
    (alone,) = read_recordings(by_trial)
    (tmp_path / ITERATIONS.name).write_bytes(ITERATIONS.read_bytes())
    found = read_recordings(tmp_path)

    assert alone.same_build
    assert alone.iterations is None
    assert [one.name for one in found] == [one.name for one in by_iteration]
    assert sum(same_run(one, alone) for one in found) == 1


def test_short_runs_that_are_alike_are_two(tmp_path: Path) -> None:
    """Single pairs of two runs within 0.02 % of each other both count: their iterations differ."""
    steps = {"first": (5_000_000, 5_001_000), "second": (5_001_000, 5_000_500)}
    lines = [f"{run},0,{side},0,{step}" for run, pair in steps.items()
             for side, step in zip(("base", "head"), pair, strict=True)]  # fmt: skip

    assert [one.name for one in read_recordings(written(tmp_path, *lines))] == ["first", "second"]


@pytest.mark.parametrize(("head", "same"), [(BASE, True), (HEAD, False)])
def test_run_folders(tmp_path: Path, head: Subject, same: bool) -> None:  # noqa: FBT001 (a parameter)
    """A folder of runs gives a recording a cell, with every metric of its timed trials and every iteration."""
    collector = FakeCollector(FakeSpec(restart_sd=0.0003))
    finished = gate.run(
        [scenario_file(tmp_path)], {"base": BASE, "head": head}, runs=tmp_path / "runs", seed=1, collector=collector
    )

    (one,) = read_recordings(tmp_path / "runs")

    (record,) = read_records(finished.folder, read_run(finished.folder))
    assert one.same_build == same
    assert one.pairs == len(record.pairs()) >= 4
    for name in (STEP, "ttft_median", "output_throughput"):
        values = [tuple(METRICS[name].summarise(trial) for trial in pair) for pair in record.pairs()]
        assert list(zip(one.metrics[name].base, one.metrics[name].head, strict=True)) == values
    assert one.iterations is not None
    assert np.median(one.iterations[0], axis=1) == pytest.approx(one.metrics[STEP].base)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("r,0,base,0,x", "must be whole numbers"),
        ("r,inf,base,0,5", "must be whole numbers"),
        ("r,0.5,base,0,5", "must be whole numbers"),
        ("r,0,other,0,5", "subject is 'other'"),
        ("r,0,base,0", "must be whole numbers"),
        ("r,0,base,0,0", "above 0"),
        ("r,0,base,0,-5", "above 0"),
        (f"r,0,base,0,{10**30}", "below a day"),
    ],
)
def test_wrong_lines_are_refused_with_their_place(tmp_path: Path, line: str, text: str) -> None:
    """A line that cannot be is named with its file and number."""
    file = written(tmp_path, "r,0,base,0,5", line)

    with pytest.raises(RecordError, match=text) as raised:
        read_recordings(file)

    assert raised.value.where == f"{file}:3"


def test_places_without_pairs_are_refused(tmp_path: Path) -> None:
    """An empty folder, a file that is missing, one side alone and trials without pairs are refused."""
    unpaired = tmp_path / "unpaired.csv"
    unpaired.write_text("subject,metric,unit,value\nbase,itl_median,ms,5\nhead,itl_median,ms,5\n")
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "empty": "holds neither a run folder nor a CSV",
        tmp_path / "none.csv": "does not exist",
        written(tmp_path, "r,0,base,0,5"): "holds no pair of trials",
        unpaired: "has no column 'pair'",
    }

    for place, text in cases.items():
        with pytest.raises(RecordError, match=text):
            read_recordings(place)

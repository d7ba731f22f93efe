"""What a worker answers when it is hostile or broken: every answer has a limit in time, size and shape."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError, Span, read_iteration
from perfgate.capture.trial_taking import EngineCollector
from perfgate.capture.worker import Limit, Worker
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

FAR_S = 60.0
PROGRAM = """
import json, os, signal, sys, time
requests, answers = os.fdopen(int(sys.argv[1])), int(sys.argv[2])

def say(data):
    while data:
        data = data[os.write(answers, data):]

request = json.loads(requests.readline())
{body}
"""

Play = Callable[[str], Worker]


@pytest.fixture
def play(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_cell: Callable[..., Cell],
    make_job: Callable[..., Job],
) -> Play:
    """A function that makes a worker out of a few lines of Python, which have ``request`` and ``say``."""

    def one(body: str) -> Worker:
        program = tmp_path / "played.py"
        program.write_text(PROGRAM.format(body=body))
        monkeypatch.setattr(Worker, "program", program)
        return Worker(make_job(make_cell(), Subject(python=sys.executable)))

    return one


def refusal(worker: Worker, seconds: float = FAR_S) -> InvalidTrialError:
    """Ask a worker once, and return why its answer is none."""
    with worker as open_worker, pytest.raises(InvalidTrialError) as caught:
        open_worker.request("hello", Limit(time.monotonic() + seconds, "engine-failed", "engine-failed"))
    return caught.value


def test_an_answer_that_drips_is_late(play: Play) -> None:
    """A byte now and then does not put the limit off: the engine is as late as a silent one."""
    worker = play("for _ in range(3000):\n    say(b'x')\n    time.sleep(0.01)\nsay(b'\\n')")

    assert refusal(worker, 0.2).code == "engine-failed"


def test_an_answer_has_a_largest_size(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without an end is refused at the bound, and each of its bytes is looked at about once."""

    class Counting(bytearray):
        searched = 0

        def find(self, what: Any, start: Any = 0, *more: Any) -> int:
            Counting.searched += len(self) - start
            return super().find(what, start, *more)

    monkeypatch.setattr("perfgate.capture.worker.MAX_ANSWER_BYTES", 2**22)
    worker = play("while True:\n    say(bytes(65536))")
    worker._buffer = Counting()

    error = refusal(worker)

    assert (error.code, str(2**22) in error.text) == ("engine-failed", True)
    assert Counting.searched < 2**23


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 200_000,
        '{"v": 1, "id": 1, "ok": false, "code": ["engine-failed"]}',
        '{"v": 1, "id": 1, "ok": false, "code": {"engine-failed": 1}}',
        '{"v": 1, "id": 1, "ok": true, "import_ns": NaN}',
        '{"v": 1, "id": 1, "ok": true, "name": "\\ud800"}',
        '{"v": 1, "id": 1, "ok": true, "import_ns": ' + "9" * 5000 + "}",
        "[1]",
        "\xff",
    ],
    ids=["nested", "list as code", "object as code", "NaN", "half a character", "digits", "list", "no UTF-8"],
)
def test_answers_that_are_none(play: Play, tmp_path: Path, answer: str) -> None:
    """Whatever a worker writes, the trial fails by its protocol and perfgate does not."""
    (tmp_path / "answer").write_bytes(answer.encode("latin-1") + b"\n")
    worker = play(f"say(open({str(tmp_path / 'answer')!r}, 'rb').read())\ntime.sleep(60)")

    assert refusal(worker).code == "engine-failed"


def test_a_signal_without_a_name(play: Play) -> None:
    """A worker that a real-time signal ended is told by the number of the signal."""
    error = refusal(play("os.kill(os.getpid(), 40)\ntime.sleep(60)"))

    assert (error.code, error.text) == ("engine-failed", "the worker was ended by signal 40")


@pytest.mark.parametrize(
    "figures",
    [{"import_ns": 10**400}, {"vocabulary": 10**400}, {"kv_token_capacity": -1}, {"versions": {"vllm": "9" * 10**6}},
     {"versions": {str(n): "" for n in range(1000)}}, {"engine_ns": 10**12}],
    ids=["import", "vocabulary", "capacity", "version", "versions", "longer than the process is there"],
)  # fmt: skip
def test_a_start_that_cannot_be(
    play: Play, make_cell: Callable[..., Cell], make_job: Callable[..., Job],
    tmp_path: Path, figures: dict[str, Any],
) -> None:  # fmt: skip
    """Start-up figures are bounded, and held against the time since the process was started."""
    said = {"import_ns": 1, "engine_ns": 1, "versions": {}, "vocabulary": 100, **figures}
    (tmp_path / "said").write_text(json.dumps(said))
    play(
        f"said = json.load(open({str(tmp_path / 'said')!r}))\n"
        "for number in (1, 2):\n"
        "    say(json.dumps({'v': 1, 'id': number, 'ok': True, **said}).encode() + b'\\n')\n"
        "time.sleep(60)"
    )

    trial = EngineCollector().collect(make_job(make_cell(), Subject(python=sys.executable), 1), lambda _: None)

    assert trial.failure is not None
    assert trial.failure.code == "engine-failed"


FIFTY_YEARS_NS = 50 * 365 * 86400 * 10**9
ASKED = Span(10**12, 10**12 + 10**9)
BEFORE = [[ASKED.begin_ns + 2, [1]], [ASKED.begin_ns + 3, [1]]]


@pytest.mark.parametrize(
    ("submitted_ns", "delivered_ns"),
    [
        (ASKED.begin_ns + 1, ASKED.begin_ns + FIFTY_YEARS_NS),
        (ASKED.begin_ns + 1, 10**400),
        (ASKED.begin_ns - 1, ASKED.end_ns),
        (-(10**400), ASKED.end_ns),
    ],
    ids=["fifty years", "beyond any clock", "too early", "negative"],
)
def test_stamps_are_held_against_the_parents_clock(
    make_cell: Callable[..., Cell], submitted_ns: int, delivered_ns: int
) -> None:
    """An iteration lies between question and answer, whatever the engine has done to the worker's clock."""
    workload = make_cell(batch=1, output_tokens=3).batch
    answer = {
        "submitted_ns": [submitted_ns], "deliveries": [*BEFORE, [delivered_ns, [1]]],
        "tokens_digest": "0" * 64, "finish_reasons": ["length"], "preemptions": 0,
    }  # fmt: skip

    with pytest.raises(InvalidTrialError, match="but the answer was asked for") as caught:
        read_iteration(answer, workload, ASKED)
    assert caught.value.code == "engine-failed"

    honest = {**answer, "submitted_ns": [ASKED.begin_ns + 1], "deliveries": [*BEFORE, [ASKED.end_ns, [1]]]}
    assert read_iteration(honest, workload, ASKED).elapsed_ns == 10**9 - 1


@pytest.mark.parametrize(
    "readings",
    [
        7, [], [[1]], [[1], [1], [1]], [[], []], [[1], [1, 1]], [1, 1], [[0], [1]], [[-1], [1]], [[1.0], [1]],
        [[True], [1]], [["1"], [1]], [[10**400], [1]], [[2**63], [1]], [[1] * 1025] * 2, {"before": [1]},
    ],
    ids=lambda readings: str(readings)[:20],
)  # fmt: skip
def test_readings_of_the_probe_that_cannot_be(make_cell: Callable[..., Cell], readings: Any) -> None:
    """Each rank has one positive integer before and one after; anything else violates the protocol."""
    workload = make_cell(batch=1, output_tokens=3).batch
    answer = {"submitted_ns": [1], "deliveries": [[2, [1]], [3, [1]], [4, [1]]], "tokens_digest": "0" * 64,
              "finish_reasons": ["length"]}  # fmt: skip

    with pytest.raises(InvalidTrialError, match="probe_ns: expected a reading a rank before and after") as caught:
        read_iteration({**answer, "probe_ns": readings}, workload)

    assert caught.value.code == "engine-failed"
    assert read_iteration({**answer, "probe_ns": [[1] * 1024] * 2}, workload).probe_ns == ((1,) * 1024,) * 2
    assert read_iteration({**answer, "probe_ns": None}, workload).probe_ns is None


@pytest.mark.parametrize("count", [10**400, 2**63], ids=["400 digits", "64 bits"])
def test_counts_have_a_largest_size(make_cell: Callable[..., Cell], count: int) -> None:
    """A count that no machine could deliver is none."""
    workload = make_cell(batch=1, output_tokens=3).batch
    answer = {"submitted_ns": [1], "deliveries": [[2, [1]], [3, [1]], [4, [count]]], "tokens_digest": "0" * 64,
              "finish_reasons": ["length"]}  # fmt: skip

    with pytest.raises(InvalidTrialError, match="a delivery: expected"):
        read_iteration(answer, workload)

"""Windows of a server whose answers are arithmetic: the search for the highest rate that it holds."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError, Span
from perfgate.capture.worker import EXIT_TIMEOUT_S, Limit
from perfgate.errors import NotMeasuredError
from perfgate.load.exchange import Answer, Answers
from perfgate.load.server_http import DEVELOPMENT, EXTENSION, SWITCH, is_probed
from perfgate.load.server_process import served_words, server_environment
from perfgate.load.shape import Load
from perfgate.load.under_load import MORE_WARMUP
from perfgate.load.window_reading import WindowAnswer
from perfgate.load.windows import RateSearch, Windows, agree, is_steady
from perfgate.metrics.catalogue import METRICS, trial_value
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.trial import SETTLED, Probes, Startup, Trial
from perfgate.models import Strict
from perfgate.record.run_record import Record
from perfgate.scenario.declaration import loads
from perfgate.scenario.plan import resolve_cells
from perfgate.scenario.subject import Subject
from perfgate.verify.verification import _longest_line, _tells

TEXT = """
schema: 1
name: tiny
engine: {driver: server, model: {config: model}}
workload:
  arrival: {find: {least: 1, most: 16, slo: {ttft: 100ms}, share: 90%, steps: 4}}
  requests: 10
  output_tokens: {uniform: [2, 2]}
measure: {warmup_iterations: 1, iterations: 2}
gates: [{metric: max_rate, ignorable: 10%, must_catch: 50%}]
"""
MS = 10**6
FAST, SLOW = 179_000, 215_000


class Arithmetic:
    """A server that answers at once up to a rate, and above it makes two of ten requests wait for a second.

    Args:
        capacity: That rate, requests a second.
        refuses: In place of waiting, those requests end with this error.
        busy: In these windows, by place, it can do nothing.
        late: In these windows, by place, the client was late.
        states: What its rank reads around each window in which no request fails; the last from there on.
        paces: How many times as long as usual each token takes in each window; as in the last from there on.
    """

    versions: dict[str, str] = {}
    startup: Startup | None = None

    def __init__(
        self, capacity: float, refuses: str = "", late: Collection[int] = (), states: Sequence[int] = (),
        paces: Sequence[float] = (1.0,), busy: Collection[int] = (),
    ) -> None:  # fmt: skip
        self._capacity = capacity
        self._busy = busy
        self._paces = paces
        self._states = states
        self._refuses = refuses
        self._late = late
        self.asked: list[tuple[float, int]] = []

    def wait_alone(self) -> None:
        """Nothing works beside it."""

    def iterate(
        self, workload: Strict, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """A window."""
        assert isinstance(workload, Load)
        assert (limit, probe) == (None, True)
        state = self._states[min(len(self.asked), len(self._states) - 1)] if self._states else None
        rate = workload.arrival.poisson or (workload.arrival.find and workload.arrival.find.least) or 0.0
        sent_ns = 2 * MS if len(self.asked) in self._late else 0
        capacity = 0.0 if len(self.asked) in self._busy else self._capacity
        self.asked.append((rate, number))
        pace = self._paces[min(len(self.asked), len(self._paces)) - 1]
        requests = range(workload.requests or 0)
        waits = [1000 if rate > capacity and index < 2 else round(10 * pace) + index % 3 for index in requests]
        answers = tuple(
            Answer(number=index, scheduled_ns=0, sent_ns=0, end_ns=wait * MS, error=self._refuses)
            if wait == 1000 and self._refuses else
            Answer(number=index, scheduled_ns=0, sent_ns=sent_ns, token_ns=(wait * MS, wait * MS + MS),
                   token_counts=(1, 1), end_ns=wait * MS + MS, finish="length") for index, wait in enumerate(waits)
        )  # fmt: skip
        whole = Answers(begin_ns=0, end_ns=1001 * MS, cpu_ns=0, answers=answers)
        probed = None if state is None or any(answer.error for answer in answers) else Probes((state,), (state,))
        found = WindowAnswer(asked=(2,) * len(answers), limit_ns=10**10, answers=whole, probe_ns=probed)
        return found.model_dump(mode="json"), Span(0, 1)

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """Nobody asks."""

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> tuple[ProcessUse, ...]:
        """Nothing runs."""
        assert exit_timeout_s > 0
        return ()


@pytest.fixture
def job(tmp_path: Path, make_job: Callable[..., Job]) -> Job:
    """A trial of such a load."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()
    (cell,) = resolve_cells(loads(TEXT, tmp_path / "tiny.yaml"))
    return make_job(cell, Subject(python="python"))


@pytest.fixture
def steady_job(job: Job, tmp_path: Path) -> Job:
    """A trial of a load with one rate, on a GPU that was fast before."""
    steady = TEXT.replace(TEXT[TEXT.index("{find") : TEXT.index("\n  requests")], "{poisson: 4}}".removesuffix("}"))
    steady = steady.replace("{metric: max_rate,", "{metric: itl_median,")
    (cell,) = resolve_cells(loads(steady, tmp_path / "tiny.yaml"))
    return replace(job, cell=cell, fastest_probe_ns=(FAST,), settle_s=60.0)


def taken(job: Job, engine: Engine) -> Trial:
    """The trial."""
    windows = Windows(job)
    assert windows.prepare() == Launch()
    iterations = tuple(windows.drive(engine, lambda _: None))
    return job.trial(t0_utc="2026-01-01T00:00:00+00:00", duration_ns=1, iterations=iterations, **windows.fields())


def test_the_highest_rate_is_sought_after_warm_up(job: Job) -> None:
    """Warm-up at the lowest rate, four windows of search, each with prompts of its own, then two at what held."""
    engine = Arithmetic(capacity=5.0)
    trial = taken(job, engine)

    rates = [rate for rate, _ in engine.asked]
    assert rates == pytest.approx([1, 4, 8, 32**0.5, 32**0.5 * 0.5**0.25, *[32**0.5 * 0.5**0.25] * 2], rel=1e-6)
    assert len({number for _, number in engine.asked}) == len(engine.asked)
    assert trial_value("max_rate", trial) == pytest.approx(32**0.5 * 0.5**0.125, abs=1e-6)
    assert len(trial.iterations) == 2
    assert METRICS["max_rate"].resolution(trial) == pytest.approx(2**0.125 - 2**-0.125, rel=1e-4)
    assert trial.timeline is not None
    file = job.run_folder / trial.timeline.path
    assert [json.loads(line)["warmup"] for line in gzip.decompress(file.read_bytes()).splitlines()] == [True] * 5 + [
        False
    ] * 2
    assert _tells(file, Record(cell=job.cell, subjects={"base": job.subject}, seed=0, trials=(trial,)), trial)


def test_a_long_search_can_be_verified(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows are lines of the timeline as well, each as long as one of those that were declared."""
    trial = taken(job, Arithmetic(capacity=5.0))
    assert trial.timeline is not None
    file = job.run_folder / trial.timeline.path
    known = Record(cell=job.cell, subjects={"base": job.subject}, seed=0, trials=(trial,))
    longest = max(map(len, gzip.decompress(file.read_bytes()).splitlines(keepends=True)))
    with monkeypatch.context() as patch:
        patch.setattr("perfgate.verify.verification.MAX_ANSWER_BYTES", longest)
        patch.setattr("perfgate.verify.verification.BYTES_A_TOKEN", 0)
        assert _tells(file, known, trial)
    more = known.cell.workload.model_copy(update={"requests": None, "duration": 60.0})
    longer = known.cell.model_copy(update={"workload": more})
    assert _longest_line(longer, trial) > _longest_line(known.cell, trial) + 64 * 2 * 900


@pytest.mark.parametrize(("window", "counts"), [(0, True), (1, False), (4, False), (5, False), (6, False)])
def test_a_late_client_spoils_what_something_rests_on(job: Job, window: int, *, counts: bool) -> None:
    """A window that was sought with or is measured, and not the one that warms up."""
    if counts:
        assert len(taken(job, Arithmetic(5.0, late={window})).iterations) == 2
        return
    with pytest.raises(NotMeasuredError, match="after schedule") as caught:
        taken(job, Arithmetic(5.0, late={window}))
    assert caught.value.code == "client-late"


def test_a_server_warms_up_until_its_gpus_are_fast(steady_job: Job) -> None:
    """With prompts that no measured window has, and it tells for how long; the timeline holds no more than that."""
    engine = Arithmetic(100.0, states=[SLOW, SLOW, SLOW, FAST])
    trial = taken(steady_job, engine)

    numbers = [number for _, number in engine.asked]
    assert len(engine.asked) == 1 + 3 + 2
    assert len(set(numbers)) == len(numbers)
    assert numbers[-2:] == [1, 2]
    assert trial.figures[SETTLED] > 0
    assert [window.probe_ns for window in trial.iterations] == [Probes((FAST,), (FAST,))] * 2
    assert trial.cautions == ()
    assert trial.timeline is not None
    file = steady_job.run_folder / trial.timeline.path
    known = Record(cell=steady_job.cell, subjects={"base": steady_job.subject}, seed=0, trials=(trial,))
    assert _tells(file, known, trial)


def test_a_server_settles_before_its_gpus_are_waited_for(steady_job: Job) -> None:
    """Whether a GPU is slow is told by the window before; what follows a jump does not unsettle the server again."""
    work = steady_job.cell.workload.model_copy(update={"requests": 60})
    measure = steady_job.cell.measure.model_copy(update={"warmup_iterations": 2})
    job = replace(steady_job, cell=steady_job.cell.model_copy(update={"workload": work, "measure": measure}))
    jumps = Arithmetic(100.0, states=[FAST, FAST, SLOW, FAST], paces=[4.0, 2.0, 2.0, 1.0])
    falls = Arithmetic(100.0, states=[SLOW, SLOW, FAST], paces=[4.0, 2.0, 2.0])
    trials = [taken(job, engine) for engine in (jumps, falls)]

    numbers = [number for _, number in jumps.asked]
    assert len(numbers) == 2 + 1 + 1 + 2
    assert len(set(numbers)) == len(numbers)
    assert [trial.figures[MORE_WARMUP] for trial in trials] == [1, 1]
    assert [SETTLED in trial.figures for trial in trials] == [True, False]
    assert [trial.cautions for trial in trials] == [(), ()]


def test_the_gpus_are_fast_before_a_rate_is_sought(job: Job) -> None:
    """A refused request of the search leaves its window without readings, which nothing is told of."""
    engine = Arithmetic(5.0, "status 503: busy", states=[SLOW, SLOW, FAST])
    trial = taken(replace(job, fastest_probe_ns=(FAST,), settle_s=60.0), engine)

    assert [rate for rate, _ in engine.asked][:4] == [1, 1, 1, 4]
    assert len({number for _, number in engine.asked}) == len(engine.asked) == 1 + 2 + 4 + 2
    assert trial.cautions == ()


def test_a_server_whose_gpus_are_fast_waits_for_nothing(steady_job: Job) -> None:
    """Nor does one whose ranks tell nothing, which its trial says."""
    fast, silent = Arithmetic(100.0, states=[FAST]), Arithmetic(100.0)
    trials = [taken(steady_job, engine) for engine in (fast, silent)]

    assert [len(engine.asked) for engine in (fast, silent)] == [3, 3]
    assert [trial.cautions for trial in trials] == [(), ("no-probe",)]
    assert all(SETTLED not in trial.figures for trial in trials)


@pytest.mark.parametrize(
    ("engine", "own"),
    [
        ({"command": ("serve", "{port}")}, {}),
        ({"args": {"worker_extension_cls": "a.B"}}, {}),
        ({"args": {"distributed_executor_backend": "ray"}}, {}),
        ({"args": {"data_parallel_size": 2}}, {}),
        ({}, {SWITCH: "0"}),
    ],
    ids=["of a command of its own", "extended by somebody else", "ranks elsewhere", "several engines", "switched off"],
)
def test_a_server_that_is_not_asked(steady_job: Job, engine: dict[str, Any], own: dict[str, str]) -> None:
    """Of it nobody expects to know its states."""
    job = replace(
        steady_job,
        cell=steady_job.cell.model_copy(update={"engine": steady_job.cell.engine.model_copy(update=engine)}),
        subject=steady_job.subject.model_copy(update={"env": own}),
    )
    assert is_probed(steady_job)
    assert not is_probed(job)
    assert taken(job, Arithmetic(100.0)).cautions == ()
    assert EXTENSION not in served_words(job, 20_000)
    assert DEVELOPMENT not in server_environment(job)


def test_a_server_of_somebody_else_is_not_asked(steady_job: Job) -> None:
    """It was not started with what is asked for, and is left as it was."""
    assert not is_probed(replace(steady_job, subject=Subject(python="", url="http://127.0.0.1:1")))


def test_a_rate_that_is_refused_does_not_hold(job: Job) -> None:
    """An overloaded server that says so, as one with a limit of its queue does, has shown what it does not hold."""
    trials = [taken(job, Arithmetic(5.0, error)) for error in ("", "status 503: busy", "status 429")]

    assert len({trial_value("max_rate", trial) for trial in trials}) == 1
    assert all(len(trial.iterations) == 2 for trial in trials)


def test_a_rate_that_is_refused_later_is_lowered(job: Job) -> None:
    """What was found is the trial's result, and stays; what is measured for reading goes on with prompts of its own."""
    engine = Arithmetic(5.0, "status 429", states=[FAST], busy={5, 7})
    trial = taken(job, engine)

    sought = trial_value("max_rate", taken(job, Arithmetic(5.0, "status 429", states=[FAST])))
    found = 32**0.5 * 0.5**0.25
    assert [rate for rate, _ in engine.asked][5:] == pytest.approx([found, 0.9 * found, 0.9 * found, 0.81 * found])
    assert len({number for _, number in engine.asked}) == len(engine.asked) == 1 + 4 + 4
    assert trial_value("max_rate", trial) == sought
    assert len(trial.iterations) == 2
    assert trial.cautions == ("rate-lowered",)
    assert trial.timeline is not None
    known = Record(cell=job.cell, subjects={"base": job.subject}, seed=0, trials=(trial,))
    assert _tells(job.run_folder / trial.timeline.path, known, trial)


def test_a_rate_is_not_lowered_without_end(job: Job) -> None:
    """A server that refuses everything from some time on is broken."""
    engine = Arithmetic(5.0, "status 429", busy=range(5, 99))
    with pytest.raises(NotMeasuredError, match="status 429"):
        taken(job, engine)
    assert len(engine.asked) == 5 + 1 + 5


def test_a_server_that_hangs_at_the_rate_that_was_found_is_broken(job: Job) -> None:
    """It did not say that it had too much to do: a request that never ends is a fault, here as at any rate."""
    with pytest.raises(NotMeasuredError, match="no end within 5 s"):
        taken(job, Arithmetic(5.0, "no end within 5 s", busy={5}))


def test_a_declared_rate_is_never_lowered(steady_job: Job) -> None:
    """Both sides are to have the same load."""
    with pytest.raises(NotMeasuredError, match="status 429"):
        taken(steady_job, Arithmetic(100.0, "status 429", busy={2}))


def test_any_other_error_of_a_search_is_a_broken_trial(job: Job) -> None:
    """A server that breaks has shown nothing of a rate, nor one that refuses requests at the lowest."""
    for engine in (Arithmetic(5.0, "status 500: broken"), Arithmetic(0.5, "status 503: busy")):
        with pytest.raises(NotMeasuredError) as caught:
            taken(job, engine)
        assert caught.value.code == "engine-failed"


@pytest.mark.parametrize(("capacity", "said"), [(100.0, "every rate from 1 to 16 requests/s met"), (0.5, "no rate")])
def test_a_rate_outside_the_bounds_is_not_measured(job: Job, capacity: float, said: str) -> None:
    """The trial fails with the bounds; nothing is reported at their end."""
    with pytest.raises(InvalidTrialError, match=said) as caught:
        taken(job, Arithmetic(capacity))
    assert caught.value.code == "rate-out-of-range"


DRAW = random.Random(1)  # noqa: S311 (no secret)


def noisy(mean: float, count: int) -> list[float]:
    """Times around a mean."""
    return [DRAW.gauss(mean, mean / 10) for _ in range(count)]


@pytest.mark.parametrize(
    ("windows", "steady"),
    [
        ([noisy(10, 60)], True),
        ([[*noisy(30, 30), *noisy(10, 30)]], False),
        ([noisy(30, 40), noisy(10, 40), noisy(10, 40)], True),  # what was before the last two does not matter
        ([noisy(10, 40), noisy(10, 40), noisy(12, 40)], False),
        ([[1.0 + n for n in range(60)]], False),  # requests pile up
        ([[1.0] * 60], True),
        ([noisy(10, 39)], None),
        ([noisy(10, 60), noisy(10, 19)], None),
        ([], None),
    ],
)
def test_the_last_two_stretches_are_compared(windows: list[list[float]], steady: bool | None) -> None:  # noqa: FBT001
    """Those are the last two windows, or the halves of a single one; a few requests tell nothing."""
    assert is_steady(windows) is steady


@given(st.lists(st.floats(0.5, 2), min_size=40, max_size=60), st.integers(1, 100))
def test_the_unit_of_time_does_not_matter(times: list[float], factor: int) -> None:
    """Powers of two leave every digit as it is."""
    scaled = [2.0**factor * time for time in times]
    assert agree(scaled[:20], scaled[20:]) is agree(times[:20], times[20:])


def test_a_server_at_rest_is_rarely_called_restless() -> None:
    """Of a thousand pairs of stretches of independent times some 2 % are held up for more warm-up."""
    draw = random.Random(2)  # noqa: S311 (no secret)
    pairs = ([draw.lognormvariate(0, 0.5) for _ in range(60)] for _ in range(1000))
    assert sum(agree(pair[:30], pair[30:]) is False for pair in pairs) < 30


@given(least=st.floats(0.01, 100), factor=st.floats(1.1, 1000), place=st.floats(0.01, 0.99), steps=st.integers(1, 16))
def test_the_rate_is_in_the_last_bracket(least: float, factor: float, place: float, steps: int) -> None:
    """Each step halves it as a ratio, whatever the server can do."""
    capacity = least * factor**place
    search = RateSearch(least, least * factor)
    for _ in range(steps):
        search.note(held=search.rate <= capacity)
    assert search.low <= capacity * (1 + 1e-9)
    assert search.high >= capacity * (1 - 1e-9)
    assert search.high / search.low == pytest.approx(factor ** (0.5**steps))
    assert search.low < search.rate < search.high


@pytest.mark.parametrize("held", [True, False])
def test_a_rate_that_is_not_between_the_bounds_is_not_found(held: bool) -> None:  # noqa: FBT001 (drawn)
    """The search tells that only one of the two was seen."""
    search = RateSearch(1, 16)
    for _ in range(4):
        search.note(held=held)
    assert (search.held, search.broke) == (held, not held)

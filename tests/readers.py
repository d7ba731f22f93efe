"""Every reader of what comes from outside, each with a whole input: what tests and fuzzers break.

A reader is known by the name of the file that it is given. The folder of that name in ``tests/corpus`` keeps inputs
that reach code no other one does, and those that once broke the reader.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from fake_github import listed
from hand_made import BASE, cell, gate, run
from whole_inputs import REPOSITORY, SHA, WHOLE

from perfgate.baseline.baseline_page import baseline_document, log_document
from perfgate.baseline.exact_profile import read_profile
from perfgate.baseline.lineage import _digest
from perfgate.baseline.store import read as read_baseline
from perfgate.calls.call_difference import call_difference
from perfgate.calls.calling import read_calls
from perfgate.capture.driver_protocol import Launch
from perfgate.capture.drivers import VllmEngine
from perfgate.capture.job import Job
from perfgate.capture.parking import Parking
from perfgate.capture.timeline import read_iteration
from perfgate.capture.worker import Worker
from perfgate.counters.report_file import read_counters
from perfgate.drill.board import false_blocks, make_board, read_board
from perfgate.drill.board_document import BoardReport
from perfgate.drill.campaign import read_drill
from perfgate.errors import NotMeasuredError, PerfgateError, UsageError
from perfgate.fleet.nightly import read_night
from perfgate.github.api import Api, WorkflowRun
from perfgate.github.artifact import read_member, unpack
from perfgate.github.comment import comment, comment_body
from perfgate.github.policy import _aim
from perfgate.github.verdict import LIMIT_BYTES, read_verdict
from perfgate.github.workflow_job import GithubJob
from perfgate.imports.two_results import compare_results
from perfgate.judge.cell_verdict import judge
from perfgate.judge.comparison import compare_table
from perfgate.load.arrival_trace import read_arrivals
from perfgate.load.arrivals import window
from perfgate.load.event_stream import EventStream, StreamError
from perfgate.load.shape import Load
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.clock_lease import find_leases
from perfgate.machine.locks import STATE
from perfgate.machine.process_log import last_words
from perfgate.metrics.transformer import read_config, step_demand
from perfgate.project.config import load_config
from perfgate.record.run_record import read_record, read_run
from perfgate.report.formats import formats_of, render
from perfgate.report.text import to_text
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import resolve_cells
from perfgate.trace.breakdown import figures
from perfgate.trace.decode_step import summarise
from perfgate.trace.scrub import scrub
from perfgate.trace.selection import select
from perfgate.trace.trace_file import read_trace

CORPUS = Path(__file__).with_name("corpus")


class _Gone:
    """A worker's process that has ended."""

    def poll(self) -> int:
        """Its status."""
        return 0

    def wait(self, timeout_s: float) -> int:
        """Likewise."""
        assert timeout_s > 0
        return 0


class _Answers:
    """An opener that answers each request with the next line, then with nothing."""

    def __init__(self, file: Path) -> None:
        self._lines = io.BytesIO(file.read_bytes())

    def open(self, *_: Any, **__: Any) -> Any:
        """The next answer."""
        answer = mock.MagicMock(status=200, headers=Message())
        answer.read = io.BytesIO(self._lines.readline()).read
        answer.__enter__.return_value = answer
        answer.__exit__.return_value = False
        return answer


def _scenario(file: Path) -> None:
    """With the model beside it that it names."""
    model = file.parent / "models" / "llama-tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_bytes(WHOLE["config.json"])
    resolve_cells(load(file))


def _record(file: Path) -> None:
    """What is read must also be judged, shown and tabulated."""
    found = read_record(file)
    manifest = run([found.cell], subjects=found.subjects)
    render("outcome", "text", judge(manifest, {found.cell.cell_id: found}))
    found.frame()


def _sealed_record(file: Path) -> None:
    """Anybody can take a digest anew."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        content = json.loads(file.read_bytes())
        content.pop("digest", None)
        content["digest"] = sha256_hex(canonical_json(content))
        file.write_text(json.dumps(content), encoding="utf-8")
    _record(file)


def _baseline(file: Path) -> None:
    found = read_baseline(file).baseline
    to_text(baseline_document(found))
    to_text(log_document(found))


def _sealed_baseline(file: Path) -> None:
    with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError, KeyError):
        content, before = json.loads(file.read_bytes()), ""
        for entry in content["entries"]:
            entry["parent"] = before
            entry["digest"] = before = _digest(entry)
        content["tip"] = before
        file.write_text(json.dumps(content), encoding="utf-8")
    _baseline(file)


def _drill(file: Path) -> None:
    """As it is gone on with: what an exercise runs, and the board of what there is."""
    found = read_drill(file.parent)
    for exercise in found.exercises:
        exercise.sides(found.base)
    make_board(file.parent)


def _board(file: Path) -> None:
    found = read_board(file)
    for form in formats_of("drill"):
        render("drill", form, BoardReport(found, false_blocks([found])))


def _verdict(file: Path) -> None:
    outcome = read_verdict(file.read_bytes(), str(file))
    run = WorkflowRun(id=7, head_sha=SHA, conclusion="failure", event="push", head_repository=None)
    comment_body(run, "https://github.com/o/r", outcome, ())


def _archive(file: Path) -> None:
    for name in ("verdict.json", "job.json"):
        read_member(file, name, LIMIT_BYTES)
    unpack(file, file.with_name("content"), 1 << 20)


def _job(file: Path, **more: str) -> GithubJob:
    return GithubJob({
        "GITHUB_EVENT_PATH": str(file), "GITHUB_EVENT_NAME": "pull_request", "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_REF": "refs/heads/main", **more,
    })  # fmt: skip


def _job_json(file: Path) -> None:
    (file.parent / "perfgate").mkdir(exist_ok=True)
    file.replace(file.parent / "perfgate" / file.name)
    _job(file, RUNNER_TEMP=str(file.parent)).read_plan()


def _event(file: Path) -> None:
    api = mock.Mock()
    answer = {**listed(12, {"base": {"ref": "release"}}), "protected": True}
    api.get.side_effect = lambda model, _: model.model_validate(answer)
    refused = []
    for name, ref in (
        ("pull_request", "refs/pull/12/merge"), ("merge_group", "x"), ("push", "refs/heads/pull-request/12"),
    ):  # fmt: skip
        job = _job(file, GITHUB_EVENT_NAME=name, GITHUB_REF=ref)
        uses: tuple[Callable[[GithubJob], Any], ...] = (
            lambda job: job.listed_at(SHA),
            lambda job: _aim(job, api),
            lambda job: job.event(WorkflowRun, "workflow_run"),
        )
        for use in uses:
            try:
                use(job)
            except UsageError as error:
                refused.append(error)
    if refused:
        raise refused[0]


def _github(file: Path) -> None:
    api = Api("https://api.github.com", "t")
    api._opener = _Answers(file)  # type: ignore[assignment]  # its answers are the input
    event = file.with_name("event-of-the-run.json")
    event.write_bytes(WHOLE["event.json"])
    comment(_job(event), api, ["scenarios/*.yaml"])


def _engine(file: Path) -> None:
    """A worker that has answered all at once and ended."""
    measured = cell()
    job = Job(
        kind="timed", cell=measured, side="base", subject=BASE, index=0, pair=0, position=0, visit=0,
        run_folder=file.parent, folder=file.parent, cache_folder=file.parent / "cache", environment={}, owner="",
    )  # fmt: skip
    worker = Worker(job)
    worker._child = _Gone()  # type: ignore[assignment]  # no process
    worker.born_ns = 0
    worker._buffer += file.read_bytes()
    worker._requests = worker._answers = os.open(os.devnull, os.O_RDWR)
    try:
        answer, _ = VllmEngine(worker, job, Launch(), Parking()).iterate(measured.workload, 0)
        read_iteration(answer, measured.batch)
        if "host_calls" in answer:
            read_calls(answer)
    finally:
        os.close(worker._answers)


def _arrivals(file: Path) -> None:
    """What is read must also be a window, if it is small enough to make one in a moment."""
    found = [entry for entry in read_arrivals(file)[:8] if entry.input_tokens <= 4096]
    replayed = Load.model_validate({"arrival": {"replay": {"file": file.name}}})
    assert not found or len(window(replayed, 0, 64, found).requests) == len(found)


def _results(file: Path) -> None:
    """Beside itself; what is compared must also be shown."""
    outcome = compare_results(file, file)
    assert outcome is None or render("outcome", "text", outcome)


def _server(file: Path) -> None:
    """An answer that comes in pieces, and then the end of the connection."""
    stream, data = EventStream(max_tokens=8), file.read_bytes()
    try:
        for begin in range(0, len(data), 97):
            stream.feed(data[begin : begin + 97])
            if stream.done:
                return
        stream.end()
    except StreamError as error:
        raise UsageError(str(error)) from error


def _profile(file: Path) -> None:
    calls = read_profile(file).calls
    assert not any(call_difference(calls, calls, kind).changes for kind in calls.steps)


def _lease(file: Path) -> None:
    file.replace(file.with_name("GPU-1.lease"))
    with mock.patch.dict(os.environ, {STATE: str(file.parent)}):
        for lease in find_leases(["GPU-1"]):
            str(lease)


def _model(file: Path) -> None:
    step_demand(read_config(file.parent), {}, batch=8, input_tokens=16, output_tokens=4)


def _counted(file: Path) -> None:
    """As ``perfgate counters`` does it: what is read must also be shown."""
    package: Any = ModuleType("ncu_report")
    package.load_report = lambda _: []
    with mock.patch.dict(sys.modules, {"ncu_report": package}):
        counted = read_counters(file)
    for form in formats_of("counters"):
        render("counters", form, counted)


def show_trace(file: Path) -> None:
    """Everything that ``perfgate kernels`` and a traced trial do with a trace."""
    trace = read_trace(file)
    assert len(trace.kernels)
    found = figures(trace)
    assert (found.idle_ns >= 0).all()
    assert (found.busy_ns >= 0).all()
    selection = select(trace)
    for form in formats_of("kernels"):
        assert render("kernels", form, selection)
    with contextlib.suppress(NotMeasuredError):  # no whole decode step
        summarise(trace)


def scrub_trace(file: Path) -> None:
    """A copy of a trace without what is personal in it."""
    scrub(file, file.with_name("scrubbed"))


def _trace(file: Path) -> None:
    with contextlib.suppress(PerfgateError):
        scrub_trace(file)
    show_trace(file)


READERS: dict[str, Callable[[Path], object]] = {
    "scenario.yaml": _scenario,
    "perfgate.toml": load_config,
    "run.json": lambda file: read_run(file.parent),
    "record.json": _record,
    "sealed-record.json": _sealed_record,
    "night.json": lambda file: read_night(file.parent),
    "drill.json": _drill,
    "board.json": _board,
    "baseline.json": _baseline,
    "sealed-baseline.json": _sealed_baseline,
    "profile.json": _profile,
    "verdict.json": _verdict,
    "artifact.zip": _archive,
    "job.json": _job_json,
    "event.json": _event,
    "github.jsonl": _github,
    "engine.jsonl": _engine,
    "engine.log": last_words,
    "lease.json": _lease,
    "config.json": _model,
    "arrivals.csv": _arrivals,
    "arrivals.jsonl": _arrivals,
    "results.json": _results,
    "results.jsonl": _results,
    "server.http": _server,
    "times.csv": lambda file: compare_table(file, [gate("itl_median", "1%", "5%")]),
    "counted.csv": _counted,
    "counted.ncu-rep": _counted,
    "trace.json": _trace,
    "ascend.json": _trace,
    "onnxruntime.json": _trace,
    "layers.json": _trace,
    "export.sqlite": _trace,
}
"""By the name of the file; what a reader gives is used as perfgate uses it."""


def refusal(name: str, data: bytes, folder: Path) -> str:
    """What a reader says of a file with this content that it refuses; empty where it reads it.

    Args:
        name: Of :data:`READERS`.
        data: The content.
        folder: Where the file is written; its own, and what is in it goes.

    Raises:
        Exception: Any error that is not perfgate's own: a defect.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = folder / name
    file.write_bytes(data)
    try:
        with warnings.catch_warnings(action="error"):
            READERS[name](file)
    except PerfgateError as error:
        return str(error)
    return ""

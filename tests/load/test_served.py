"""What goes with a driver of servers, and what does not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from conftest import CONFIG
from hand_made import judged, spread, trials

from perfgate.doctor.preflight import preflight
from perfgate.errors import NotMeasuredError, ScenarioError, UsageError
from perfgate.load.arrival_trace import kept_trace
from perfgate.load.shape import Load
from perfgate.record.cost import kind_cost
from perfgate.record.keeping import make_folder
from perfgate.scenario.declaration import dump, load, loads
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.presets import with_preset

ROOT = Path(__file__).parents[2]
TEXT = """schema: 1
name: tiny
engine: {driver: server, model: {hub: a/b, revision: 0123abc}}
workload: {arrival: {poisson: 4}, requests: 10, output_tokens: 16}
gates:
  - {metric: ttft_quantile, quantile: 99%, ignorable: 1%, must_catch: 5%}
"""


FIND = "find: {least: 1, most: 16, slo: {ttft: 1s}}"


def problem(old: str, new: str) -> str:
    """The one problem of the scenario with a text replaced."""
    assert old in TEXT
    with pytest.raises(ScenarioError) as caught:
        loads(TEXT.replace(old, new), Path("s.yaml"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("driver: server", "driver: vllm", "workload.arrival: unknown key"),
        ("poisson: 4", "poison: 4", "workload.arrival.poison: unknown key (did you mean 'poisson'?)"),
        ("arrival: {poisson: 4}, requests: 10, output_tokens: 16", "batch: 2", "workload.batch: unknown key"),
        ("arrival: {poisson: 4}, ", "", "workload.arrival: is missing; add it, for example arrival: {poisson: 4}"),
        ("gates:", "calls: {}\\ngates:", "calls: profiles the engine's own loop"),
        ("gates:", "matrix: {batch: [1]}\\ngates:", "matrix.batch: a load has no such number"),
        ("ttft_quantile, quantile: 99%", "mbu", "gates[0].metric: mbu is read from decode steps"),
        ("ttft_quantile, quantile: 99%", "peak_memory", "gates[0].metric: peak_memory is read inside"),
        (
            "gates:\n  - {metric: ttft_quantile, quantile: 99%",
            "measure: {warmup_iterations: 0}\ngates:\n  - {metric: kv_use",
            "gates[0].metric: kv_use is read while requests of warm-up run: set measure.warmup_iterations to 1 or more",
        ),
        ("quantile: 99%, ", "", "gates[0]: ttft_quantile needs one, like quantile: 99%"),
        ("quantile: 99%", "quantile: 100%", "gates[0].quantile: expected a percentage above 0% and below 100%"),
        ("ttft_quantile, quantile: 99%", "goodput, slo: {}", "gates[0].slo: expected at least one of ttft, tpot, e2e"),
        ("{poisson: 4}, requests: 10", "{replay: {file: a.csv}}", "workload.arrival.replay: a.csv: not a file"),
        ("{poisson: 4}, requests: 10", "{replay: {file: ../a.csv}}", "expected a file below the scenario's folder"),
        ("revision: 0123abc}", "revision: 0123abc}, command: [x]", "engine.command: needs {port}"),
        ("ttft_quantile, quantile: 99%", "max_rate", "gates[0].metric: max_rate needs a load like arrival: {find: "),
        ("{poisson: 4}", "{poisson: true}", "workload.arrival.poisson: expected a number"),
        (
            "output_tokens: 16",
            "output_tokens: {uniform: []}",
            "output_tokens.uniform: ends too early: expected more values, found []",
        ),
        (
            "output_tokens: 16",
            "output_tokens: 16, cancel: {share: 100%, after_tokens: 1}",
            "expected a share below 100%",
        ),
        ("{poisson: 4}", f"{{{FIND}}}", "gates[0].metric: ttft_quantile is measured at a rate that each trial finds"),
        ("{poisson: 4}", f"{{{FIND.replace('16', '1')}}}", "workload.arrival.find.most: must be above least"),
        ("{poisson: 4}", f"{{{FIND.replace('ttft: 1s', '')}}}", "find.slo: expected at least one of ttft, tpot, e2e"),
        ("{poisson: 4}, requests: 10", f"{{{FIND.replace('16', '1e5')}}}, duration: 2s", "more than 100000 requests"),
        (
            "{poisson: 4}, requests: 10",
            "{poisson: 100}, duration: 900s, input_tokens: 300000",
            "workload.duration: 27000 million tokens in the prompts of a window, more than 67: make it shorter",
        ),
        (
            "requests: 10",
            "requests: 90000, long_prefill: {share: 10%, input_tokens: 100000}",
            "workload.requests: 941 million tokens in the prompts of a window",
        ),
        (
            "requests: 10",
            "requests: 90000, prefix: {share: 50%, tokens: 2000}",
            "workload.requests: 113 million tokens",
        ),
        ("{poisson: 4}", "{poisson: 1.0e-300}", "workload.arrival.poisson: must be at least 0.001"),
        ("{poisson: 4}", "{bursts: {rate: true, size: 2}}", "workload.arrival.bursts.rate: expected a number"),
        ("{poisson: 4}, requests: 10", "{poisson: 0.01}, requests: 1000", "workload.arrival: a window lasts 28 hours"),
        (
            "{poisson: 4}, requests: 10",
            "{find: {least: 0.001, most: 1000, slo: {ttft: 1s}}}, requests: 3000",
            "workload.arrival: a window lasts 833 hours",
        ),
        (
            "{poisson: 4}, requests: 10",
            "{closed: {concurrency: 1, think: 100000s}}, requests: 50",
            "workload.arrival: a window lasts 1389 hours",
        ),
        (
            "{poisson: 4}",
            "{ramp: {start: 9, end: 1}}",
            "workload.requests: the last requests of a ramp that falls may come late: give duration instead",
        ),
        ("output_tokens: 16", "output_tokens: 16, lora: {names: [a漢]}", "workload.lora.names[0]"),
        ("output_tokens: 16", "output_tokens: 16, lora: {names: [b, a, b]}", "expected each name once, and b is there"),
    ],
)
def test_a_mistake_is_told_with_its_place(old: str, new: str, said: str) -> None:
    """Each of the one kind of workload that the driver takes."""
    assert said in problem(old, new.replace("\\n", "\n"))


def test_a_command_and_metrics_of_servers_need_the_driver() -> None:
    """The engine's own loop has neither."""
    batch = TEXT.replace("arrival: {poisson: 4}, requests: 10, ", "batch: 1, input_tokens: 2, ")
    plain = batch.replace("driver: server, ", "")
    with pytest.raises(ScenarioError, match="ttft_quantile is a server's: it needs driver: server"):
        loads(plain, Path("s.yaml"))
    with pytest.raises(ScenarioError, match="command: goes with driver: server"):
        loads(plain.replace("0123abc}", '0123abc}, command: ["{port}"]'), Path("s.yaml"))


@pytest.mark.parametrize(
    ("arrival", "window_s"),
    [
        ("{poisson: 4}, requests: 10", 2.5),
        ("{bursts: {rate: 5, size: 5}}, requests: 10", 2.0),
        ("{ramp: {start: 1, end: 9}}, requests: 10", 2.0),
        ("{constant: 4}, duration: 60s", 60.0),
        (f"{{{FIND}}}, requests: 10", 2.5 * 28 / 22),
        ("{closed: {concurrency: 1}}, requests: 10", None),
    ],
)
def test_what_windows_take_at_least_is_known_before_the_first_run(arrival: str, window_s: float | None) -> None:
    """Twenty windows, the default, can be hours: a price says so, and where answers decide it is unknown."""
    text = TEXT.replace("ttft_quantile, quantile: 99%", "max_rate") if "find" in arrival else TEXT
    (cell,) = resolve_cells(loads(text.replace("{poisson: 4}, requests: 10", arrival), Path("s.yaml")))
    cost = kind_cost(cell, "timed", None)
    assert cost.minutes == (None if window_s is None else pytest.approx([n * 22 * window_s / 60 for n in (14, 18, 26)]))
    assert ("windows alone" in cost.source) is (window_s is not None)


def test_a_load_survives_the_way_through_a_record() -> None:
    """A dumped scenario loads to the same, and so does the cell that a record keeps; a command makes another cell."""
    loaded = loads(TEXT, Path("s.yaml"))
    assert isinstance(loaded.scenario.workload, Load)
    assert loads(dump(loaded.scenario), Path("s.yaml")).scenario == loaded.scenario
    (cell,) = resolve_cells(loaded)
    assert Cell.model_validate_json(cell.model_dump_json()) == cell
    with pytest.raises(TypeError, match="has no batch"):
        _ = cell.batch
    (other,) = resolve_cells(loads(TEXT.replace("0123abc}", '0123abc}, command: ["{port}"]'), Path("s.yaml")))
    assert other.cell_id != cell.cell_id


LINES = [{"timestamp": 1000 * at, "input_length": 600 + at, "output_length": 2 + at} for at in range(8)]


@pytest.fixture
def replaying(tmp_path: Path) -> Path:
    """A scenario that replays a trace of eight requests."""
    (tmp_path / "perfgate.toml").touch()
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "chat.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    file = tmp_path / "s.yaml"
    replay = "{replay: {file: traces/chat.jsonl, speed: 2}}"
    file.write_text(TEXT.replace("{poisson: 4}, requests: 10, output_tokens: 16", replay))
    return file


def test_a_replayed_trace_is_part_of_the_cell(replaying: Path) -> None:
    """By its content, not by its name; a digest in the scenario holds it fast."""
    (cell,) = resolve_cells(load(replaying))
    trace = replaying.parent / "traces" / "chat.jsonl"
    assert isinstance(cell.workload, Load)
    assert cell.workload.arrival.replay is not None
    digest = cell.workload.arrival.replay.sha256
    assert digest == hashlib.sha256(trace.read_bytes()).hexdigest()
    assert Cell.model_validate_json(cell.model_dump_json()) == cell

    trace.write_text(trace.read_text().replace("600", "601"))
    (other,) = resolve_cells(load(replaying))
    assert other.cell_id != cell.cell_id
    (as_it_was,) = resolve_cells(load(replaying), measured=cell.workload)
    assert as_it_was.cell_id == cell.cell_id
    replaying.write_text(replaying.read_text().replace("speed: 2", f"speed: 2, sha256: {digest}"))
    with pytest.raises(ScenarioError, match="is another file than sha256 says: it has "):
        load(replaying)


def test_a_trace_that_cannot_be_replayed_is_told_with_its_line(
    replaying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace's own line beside the scenario's; so is one that leads elsewhere, or has too many tokens."""
    trace = replaying.parent / "traces" / "chat.jsonl"
    trace.write_text(trace.read_text() + '\n{"timestamp": 1}')
    with pytest.raises(
        ScenarioError, match=r"s\.yaml:4:.*workload\.arrival\.replay: traces/chat\.jsonl:9: input_length"
    ):
        load(replaying)
    trace.write_text("\n".join(map(json.dumps, LINES)))
    with monkeypatch.context() as patch:
        patch.setattr("perfgate.load.shape.MOST_PROMPTS", 1000)
        with pytest.raises(ScenarioError, match="tokens in the prompts of a window, more than 0: make it shorter"):
            load(replaying)
    trace.unlink()
    trace.symlink_to("/etc/passwd")
    with pytest.raises(ScenarioError, match="leads out of the repository"):
        load(replaying)


def test_what_a_trace_leaves_nothing_to_do_for_is_refused(replaying: Path) -> None:
    """More requests than it has, and prefixes beside its own, were silently left out."""
    text, trace = replaying.read_text(), replaying.parent / "traces" / "chat.jsonl"
    shared = text.replace("speed: 2}}", "speed: 2}}, prefix: {share: 50%, tokens: 64}")
    replaying.write_text(text.replace("speed: 2}}", "speed: 2}}, requests: 9"))
    with pytest.raises(ScenarioError, match="has 8 requests, and a window of 9 is asked for: leave requests out"):
        load(replaying)

    replaying.write_text(shared)
    load(replaying)  # no line of it says which prompts begin alike
    trace.write_text("\n".join(json.dumps(line | {"hash_ids": [1, 2]}) for line in LINES))
    with pytest.raises(ScenarioError, match="so prefix would do nothing: remove it, or give input_tokens"):
        load(replaying)
    replaying.write_text(shared.replace("prefix:", "input_tokens: 600, prefix:"))
    load(replaying)


@pytest.mark.parametrize(
    ("arrival", "requests"),
    [("{poisson: 500}, requests: 20000", 20000), (f"{{{FIND}}}, duration: 1000s", 16000)],
)
def test_a_load_of_more_figures_than_a_record_holds_is_refused(arrival: str, requests: int) -> None:
    """Before anything starts; a record that cannot be written would be told after hours."""
    text = TEXT.replace("ttft_quantile, quantile: 99%", "max_rate") if "find" in arrival else TEXT
    loaded = loads(text.replace("{poisson: 4}, requests: 10", arrival), Path("s.yaml"))
    with pytest.raises(ScenarioError, match=rf"12 pairs of 20 windows with {requests} requests yield \d+ million"):
        preflight([loaded], {})


def test_a_trace_that_no_client_can_replay_at_its_speed_is_told(replaying: Path) -> None:
    """Its requests are 100 us apart at least, so that it would take longer than the scenario says."""
    trace = replaying.parent / "traces" / "chat.jsonl"
    trace.write_text("\n".join(json.dumps({**line, "timestamp": at // 4}) for at, line in enumerate(LINES * 4)))
    assert not preflight([load(replaying)], {}).warnings
    replaying.write_text(replaying.read_text().replace("speed: 2", "speed: 3"))
    with pytest.raises(ScenarioError, match=r"arrival\.replay: the trace comes to 13286 .* 10000 a second: replay it"):
        preflight([load(replaying)], {})


def test_requests_of_a_trace_that_exceed_the_context_are_told(replaying: Path) -> None:
    """Those that a window replays, before a server starts."""
    text = replaying.read_text().replace("model: {hub", "args: {max_model_len: 615}, model: {hub")
    replaying.write_text(text)
    with pytest.raises(ScenarioError, match="can have 616 tokens, and max_model_len is 615"):
        preflight([load(replaying)], {})
    for less in ("requests: 7", "duration: 3500ms"):
        replaying.write_text(text.replace("speed: 2}}", f"speed: 2}}}}, {less}"))
        assert not preflight([load(replaying)], {}).warnings


def test_a_run_keeps_the_trace_that_it_replays(replaying: Path, tmp_path: Path) -> None:
    """Under its digest; a copy that was changed, or is gone, is not replayed."""
    loaded = load(replaying)
    (cell,) = resolve_cells(loaded)
    make_folder(tmp_path / "run", [loaded])
    assert [entry.input_tokens for entry in kept_trace(tmp_path / "run", cell.workload)] == [*range(600, 608)]
    (kept,) = (tmp_path / "run" / "arrivals").iterdir()
    kept.write_text(kept.read_text().replace("600", "601"))
    with pytest.raises(NotMeasuredError, match="changed since the run began"):
        kept_trace(tmp_path / "run", cell.workload)
    kept.unlink()
    with pytest.raises(NotMeasuredError, match="not a file"):
        kept_trace(tmp_path / "run", cell.workload)


def test_the_shipped_scenario_fits_its_model() -> None:
    """No request of it is longer than the context."""
    shipped = load(ROOT / "scenarios" / "cpu-tiny-server.yaml").scenario
    assert isinstance(shipped.workload, Load)
    longest, context = shipped.workload.longest, shipped.engine.args["max_model_len"]
    assert longest is not None
    assert isinstance(context, int)
    assert longest <= context < CONFIG["max_position_embeddings"]


def test_a_load_has_no_batch(tmp_path: Path) -> None:
    """Scaling refuses it, and says what seeks a server's limit."""
    file = tmp_path / "served.yaml"
    file.write_text(TEXT)
    with pytest.raises(UsageError, match="scales a batch, and the scenario declares a load"):
        with_preset(load(file), "scaling", 2)
    assert with_preset(load(file), "quick", 2).text == TEXT


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        (0, 2, ["tokens of a server's events: those of base by ids, those of head by events"]),
        (1, 0, ["tokens of a server's events: those of base by usage, those of head by ids"]),
        (2, 2, []),
        (0, 0, []),
    ],
)
def test_tokens_that_were_counted_otherwise_on_one_side_are_told(base: int, head: int, said: list[str]) -> None:
    """What bundles tokens in an event has other times between them, and a head that tells less of them hides it."""
    (measured,) = resolve_cells(loads(TEXT, Path("s.yaml")))
    by = {"base": base, "head": head}
    taken = [
        one.model_copy(update={"figures": {"counted_by": by[one.subject]} if by[one.subject] else {}})
        for one in trials(spread(0.0, 0.0002, 4))
    ]
    assert [note.text for note in judged(taken, measured).cells[0].cautions if note.code == "engine-tells-less"] == said

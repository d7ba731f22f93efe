"""Reports: golden files for whole outcomes, and what no words of an engine may do to a page."""

from __future__ import annotations

import functools
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from decode_steps import Kernel, decode, traces
from fake_kernels import H200
from hand_made import BASE, cell, failed, gate, iteration, judged, record, run, spread, trial, trials
from hypothesis import example, given
from hypothesis import strategies as st
from rank_traces import other_collective
from stored import alone, lineage

from perfgate.baseline.lineage import Baseline
from perfgate.baseline.visit_comparison import judge_against
from perfgate.counters.launch_table import COUNTERS, KernelLaunch
from perfgate.counters.step_counters import CountedStep
from perfgate.errors import UsageError
from perfgate.github.github_markdown import annotate, render_github, render_within
from perfgate.judge.cell_verdict import compare_sides, judge, judge_advisory
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import CellOutcome, MetricOutcome, Outcome, verdict_json
from perfgate.kernels.causes import COUNTED
from perfgate.machine.telemetry import GpuTelemetry, Spread
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import Failure, Trial
from perfgate.models import Note
from perfgate.reasons import REASONS
from perfgate.report.closing_sentence import closing
from perfgate.report.document import printable
from perfgate.report.explanation import causes
from perfgate.report.formats import format_of, formats_of, render
from perfgate.report.interval_strip import interval_lines
from perfgate.report.junit import render_junit
from perfgate.report.markdown import CUT, escape, fenced, name
from perfgate.report.outcome_lines import HEADINGS, ungated_line, ungated_rows
from perfgate.report.setting_lines import next_steps
from perfgate.report.text import columns
from perfgate.scenario.counter_trials import Condition, Launches
from perfgate.scenario.expected_kernels import Expectation
from perfgate.scenario.plan import Plan
from perfgate.scenario.subject import Source, Subject
from perfgate.trace.decode_step import KernelKey
from perfgate.units import signed_percent

render_text = functools.partial(render, "outcome", "text")
render_markdown = functools.partial(render, "outcome", "markdown")

ENGINE_WORDS = """head: RuntimeError: Engine core initialization failed.
  File "/envs/head/lib/vllm/v1/engine/core.py", line 12, in __init__
    raise RuntimeError("CUDA out of memory")
RuntimeError: CUDA out of memory"""

HOSTILE = """head: `rm` | <script>alert(1)</script> @everyone *bold* _x_ [a](b) #1 $x$ \x1b[31mred\u202e
```
| a | b |
<img src=x> @everyone
````"""


FLOOR = Floor(
    gpu="NVIDIA H200",
    bytes_moved={"weights": 15_010_000_000, "kv-cache": 605_000_000},
    operations={"fp16": 122_000_000_000},
    bytes_per_second=4_814_304_000_000,
    operations_per_second={"fp16": 989_400_000_000_000},
    source="the datasheet",
    memory_ns=3_243_460,
    compute_ns=123_307,
)


def passing() -> Outcome:
    """Two gates that pass on a GPU whose roofs are known, one of them slower than ignorable."""
    measured = cell("llama-8b-decode", [gate(), gate("ttft_median", "2%", "8%", floor="1ms")])
    seen = {side: {"telemetry": (_gpu(side),), "floor": FLOOR} for side in ("base", "head")}
    taken = [one.model_copy(update=seen[one.subject]) for one in trials(spread(0.003, 0.0002, 4))]
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def regressed() -> Outcome:
    """Four gates: two regressed, one passed, one without values; outputs differ and a pair was dropped."""
    gates = [gate("ttft_median", "2%", "8%"), gate(), gate("output_throughput", "0.1%", "0.5%"),
             gate("model_memory", "1%", "5%")]  # fmt: skip
    measured = cell("llama-8b-decode", gates)
    taken = [_with_tokens(one, one.subject) for one in trials(spread(0.01, 0.0002, 6))]
    taken += [trial(12, 6, "base"), failed(13, 6, "head")]
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def inconclusive() -> Outcome:
    """Noise between the margins at the fourth look, and another cell between two looks."""
    first, second = cell("noisy"), cell("open")
    records = {"noisy": record(first, trials(spread(0.003, 0.004, 12))), "open": record(second, trials([0.01, 0.02]))}
    return judge(run([first, second]), records)


def not_measured(words: str = ENGINE_WORDS) -> Outcome:
    """The head's engine does not start."""
    measured = cell("llama-8b-decode")
    stop = Failure(code="engine-start-failed", text=words)
    taken = [trial(0, None, "base"), failed(1, None, "head", "engine-start-failed", words)]
    return judge(run([measured]), {measured.cell_id: record(measured, taken, stopped=stop)})


def advisory() -> Outcome:
    """Two one-sided records with different versions."""
    measured = cell("llama-8b-decode", [gate("itl_median", "1%", "5%")])
    sides = [
        record(measured, [trial(n, n, "base", 0.005 * factor + 1e-5 * (n % 3), versions={"vllm": version})
                          for n in range(6)], subjects={"base": BASE})
        for factor, version in ((1.0, "0.25.1"), (1.1, "0.26.0"))
    ]  # fmt: skip
    plan = Plan(cells=(measured,), seed=0)
    compared = compare_sides(RecordSide(sides[0], "base"), RecordSide(sides[1], "base"), plan)
    return judge_advisory("a.json b.json", plan, (compared,), Note(code="advisory-unpaired", text="a against b"))


def _gpu(side: str) -> GpuTelemetry:
    """One GPU that holds its clock; the head draws more power and meets its cap."""
    power_mw = 612_000 if side == "head" else 598_400
    return GpuTelemetry(
        gpu="GPU-1",
        samples=200,
        aligned=True,
        sm_mhz=Spread(low=1965, median=1980, high=1980) if side == "head" else Spread(low=1980, median=1980, high=1980),
        decode_sm_mhz=1980,
        memory_mhz=Spread(low=3201, median=3201, high=3201),
        power_mw=Spread(low=100_000, median=power_mw, high=700_000),
        temperature_c=Spread(low=40, median=55, high=61),
        reasons={"power-cap": 3, "idle": 1} if side == "head" else {"idle": 1},
    )


def two_cells() -> Outcome:
    """One cell of a matrix passes, the next one was never started."""
    cells = [cell(f"llama[batch={n}]") for n in (1, 8)]
    return judge(run(cells), {cells[0].cell_id: record(cells[0], trials(spread(0.0, 0.0002, 4)))})


FROM_FOUR = Expectation.model_validate({"traced": {"looks": [4, 6, 8, 12]}})


def kernels_regressed() -> Outcome:
    """A kernel gate that blocks beside a step that passes; two kernels were fused, and the host lost slack."""
    before = [("norm", "rms_norm", 3_000), ("quantize", "scaled_quant", 2_000)]
    after = [("norm", "rms_norm_quant", 3_600)]
    same = [("gemm", "nvjet", 110_000), ("rope", "rotary", 1_500)]
    base_layer = [*before, *same, ("attention", "flash", 12_000)]
    head_layer = [*after, *same, ("attention", "flash", 13_300), ("elementwise", "add", 1_100)]
    base, head = (
        [decode([*layer * 32, ("sampler", "argmax", 9_000)], slack_ns=slack_ns, work_ns=4_700_000 - slack_ns,
                graph=idle_ns + 500 * n, between=5_000)
         for n in range(6)]
        for layer, slack_ns, idle_ns in ((base_layer, 2_400_000, 150_000), (head_layer, 2_350_000, 152_000))
    )  # fmt: skip
    gates = [gate("itl_median", "1%", "3%"), gate("kernel_time_per_step", "1%", "5%", role="attention")]
    measured = cell("llama-8b-decode", gates).model_copy(update={"kernels": FROM_FOUR})
    taken = [*trials(spread(0.0066, 0.0002, 6)), *traces(base, head, first=12)]
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def counted() -> Outcome:
    """Attention takes longer, and its counters say why; a gemm has a launch more."""

    def step(attention: dict[str, float], gemms: int) -> CountedStep:
        usual = {"duration": 14e-6, "dram_bytes": 19e6, "dram_throughput": 71.0, "sm_throughput": 40.0,
                 "occupancy": 18.0, "registers": 168.0, "stall_long_scoreboard": 4.0}  # fmt: skip
        kernels = [("gemm", "qkv", "nvjet_sm90_64x8", usual | {"dram_bytes": 52.6e6})] * gemms
        kernels += [("attention", "", "flash::FlashAttnFwdSm90<128>", usual | attention)]
        kernels += [("norm", "", f"rms_norm_{n}", usual | {"dram_bytes": 1e5 * (n + 1)}) for n in range(14)]
        names = {name: COUNTERS[name].names_on(90)[0].metric for name in usual}
        launches = [
            KernelLaunch(key=KernelKey(role=role, place=place, name=name), position=n, layer=0, grid=(132, 1, 1),
                   block=(384, 1, 1), values={names[counter]: value for counter, value in values.items()})
            for n, (role, place, name, values) in enumerate(kernels)
        ]  # fmt: skip
        return CountedStep(source="ncu 2025.3.1", step=64, cache_control="all", passes=11, device=H200,
                           units={names[name]: COUNTERS[name].unit for name in usual},
                           launches=tuple(launches))  # fmt: skip

    slow = {"dram_throughput": 58.0, "stall_long_scoreboard": 6.1}
    base, head = (decode([("gemm", "nvjet", 110_016), ("attention", "flash", ns)]) for ns in (12_032, 13_312))
    measured = cell("llama-8b-decode", [gate("itl_median", "1%", "3%"),
                                        gate("kernel_time_per_step", "1%", "5%", role="attention")])  # fmt: skip
    measured = measured.model_copy(
        update={
            "kernels": FROM_FOUR,
            "counters": (Launches(role="attention", metrics={"registers": Condition("same")}),),
        }
    )
    taken = [*trials(spread(0.0066, 0.0002, 6)), *traces([base] * 6, [head] * 6, first=12)]
    taken += [trial(24, 0, "base", kind="counted", iterations=(), counted=step({}, 1)),
              trial(25, 0, "head", kind="counted", iterations=(), counted=step(slow, 2))]  # fmt: skip
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def host_bound() -> Outcome:
    """The device waits for the head's host: the step is longer, and kernels take as long as before."""
    kernels = [("gemm", "nvjet", 4_000_000), ("attention", "flash", 1_000_000)]
    measured = cell("llama-8b-decode")
    base, head = (
        decode(kernels, slack_ns=2_400_000, between=5_000),
        decode(kernels, slack_ns=-900_000, work_ns=5_600_000, nothing=3_000, between=905_000),
    )
    taken = [*trials(spread(math.log(5.9 / 5.0), 0.0002, 6)), *traces([base] * 2, [head] * 2, first=12)]
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def checked(more: Sequence[Kernel] = ()) -> Outcome:
    """A check of the kernels alone, of a head that runs these ones more in each of its four layers."""
    layer = [("gemm", "nvjet", 100_000), ("attention", "flash", 12_000)]
    block = Expectation.model_validate({"per_decode_step": {"patterns": [{"launches": 8}]}})
    measured = cell("llama-8b-decode", []).model_copy(update={"kernels": block})
    taken = traces([decode(layer * 4)], [decode([*layer, *more] * 4)])
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def internal_error() -> Outcome:
    """Perfgate itself failed."""
    measured = cell("llama-8b-decode")
    stop = Failure(code="internal-error", text="base: KeyError: 'x'\nTraceback (most recent call last):\n  ...")
    return judge(run([measured]), {measured.cell_id: record(measured, stopped=stop)})


def against_baseline(visits: int = 4) -> Outcome:
    """A head held against a baseline: one gate regressed, one undecided; with fewer visits that is advice."""
    gates = [gate("itl_median", "1%", "5%"), gate("start_time", "1%", "5%")]
    measured = cell("llama-8b-decode", gates)
    means = (0.0, 0.004, -0.003, 0.002)[:visits]
    baseline = lineage([[mean + 0.001 * (-1) ** n for n in range(6)] for mean in means], of=measured)
    entries = []
    for entry, start_s in zip(baseline.entries, (3.0, 3.2, 2.9, 3.3), strict=False):
        (visit,) = entry.visits
        loud = visit.model_copy(update={"values": {**visit.values, "start_time": (start_s,) * 6}})
        entries.append(entry.model_copy(update={"visits": (loud,), "digest": "0123456789abcdef"}))
    side = alone([0.08 + 0.001 * n for n in range(6)], of=measured)
    manifest = run([measured], subjects=side.subjects)
    return judge_against(manifest, {measured.cell_id: side}, {measured.cell_id: [Baseline(entries=tuple(entries))]})


OUTCOMES: dict[str, Callable[[], Outcome]] = {
    "pass": passing,
    "regressed": regressed,
    "inconclusive": inconclusive,
    "not-measured": not_measured,
    "hostile": lambda: not_measured(HOSTILE),
    "advisory": advisory,
    "two-cells": two_cells,
    "internal-error": internal_error,
    "kernels-regressed": kernels_regressed,
    "counted": counted,
    "host-bound": host_bound,
    "baseline": against_baseline,
    "baseline-advisory": lambda: against_baseline(2),
    "ranks": other_collective,
    "outside-envelope": lambda: checked([("elementwise", "add", 1_000)]),
}
kinds = pytest.mark.parametrize("kind", OUTCOMES)


def _with_tokens(one: Trial, tokens: str) -> Trial:
    return one.model_copy(update={"iterations": (iteration(one.iterations[0].itl_ns[0] / 1e9, tokens),)})


# --- whole reports


@kinds
def test_text(kind: str, golden: Callable[[str, str], None]) -> None:
    """The text of an outcome is its golden file."""
    golden(f"report-{kind}.txt", render_text(OUTCOMES[kind]()))


@kinds
def test_markdown(kind: str, golden: Callable[[str, str], None]) -> None:
    """The Markdown of an outcome is its golden file."""
    golden(f"report-{kind}.md", render_markdown(OUTCOMES[kind]()))


@pytest.mark.parametrize("kind", ["regressed", "hostile", "outside-envelope", "two-cells"])
def test_github(kind: str, golden: Callable[[str, str], None]) -> None:
    """What a job's log gets of an outcome is its golden file."""
    golden(f"report-{kind}.github.txt", render_github(OUTCOMES[kind]()))


@pytest.mark.parametrize("kind", ["regressed", "hostile", "outside-envelope", "two-cells"])
def test_junit(kind: str, golden: Callable[[str, str], None]) -> None:
    """The JUnit XML of an outcome is its golden file."""
    golden(f"report-{kind}.xml", render_junit(OUTCOMES[kind]()))


@kinds
def test_junit_has_no_pass_where_there_is_none(kind: str) -> None:
    """An outcome that is no pass has a case that is none either, and every document can be read."""
    outcome = OUTCOMES[kind]()

    suites = ET.fromstring(render_junit(outcome))  # noqa: S314 (our own)

    bad = sum(int(suites.attrib[count]) for count in ("failures", "errors", "skipped"))
    assert (bad == 0) == (outcome.verdict in ("pass", "improved"))
    assert int(suites.attrib["tests"]) == len(list(suites.iter("testcase"))) > 0


def test_annotations_are_ten_a_level() -> None:
    """Of more than ten of a level the worst nine are shown, and the tenth counts the rest."""
    metrics = [name for name in METRICS if name.startswith(("itl", "ttft", "tpot", "e2e", "output"))]
    worse = judged(trials(spread(0.01, 0.0002, 6)), cell("a", [gate(name) for name in metrics])).cells[0]
    outcome = regressed().model_copy(update={"cells": (not_measured().cells[0], worse, worse)})

    errors = [one for one in annotate(outcome) if one.level == "error"]

    assert len(errors) == 10
    assert all("regressed" in one.title for one in errors[:9])
    assert errors[9].text == f"{2 * len(metrics) + 2 - 9} more like these; the report names all of them"


@kinds
@pytest.mark.parametrize("limit", [1_000, 1_500, 2_000, 4_000])
def test_a_summary_fits(kind: str, limit: int) -> None:
    """However little room there is, the verdict is there, the limit is kept, and no fence is left open."""
    outcome = OUTCOMES[kind]()

    text = render_within(outcome, limit, ["note"])

    first, *_ = render_markdown(outcome).splitlines()
    assert text.startswith(f"{first}\n\nnote\n")
    assert len(text.encode()) <= limit
    lines = interval_lines(outcome)
    drawn = f"\n\n{fenced(chr(10).join(lines))}" if lines else ""
    assert (text == render_markdown(outcome).replace(first, f"{first}\n\nnote{drawn}", 1)) == (CUT not in text)
    fences = [line.removesuffix("text") for line in text.splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0


@kinds
@pytest.mark.parametrize("render", [render_text, render_markdown])
def test_every_note_with_its_remedy(kind: str, render: Callable[[Outcome], str]) -> None:
    """Every reason and caution of an outcome is shown with its code and its remedy."""
    outcome = OUTCOMES[kind]()
    plain = render(outcome).replace("\\", "")

    for note in _notes(outcome):
        assert note.code in plain
        assert REASONS[note.code].remedy in plain.replace("&gt;", ">").replace("&lt;", "<")


def _notes(outcome: Outcome) -> Sequence[Note]:
    def of(one: CellOutcome) -> tuple[Note, ...]:
        gates = [note for found in one.gates for note in (*found.reasons, *found.cautions)]
        return (*one.reasons, *one.cautions, *gates)

    return (*outcome.reasons, *(note for one in outcome.cells for note in of(one)))


@kinds
def test_verdict_stands_where_it_is_read(kind: str) -> None:
    """Markdown begins with the verdict's sentence, text ends with it."""
    outcome = OUTCOMES[kind]()
    words = {"not-measured": "NOT MEASURED", "internal-error": "INTERNAL ERROR"}
    word = words.get(outcome.verdict, outcome.verdict.upper())

    assert render_markdown(outcome).splitlines()[0].startswith(f"**{word}:")
    assert render_text(outcome).splitlines()[-1].startswith(f"{word}:")


@pytest.mark.parametrize(
    ("slowdown", "sentence"), [(-0.01, "PASS, IMPROVED: no gate is slower"), (0.0, "PASS: every gate excludes")]
)
def test_passes(slowdown: float, sentence: str) -> None:
    """An improvement is named in the sentence of a pass."""
    measured = cell()
    outcome = judge(run([measured]), {"cell": record(measured, trials(spread(slowdown, 0.0002, 4)))})

    assert render_text(outcome).splitlines()[-1].startswith(sentence)


def test_kernels_alone_pass() -> None:
    """A check of the kernels, which judges no time, passes in a sentence of its own."""
    closing = "PASS: every decode step of both sides is inside the envelope."

    assert render_text(checked()).splitlines()[-1] == closing


def test_other_metrics_say_which_way_is_worse() -> None:
    """A throughput that rises is better, a latency that does worse; few have values, and the same ones are counted.

    Without an interval nothing is called worse, and what an interval does not exclude is chance.
    """
    rows = {
        "ttft_p95": MetricOutcome(metric="ttft_p95", unit="s", better="lower", base=0.04, head=0.047, change=0.175,
                                  change_low=0.15, change_high=0.2),
        "output_throughput": MetricOutcome(
            metric="output_throughput", unit="tok/s", better="higher", base=100, head=103, change=0.03,
            change_low=0.01, change_high=0.05
        ),
        "itl_p95": MetricOutcome(metric="itl_p95", unit="s", better="lower", base=0.04, head=0.05, change=0.25,
                                 change_low=-0.01, change_high=0.51),
        "itl_p99": MetricOutcome(metric="itl_p99", unit="s", better="lower", base=0.04, head=0.05, change=0.25),
        "host_slack_per_step": MetricOutcome(
            metric="host_slack_per_step", unit="s", better="higher", base=1e-3, head=-1e-3, change=None
        ),
        "start_time": MetricOutcome(
            metric="start_time", unit="s", better="lower", base=1.0, head=1.000001, change=0.000001
        ),
    }  # fmt: skip
    told = (
        "worse is ttft_p95 +17.5 %; better is output_throughput +3.00 %; "
        "differ, not judged: itl_p99 +25.0 %, host_slack_per_step 1.000 ms to -1.000 ms; "
        "1 metric differs by no more than chance"
    )

    def shown(*names: str) -> CellOutcome:
        (found,) = judge(run([cell()]), {"cell": record(cell(), trials([0.0] * 4))}).cells
        return found.model_copy(update={"ungated": tuple(rows[name] for name in names)})

    assert ungated_line(shown(*rows)) == f"{told}; 1 metric the same"
    assert ungated_line(shown("ttft_p95")) == "worse is ttft_p95 40.00 ms to 47.00 ms (+17.5 %, +15.0 % to +20.0 %)"
    assert ungated_line(shown("itl_p99")) == "differs, not judged: itl_p99 40.00 ms to 50.00 ms (+25.0 %)"
    assert ungated_line(shown("itl_p95", "start_time")) == "1 metric differs by no more than chance; 1 metric the same"
    assert ungated_line(shown("start_time")) == "1 metric the same"
    assert [row[-2:] for row in ungated_rows(shown(*rows))] == [
        ("interval", "head is"), ("+15.0 % to +20.0 %", "worse"), ("+1.00 % to +5.00 %", "better"),
        ("-", "different, not judged"), ("-", "different, not judged"),
        ("-1.00 % to +51.0 %", "the same but for chance"), ("-", "same"),
    ]  # fmt: skip


def test_regressed_cells_are_named() -> None:
    """Of several cells the closing sentence names those that regressed."""
    slow, same = cell("slow"), cell("same")
    records = {"slow": record(slow, trials(spread(0.01, 0.0002, 6))), "same": record(same, trials([0.0] * 4))}

    text = render_text(judge(run([same, slow]), records))

    assert text.splitlines()[-1].startswith("REGRESSED: slow itl_median +1.01 % (alpha")


def test_what_regressed_is_named_cell_by_cell() -> None:
    """All that regressed in a cell is named before the next cell, each thing once."""
    broken = [Note(code=code, text="") for code in ("outside-envelope", "counter-differs", "counter-out-of-bounds")]
    (slow,) = judged(trials(spread(0.01, 0.0002, 6)), cell("slow")).cells
    first = slow.model_copy(update={"name": "first", "reasons": tuple(broken)})

    sentence = closing(judged(trials(spread(0.01, 0.0002, 6))).model_copy(update={"cells": (first, slow)}))

    assert sentence.startswith(
        "REGRESSED: first itl_median +1.01 %, first kernels outside the envelope, first a counter, slow itl_median"
    )


def test_worst_gate_first() -> None:
    """Regressed gates stand above gates without values, and those above passes."""
    rows = [line.split()[0] for line in render_text(regressed()).splitlines()[4:8]]

    assert rows == ["itl_median", "output_throughput", "model_memory", "ttft_median"]


def test_undecided_beside_a_regression() -> None:
    """A gate that is undecided where another regressed is told to take no more pairs, since none would be taken."""
    measured = cell(gates=[gate(), gate("ttft_median", "2%", "2.05%")])

    text = render_markdown(judge(run([measured]), {"cell": record(measured, trials(spread(0.02, 0.0002, 6)))}))

    assert "REGRESSED" in text
    assert "reason `undecided` (`ttft_median`)" in text
    assert "takes no more pairs" in text
    assert "--more" not in text


def test_one_sided() -> None:
    """A one-sided cell shows the values of its metrics, in units for people."""
    measured = cell()
    subjects = {"base": BASE}
    alone = record(measured, [trial(n, n, "base") for n in range(4)], subjects=subjects)

    text = render_text(judge(run([measured], subjects=subjects), {"cell": alone}))

    assert "itl_median 5.000 ms" in text
    assert text.splitlines()[-1].startswith("MEASURED ONE SIDE:")


def test_quick() -> None:
    """The reason of the whole run stands in both reports."""
    measured = cell()
    outcome = judge(run([measured], quick=True), {"cell": record(measured, trials([0.0]))})

    assert "reason quick-run: one trial a subject was measured" in render_text(outcome)
    assert "reason `quick-run`: one trial a subject was measured." in render_markdown(outcome)


def test_unknown_code() -> None:
    """A record of another version may carry a code that this one does not know; the report shows it all the same."""
    measured = cell()
    stop = Failure(code="from-the-future", text="words")
    outcome = judge(run([measured]), {"cell": record(measured, stopped=stop)})

    assert "reason from-the-future (cell): words" in render_text(outcome)
    assert "reason `from-the-future` (cell): words." in render_markdown(outcome)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("died", "died. _"), ("died.", "died. _"), ("what?", "what? _"), ("so it said:\nno", "so it said: _")],
)
def test_full_stops(text: str, shown: str) -> None:
    """A note ends with one full stop, or with the mark that its text has."""
    assert f"(llama-8b-decode): {shown}" in render_markdown(not_measured(text))


# --- hostile words


def test_hostile_words() -> None:
    """Words of an engine cannot open HTML, mention people, break a table or leave their fence."""
    page = render_markdown(not_measured(HOSTILE))
    outside = page[: page.index("`````text")] + page[page.rindex("`````") :]

    assert "<" not in outside
    assert "@everyone" not in outside
    assert "\\`rm\\` \\|" in outside
    assert page.count("`````") == 2
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_hostile_names() -> None:
    """Names of cells and versions of packages are escaped too, and steer no terminal."""
    measured = cell("llama", [gate()]).model_copy(update={"name": 'x[a="<b>|`@all\x1b[2J"]'})
    taken = [one.model_copy(update={"versions": {"vllm": "<i>@everyone\x07"}}) for one in trials([0.0] * 4)]
    outcome = judge(run([measured]), {"llama": record(measured, taken)})

    page, text = render_markdown(outcome), render_text(outcome)

    assert "<b>" not in page
    assert "<i>" not in page
    assert "@all" not in page
    assert "@everyone" not in page
    assert "\\|\\`" in page
    assert not {"\x1b", "\x07"} & {*page, *text}


def test_a_report_stands_alone(golden: Callable[[str, str], None]) -> None:
    """A report says what was compared, of which commits, on what and when, and which commands go on from there."""
    source = Source(ref="main", commit="1a2b3c4d5e6f" + "0" * 28, changes="", recipe="c" * 64, folder="/cache/b",
                    title="Fuse | <b>`norm`</b> @team\x1b[31m")  # fmt: skip
    base = Subject(python="/cache/b/bin/python", built_from=source)
    head = Subject(python="/envs/my head/python", path=("/src/plugin",), env={"TOKEN": "secret"},
                   args={"max_num_seqs": 4, "compilation_config": {"level": 3}})  # fmt: skip
    sides: dict[Side, Subject] = {"base": base, "head": head}
    measured = cell("llama-8b-decode")
    kept = record(measured, trials(spread(0.01, 0.0002, 6)), subjects=sides)
    outcome = judge(run([measured], subjects=sides), {measured.cell_id: kept})

    page, text = render_markdown(outcome), render_text(outcome)

    golden("report-standing-alone.md", page)
    golden("report-standing-alone.txt", text)
    assert "secret" not in page + text + verdict_json(outcome)
    assert not {"\x1b"} & {*page, *text}
    assert not {"<b>", "@team"} & set(re.findall(r"<\w+>|@\w+", page))


@pytest.mark.parametrize(
    ("outcome", "steps"),
    [
        (passing, []),
        (two_cells, []),
        (inconclusive, ["perfgate run --resume hand-made --more 4"]),
        (kernels_regressed, []),
        (advisory, []),
        (lambda: against_baseline(4), []),
        (lambda: judge(run([cell()]), {"cell": record(cell(), trials([0.0, 0.0]))}),
         ["perfgate run --resume hand-made"]),
        (lambda: judge(run([cell()], quick=True), {"cell": record(cell(), trials([0.0]))}),
         ["perfgate run hand-made.yaml --base python=/envs/base/bin/python --head python=/envs/head/bin/python"]),
    ],
    ids=["pass", "not-started", "used-up", "traced", "advisory", "baseline", "open", "quick"],
)  # fmt: skip
def test_next_steps(outcome: Callable[[], Outcome], steps: list[str]) -> None:
    """What is open names the command that goes on; what no command of ours would tell more of names none."""
    assert next_steps(outcome()) == steps


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_regression_leads_to_its_cause(*, on_gpu: bool) -> None:
    """On a GPU a trace names kernels, and that learning edits the scenario is said; on a CPU counts name functions."""
    taken = [one.model_copy(update={"telemetry": (_gpu(one.subject),) if on_gpu else ()})
             for one in trials(spread(0.01, 0.0002, 6))]  # fmt: skip
    outcome = judge(run([cell()]), {"cell": record(cell(), taken)})
    base, head = (f"--{side} python=/envs/{side}/bin/python" for side in SIDES)
    lead = "to find out more (perfgate envelope learn writes a kernels: block into the scenario):"

    assert next_steps(outcome) == (
        [f"perfgate envelope learn hand-made.yaml {base}", f"perfgate envelope check hand-made.yaml {base} {head}"]
        if on_gpu
        else [f"perfgate run hand-made.yaml {base} {head} --profile-only --host-profile"]
    )
    assert (lead in render_text(outcome)) == on_gpu
    assert causes(outcome.cells[0]) == (
        "What caused it is not known, for no trace was taken; perfgate envelope check takes one."
        if on_gpu
        else "What caused it is not known, for no calls were counted; perfgate run --profile-only counts them.",
    )


def test_the_next_step_of_a_quick_a_a_run_names_both_sides() -> None:
    """A head that is the same as the base is named by a word of it, for a base alone would be measured alone."""
    same: dict[Side, Subject] = {side: Subject(python="/envs/base/bin/python") for side in ("base", "head")}
    kept = record(cell(), trials([0.0]), subjects=same)

    steps = next_steps(judge(run([cell()], quick=True, subjects=same), {"cell": kept}))

    python = "python=/envs/base/bin/python"
    assert steps == [f"perfgate run hand-made.yaml --base {python} --head {python}"]


def test_hostile_kernels() -> None:
    """A kernel's name opens no HTML, mentions nobody and leaves no fence, in the diff as in its headline."""
    outcome = checked([("elementwise", "x```\n# @team <img>\x1b[31m", 1), ("norm", "`<b>@all", 1)])

    page, text = render_markdown(outcome), render_text(outcome)

    outside = page[: page.index("````text")] + page[page.rindex("````") :]
    assert outcome.verdict == "regressed"
    assert not {"<img>", "<b>", "@team", "@all"} & set(re.findall(r"<\w+>|@\w+", outside))
    assert page.count("````") == 2
    assert "\x1b" not in page + text


@given(text=st.text(st.sampled_from("ab |`<>&@\\*_[]#~$\n")))
@example("_a_b__a_ b_a*_a")
def test_escape(text: str) -> None:
    """Escaped text has no bare markup character, no tag, no mention and one line, and reads back whole.

    An underscore within a word is none.
    """
    shown = escape(text)
    bare = re.sub("(?<=[ab])_(?=[ab])", "", shown.replace("\\\\", ""))

    assert "\n" not in shown
    assert "<" not in shown
    for mark in "|`*_[]#~$":
        assert bare.count(mark) == bare.count(f"\\{mark}")
    assert shown.count("@") == shown.count("@\u200b")
    back = shown.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\").replace("@\u200b", "@")
    assert back.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text.replace("\n", " ")


def test_names_can_be_searched_for() -> None:
    """A metric stands in a Markdown report as it does everywhere else, with its role; what is no name is escaped."""
    page = render_markdown(kernels_regressed())

    assert "\n| `kernel_time_per_step[attention]` | " in page
    assert page.count("itl_median") == render_text(kernels_regressed()).count("itl_median")
    assert (name("a_b[c`]"), name("a_b|c"), name("_a_b_")) == ("a_b\\[c\\`\\]", "a_b\\|c", "\\_a_b\\_")


@pytest.mark.parametrize("kind", [*OUTCOMES])
@pytest.mark.parametrize("width", [80, 100])
def test_text_fits_a_terminal(kind: str, width: int) -> None:
    """Nothing of ours is wider than the terminal, and a narrow one has every word that a wide one has."""
    outcome = OUTCOMES[kind]()

    lines = render_text(outcome, width).splitlines()

    too_long = [line for line in lines if len(line) > width and not line.startswith(("      ", "  perfgate "))]
    assert not too_long
    assert set(render_text(outcome).split()) - {*HEADINGS, *COUNTED, "times", "its", "roof", "-"} <= {
        word.rstrip(",") for line in lines for word in line.split()
    } | {word for line in lines for word in line.split()}


def test_a_narrow_table(golden: Callable[[str, str], None]) -> None:
    """What does not fit beside the others stands below its row; columns without a value go first."""
    golden("report-regressed.80.txt", render_text(regressed(), 80))
    shown = "\n".join(columns([("metric", "a", "b", "verdict"), ("itl", "1", "-", "pass")], 22, (1, 2)))
    assert shown == "  metric  a  verdict\n  itl     1  pass"


@given(text=st.text(st.sampled_from("a` \n")))
def test_fence(text: str) -> None:
    """No line of fenced text can be taken for the end of its fence."""
    opening, *inside, closing = fenced(text).split("\n")

    assert opening == f"{closing}text"
    assert set(closing) == {"`"}
    assert "\n".join(inside) == text
    assert closing not in text


@given(text=st.text())
def test_printable(text: str) -> None:
    """Printable text has only printable characters and line ends, and keeps the printable ones."""
    shown = printable(text)

    assert all(c.isprintable() or c == "\n" for c in shown)
    assert [c for c in text if c.isprintable() and c not in " \ufffd"] == [
        c for c in shown if c.isprintable() and c not in " \ufffd"
    ]


# --- small figures and formats


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (None, "-"),
        (0.0, "+0.00 %"),
        (-1e-9, "+0.00 %"),
        (0.0049, "+0.49 %"),
        (-0.0123, "-1.23 %"),
        (0.1234, "+12.3 %"),
        (-0.5, "-50.0 %"),
    ],
)
def test_signed_percent(ratio: float | None, shown: str) -> None:
    """A change has its sign, two decimals below ten percent and one from there on."""
    assert shown == signed_percent(ratio)


@pytest.mark.parametrize(("file", "form"), [("a.txt", "text"), ("b/c.md", "markdown"), ("d.json", "json")])
def test_format_by_suffix(file: str, form: str) -> None:
    """The suffix of a file says its format."""
    assert form == format_of(Path(file))
    assert form in formats_of("outcome")


@pytest.mark.parametrize("file", ["report", "report.pdf", "report.TXT"])
def test_unknown_suffix(file: str) -> None:
    """Another suffix is refused, with the ones there are."""
    with pytest.raises(UsageError, match=r"unknown suffix .* expected one of \.txt, \.md, \.json"):
        format_of(Path(file))


def test_json() -> None:
    """The JSON report is verdict.json."""
    assert render("outcome", "json", passing()) == verdict_json(passing())


def test_versions_of_both_sides() -> None:
    """A version that both sides share is named once, different ones with their side."""
    measured = cell()

    def text(base: str, head: str) -> str:
        versions = {"base": {"vllm": base}, "head": {"vllm": head}}
        taken = [one.model_copy(update={"versions": versions[one.subject]}) for one in trials([0.0] * 4)]
        return render_text(judge(run([measured]), {"cell": record(measured, taken)}))

    assert text("1.0", "1.0").startswith("cell: 4 pairs, vllm 1.0\n")
    assert text("1.0", "1.1").startswith("cell: 4 pairs, base vllm 1.0, head vllm 1.1\n")


def test_what_one_side_alone_measured() -> None:
    """Of one side nothing was judged: its metrics are called measured, for a gate names one of them."""
    side = alone([0.0, 0.001])
    alone_run = run([side.cell]).model_copy(update={"subjects": side.subjects})
    lines = render_text(judge(alone_run, {side.cell.cell_id: side})).splitlines()

    (line,) = [line for line in lines if "ttft_median" in line]
    assert line.startswith("  measured: ")
    assert f" {side.cell.gates[0].gate.measured.name} " in line

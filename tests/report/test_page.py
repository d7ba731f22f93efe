"""The page of a run: what it says first, that it is one file, and that no record can put anything into it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from decode_steps import decode, traces
from fake_collector import FakeCollector
from hand_made import cell, failed, gate, iteration, judged, record, run, scenario_file, spread, trial, trials
from hostile_run import hostile
from pydantic import ValidationError
from rank_traces import other_collective
from recorded_runs import RUNS, fp32_logits_worked_out, recorded, recorded_together

from perfgate.cli.main import main
from perfgate.counters.launch_table import COUNTERS, Device, KernelLaunch
from perfgate.counters.step_counters import CountedStep
from perfgate.judge.cell_verdict import evidence_of_run, judge
from perfgate.judge.evidence import Evidence
from perfgate.kernels.counter_charts import roofline
from perfgate.kernels.kernel_evidence import kernels_section
from perfgate.kernels.step_charts import layers_chart, step_bars, waterfall
from perfgate.load.shape import Load
from perfgate.metrics.gpu_roofs import find_gpu
from perfgate.metrics.sides import SIDES
from perfgate.report.chart import Scale
from perfgate.report.explanation import commands, steps, three_sentences
from perfgate.report.formats import render
from perfgate.report.html import run_html
from perfgate.report.outcome_charts import forest
from perfgate.report.record_charts import iterations_chart, pairs_chart, tokens_chart
from perfgate.report.run_page import MeasuredRun
from perfgate.report.setting_lines import same_again
from perfgate.trace.decode_step import DecodeSteps, KernelKey

VOID = {"meta", "link", "path", "rect", "line", "br", "img"}


def evidence_of(measured: MeasuredRun) -> Evidence:
    """What the one cell of a recorded run was judged by."""
    assert measured.run is not None
    (kept,) = measured.records.values()
    return evidence_of_run(measured.run, kept.cell, kept)


class Page(HTMLParser):
    """Elements with their attributes, text by the element that it is in, and what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.said: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.elements.append((tag, dict(attrs)))
        if not (self.get_starttag_text() or "").endswith("/>") and tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """An element ends: it must be the last that began; ``<path/>`` never began."""
        if tag in self.open or tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        self.said.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> str:
        """What elements of a kind say."""
        return "".join(data for name, data in self.said if name == tag)


@pytest.mark.parametrize("name", RUNS)
def test_a_page_is_one_whole_file(name: str) -> None:
    """Every element is closed, ids are unique, nothing is loaded; the policy allows one style and script, by digest."""
    text = run_html(recorded(name))
    page = Page(text)

    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert page.open == []
    assert len(ids) == len(set(ids))
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert not re.search(r"(?:src|srcset|action|poster)\s*=|url\(|@import", text)
    links = {str(link["href"]) for link in (*page.all("a"), *page.all("link"))}
    assert all(link == "data:," or link.startswith(("#", "./trials/")) for link in links)
    policy = next(str(meta["content"]) for meta in page.all("meta") if "http-equiv" in meta)
    style, script = (
        base64.b64encode(hashlib.sha256(page.text(own).encode()).digest()).decode() for own in ("style", "script")
    )
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function|import|fetch|\.href", page.text("script")
    )


@pytest.mark.parametrize("name", RUNS)
def test_each_chart_can_be_read_without_seeing_it(name: str) -> None:
    """It has a title, a description and its figures as a table; what scrolls can be reached by the keyboard."""
    page = Page(run_html(recorded(name)))
    charts = [svg for svg in page.all("svg") if svg.get("role") == "img"]

    known = {attributes.get("id") for _, attributes in page.elements}
    assert len(charts) >= 4
    assert all(set(str(chart["aria-labelledby"]).split()) <= known for chart in charts)
    tables = [part for part in page.all("details") if part.get("class") == "figures"]
    narrow = [part for part in page.all("div") if part.get("class") == "scroll narrow"]
    assert len(tables) == len(charts) - len(narrow)
    assert all(part.get("tabindex") == "0" and part["aria-label"] for part in page.all("div") if "scroll" in str(part))


def test_the_page_of_three_cells_is_small() -> None:
    """Three cells of real records fit a megabyte, each with its own part and a link to it."""
    text = run_html(recorded_together())

    assert len(text.encode()) < 1_000_000
    links = [str(link["href"]) for link in Page(text).all("a")]
    assert [link for link in links if link[0] == "#"] == ["#report", "#part-1", "#part-2", "#part-3", "#part-4"]


def test_logits_in_float32_are_explained_in_ten_seconds() -> None:
    """The three sentences name the metric, the slowdown with its interval, the kernel, its place and the setting."""
    what, how_much, why = three_sentences(fp32_logits_worked_out().outcome)

    assert what == "itl_median (inter-token latency) got slower."
    assert how_much.startswith("itl_median: 5.137 ms to 5.387 ms, +4.88 % (interval +4.87 % to +4.89 %) in 6 pairs; ")
    assert why == (
        "Why: a traced decode step takes 250.6 us longer: elementwise and gemm kernels take 250.6 us more (1 launch "
        "more). The head's step runs something else at lm-head (the projection to the logits): gemm runs other "
        "kernels: nvjet_sm90_tst_256x8_64x6_2x1_v_bz_TNT -> "
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8; one more elementwise kernel a step. "
        'The head has args.hf_overrides={"head_dtype": "float32"}.'
    )


def test_a_run_without_data_says_why() -> None:
    """There is no figure to tell of: the verdict, and the code of what kept it from being measured."""
    what, reason, *_ = three_sentences(judge(run([cell()]), {}))

    assert what.startswith("NOT MEASURED")
    assert reason.startswith("Reason not-started: ")


def test_each_step_to_a_verdict_is_named() -> None:
    """What blocks, what passes and what decides later are told with bound, margin and what would have changed it."""
    (red,) = recorded("regressed").outcome.cells
    (open_,) = recorded("states").outcome.cells

    told = list(steps(red))
    assert told[0] == (
        "itl_median: at 6 pairs the slowdown's lower bound +10.2 % is above ignorable (0.1 %), and p = 0.0003 is at "
        "most the level 0.0025 that Holm's procedure leaves it: it blocks. With an ignorable margin of 10.2 % it would "
        "not have blocked."
    )
    assert told[2].startswith("start_time: it passed at 4 pairs; at 6 pairs the slowdown's upper bound +25 % is below")
    assert told[2].endswith(
        "Pairs like these would have a chance of q = 9.4e-05 if the slowdown were must_catch. With a must_catch margin "
        "of 25 % it would not have passed."
    )
    assert "If further pairs are like these, it would be blocked at about" in list(steps(open_))[1]


def test_an_open_gate_has_one_forecast() -> None:
    """Where an estimate is between the margins only the way that fewer pairs would go is told."""
    between = cell(gates=[gate("itl_median", "1%", "3%")])
    (found,) = judged(trials(spread(0.017, 0.02, 6)), between).cells

    (told,) = steps(found)

    assert found.verdict == "inconclusive"
    assert told.count("it would") == 1
    assert "it would pass at about " in told


def test_a_throughput_that_may_be_lost_whole_is_explained() -> None:
    """A change of -100 % is a slowdown without end: nothing is divided by what is left."""
    (red,) = recorded("regressed").outcome.cells
    lost = {"metric": "output_throughput", "better": "higher", "change": -0.5, "change_low": -1.0, "change_high": 0.0}
    wild = red.gates[0].model_copy(update={**lost, "verdict": "inconclusive"})

    (told,) = steps(red.model_copy(update={"gates": (wild,)}))

    assert "lower bound (+0 %) is not above ignorable (0.1 %), and its upper bound (+inf %)" in told


def test_pairs_without_a_spread_are_explained() -> None:
    """Pairs that all differ alike leave nothing to divide by, and no number of them is promised to decide."""
    gate_of_two = gate("itl_median", "0.1%", "5%")
    (found,) = judged(trials([0.02] * 4), cell(gates=[gate_of_two])).cells
    (one,) = found.gates
    exact = one.model_copy(update={"verdict": "inconclusive", "change_low": one.change, "change_high": one.change})

    (told,) = steps(found.model_copy(update={"gates": (exact,)}))

    assert ": inconclusive." in told
    assert "If further pairs are like these" not in told


def test_three_commands_are_offered() -> None:
    """The way on first, then what the notes mean, then the page; never more than three."""
    assert commands(recorded("states").outcome) == (
        "perfgate run --resume llama-8b-decode-tight-20261122T110115Z-f376b1 --more 4",
        "perfgate explain undecided",
        "perfgate report llama-8b-decode-tight-20261122T110115Z-f376b1",
    )


def test_a_page_names_no_command_that_made_it() -> None:
    """The page is there already, and judging again is under what measures again."""
    listed = Page(run_html(recorded("states"))).text("pre")

    assert "perfgate report" not in listed
    assert listed.count("perfgate judge") == 1


def test_commands_find_a_run_that_its_name_does_not() -> None:
    """Of a folder that is elsewhere, or was renamed, commands name the folder, quoted for a shell."""
    assert commands(recorded("states").outcome, "/other runs/one") == (
        "perfgate run --resume '/other runs/one' --more 4",
        "perfgate explain undecided",
        "perfgate report '/other runs/one'",
    )


def test_a_run_that_was_not_begun_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is told once; the way on comes first, and a value that is kept nowhere is asked for."""
    monkeypatch.chdir(tmp_path)
    words = [str(scenario_file(tmp_path)), "--base", "python=/bin/true", "--head", "env.BUILD=new"]
    CliRunner().invoke(main, ["run", *words, "--budget", "0.0001"], obj=FakeCollector())
    (run,) = Path("runs").iterdir()
    CliRunner().invoke(main, ["run", *words, "--quick"], obj=FakeCollector())
    (later,) = {*Path("runs").iterdir()} - {run}

    stopped = CliRunner().invoke(main, ["explain", run.name]).stdout
    quick = CliRunner().invoke(main, ["explain", later.name]).stdout

    assert stopped.count("NOT MEASURED: ") == 1
    assert f"next:\n  perfgate run --resume {run.name}\n" in stopped
    assert "next, with your values in place of ..., which no record keeps:\n  perfgate run " in quick
    assert "--head env.BUILD=...\n" in quick


def test_explain_names_the_folder_where_the_name_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in runs/ goes by its name; moved elsewhere, by the path that it was asked for by; mistyped, it is named."""
    monkeypatch.chdir(tmp_path)
    words = [str(scenario_file(tmp_path)), "--base", "python=/bin/true", "--head", "env.BUILD=new", "--quick"]
    CliRunner().invoke(main, ["run", *words], obj=FakeCollector())
    (run,) = Path("runs").iterdir()

    here = CliRunner().invoke(main, ["explain", "latest"])
    run.rename("moved")
    there = CliRunner().invoke(main, ["explain", "moved"])

    (Path("runs") / run.name).mkdir()
    (Path("runs") / run.name / "run.json").touch()
    mistyped = CliRunner().invoke(main, ["explain", run.name[:-1]])

    assert mistyped.exit_code == 2
    assert f"is neither a run in runs/ nor a reason code (did you mean {run.name!r}?)" in mistyped.stderr
    assert f"  perfgate report {run.name}\n" in here.stdout
    assert "  perfgate report moved\n" in there.stdout


@pytest.mark.usefixtures("_kept")
def test_a_run_is_explained_in_the_terminal(tmp_path: Path) -> None:
    """The command explain of a run prints the sentences, the steps and the commands; of a code its page."""
    told = CliRunner().invoke(main, ["explain", str(tmp_path)])
    code = CliRunner().invoke(main, ["explain", "undecided"])

    assert told.exit_code == 0
    assert told.stdout.splitlines()[1] == three_sentences(recorded("regressed").outcome)[0]
    assert "it blocks." in told.stdout
    assert "  perfgate explain times-uneven" in told.stdout
    assert code.stdout.startswith("undecided\n")


def test_no_name_becomes_markup() -> None:
    """Names of cells, kernels and runs stay text wherever they are shown, and reorder no line."""
    page = Page(run_html(hostile()))

    assert len(page.all("script")) == 1
    assert "alert" not in page.text("script")
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    for element in ("title", "h2", "dt"):
        assert "</title></style><script>alert(1)</script>" in page.text(element)
    assert "{{ 7*7 }}" in page.text("h2")
    assert all(str(link["href"]).startswith(("#", "./")) for link in page.all("a"))
    assert "./javascript%3Aalert%281%29" in {link["href"] for link in page.all("a")}
    assert "\u202e" not in run_html(hostile())


def test_any_report_is_a_page() -> None:
    """A verdict without records, as of a table of figures, has its charts; so has a report that has no verdict."""
    outcome = judged(trials(spread(0.0, 0.0002, 4)), cell())

    assert ("span", "pass") in Page(render("outcome", "html", outcome)).said
    assert [svg for svg in Page(render("outcome", "html", outcome)).all("svg") if svg.get("role")]


def test_ranks_are_shown_beside_each_other() -> None:
    """The page of a run over several ranks has their table, the slowest first."""
    page = render("outcome", "html", other_collective())
    assert page.index("rank by rank") < page.index("rank 1 head") < page.index("rank 0 base")


def test_the_forest_turns_what_is_better_higher() -> None:
    """A throughput that falls lies on the side of the slow ones, like a latency that rises."""
    measured = cell(gates=[gate("output_throughput"), gate()])
    (found,) = judged(trials(spread(0.02, 0.0002, 6)), measured).cells

    chart = forest(found)

    assert chart is not None
    diamonds = [
        float(mark.path[1:].partition(" ")[0]) for mark in chart.marks if mark.look == "fill bad" and "l6" in mark.path
    ]
    assert len(diamonds) == 2
    assert diamonds[0] == pytest.approx(diamonds[1], abs=2)


def test_a_gate_without_a_lower_bound_has_an_open_interval() -> None:
    """Below six pairs no look blocks, so the interval goes on to the left: its end is an arrow."""
    (found,) = judged(trials(spread(0.003, 0.004, 4)), cell()).cells

    chart = forest(found)

    assert chart is not None
    assert any(mark.path.endswith("l-8 5 8 5z") for mark in chart.marks)


def test_the_waterfall_ends_where_the_head_is() -> None:
    """The bars add up: the last part ends at the head's difference."""
    (found,) = recorded("regressed").outcome.cells

    bars = [mark.at for mark in waterfall(found.attribution).marks if mark.look.startswith("bar")]

    x, _, width, _ = bars[-1]
    last = bars[-2]
    assert min(abs(last[0] - (x + width)), abs(last[0] + last[2] - (x + width))) < 0.6
    base, head = (
        sum(m.at[2] for m in step_bars(found.attribution).marks if m.text.startswith(f"{s},")) for s in ("base", "head")
    )
    assert head / base == pytest.approx(found.attribution.head_s / found.attribution.base_s, rel=0.01)


def test_the_layers_add_up_to_the_step() -> None:
    """Stretches of layers and idle time are as long as the step; layers that are alike share a row."""
    measured = fp32_logits_worked_out()
    (found,) = measured.outcome.cells
    chart = layers_chart(evidence_of(measured), found.attribution)
    assert chart is not None

    rows = {row[0]: row[1:] for row in chart.rows[1:]}
    assert list(rows) == ["before the layers", "layer 0", "layer 1 to 31, each", "behind the layers", "idle"]
    assert rows["behind the layers"] == ("299.0", "549.6", "+250.6")
    whole = sum(float(own[0]) * (31 if "each" in name else 1) for name, own in rows.items())
    assert whole == pytest.approx(found.attribution.base_s * 1e6, rel=0.01)
    bars = [mark for mark in chart.marks if mark.text.startswith("base, ") and mark.look.startswith("layer")]
    assert len(bars) == 34


def test_a_kernel_has_its_counters_and_its_traces_beside_it() -> None:
    """The kernels that changed most come first, with where they run; each trace says what opens it."""
    measured = recorded("regressed")
    section = kernels_section(evidence_of(measured), measured.outcome.cells[0])
    assert section is not None

    assert section.rows[1][:3] == ("FlashAttnFwdSm90", "attention", "32")
    assert section.rows[2][1] == "gemm (qkv)"
    assert section.lines[1].startswith("trial 14, head: trials/014/trace.nsys-rep, open in nsys-ui")
    assert section.hrefs == ("", "./trials/014/trace.nsys-rep", "./trials/015/trace.nsys-rep")


def test_a_kernel_stays_below_its_roof() -> None:
    """A counted kernel at a quarter of the ridge's intensity, at half of the bandwidth, is an eighth of the way up."""
    names = {name: COUNTERS[name].names_on(90)[0].metric for name in ("duration", "dram_bytes", "bf16_operations")}
    h200 = Device(name="NVIDIA H200", architecture=90)
    roof = find_gpu(h200.name)
    assert roof is not None
    moved = roof.bandwidth / 2 * 1e-3
    values = dict(zip(names.values(), (1e-3, moved, moved * roof.peak("fp16") / roof.bandwidth / 4), strict=True))
    key = KernelKey(role="gemm", name="nvjet")
    launch = KernelLaunch(key=key, position=0, layer=0, grid=(1, 1, 1), block=(1, 1, 1), values=values)
    counted = CountedStep(source="ncu", step=1, cache_control="all", passes=1, device=h200, launches=(launch,),
                          units={names[name]: COUNTERS[name].unit for name in names})  # fmt: skip
    taken = [trial(n, 0, side, kind="counted", iterations=(), counted=counted) for n, side in enumerate(SIDES)]
    measured = cell()

    chart = roofline(evidence_of_run(run([measured]), measured, record(measured, taken)))

    assert chart is not None
    assert chart.rows[1][0] == "nvjet"
    assert chart.rows[1][4:] == ("0.25", "12 %", "latency")
    assert chart.description.startswith(
        "2 kernels with operations of the tensor cores; 2 of them are left of the ridge"
    )


def test_a_run_says_how_to_measure_it_again() -> None:
    """The command that measured it with its seed, then the checks of what it left; figures from elsewhere have none."""
    measured = recorded("regressed")

    sides = "perfgate run drills/h200.yaml --base python=/envs/base/bin/python --base path=/envs/site "
    sides += "--head path=/envs/drills/host_copy:/envs/site"
    assert list(same_again(measured.outcome, measured.seed)) == [
        f"{sides} --seed {measured.seed}",
        "perfgate verify drill-h200-20261122T131115Z-8f439d",
        "perfgate judge drill-h200-20261122T131115Z-8f439d",
    ]
    assert list(same_again(measured.outcome.model_copy(update={"run": "another"}), None)) == []


def test_a_window_of_load_is_no_timeline() -> None:
    """Gaps between tokens that a server's record keeps by size are shown as that, and windows are called windows."""
    measured = recorded("pass")
    evidence = evidence_of(measured)
    loaded = replace(
        evidence,
        cell=evidence.cell.model_copy(
            update={"workload": Load.model_validate({"arrival": {"poisson": 4}, "requests": 60})}
        ),
    )

    titles = [chart.title for chart in (tokens_chart(loaded), iterations_chart(loaded, None)) if chart]
    assert titles == ["Gaps between tokens of one window", "Windows of every trial"]


def test_an_unchanged_pair_is_not_called_worse() -> None:
    """Where more is better, too, a head equal to its base is worse in none of the pairs."""
    measured = cell(gates=[gate("output_throughput")])
    outcome = judged(trials([0.0] * 4), measured)
    pairs = evidence_of_run(run([measured]), measured, record(measured, trials([0.0] * 4)))

    chart = pairs_chart(pairs, outcome.cells[0].gates[0], None)

    assert chart is not None
    assert chart.description == "output_throughput in 4 pairs; the head is worse than its base in 0 of them."


def test_ticks_are_round_and_inside() -> None:
    """A scale's ticks are multiples of 1, 2 or 5 within it."""
    assert Scale(-0.3, 10.4, 0, 100).ticks(6) == [0, 2, 4, 6, 8, 10]
    assert Scale(0.00512, 0.00534, 0, 1).ticks(4) == pytest.approx([0.0052, 0.0053])
    assert Scale(240, 940, 0, 1).ticks(3) == [400, 600, 800]


@pytest.fixture
def _kept(monkeypatch: pytest.MonkeyPatch) -> MeasuredRun:
    """A run folder, without the scenarios that a real one keeps beside its manifest."""
    measured = recorded("regressed")
    monkeypatch.setattr("perfgate.gate.outcome_of", lambda _: measured.outcome)
    monkeypatch.setattr("perfgate.report.run_page.MeasuredRun.of", lambda *_: measured)
    return measured


@pytest.mark.usefixtures("_kept")
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """The command writes report.html into the run's folder, or the file named, and prints where."""
    first = CliRunner().invoke(main, ["report", str(tmp_path)])
    second = CliRunner().invoke(main, ["report", str(tmp_path), "--output", str(tmp_path / "other.html")])

    assert first.output == f"{tmp_path / 'report.html'}\n"
    assert second.exit_code == 0
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_a_huge_record_makes_no_huge_page() -> None:
    """Names and logs of many thousand characters, hundreds of pairs and thousands of steps still make a page."""
    long, steps = "x" * 20_000, (5_000_000,) * 5_000
    roles = [gate("kernel_time_per_step", role=f"role-{n}") for n in range(100)]
    measured = cell("huge", [gate(), *roles]).model_copy(update={"source": long})
    kernels = [("gemm", f"{n} {long}", 5_000) for n in range(30)]
    taken = [
        one.model_copy(update={"iterations": tuple(iteration(itl_ns=steps) for _ in range(2)), "versions": {"a": long}})
        for one in trials(spread(0.01, 0.0002, 210))[-24:]
    ]
    taken += [one.model_copy(update={"index": n}) for n, one in enumerate(trials(spread(0.01, 0.0002, 198)))]
    taken += [*traces([decode(kernels)], [decode(kernels[1:])], 500), failed(600, 300, "head", text=f"died\n{long}")]
    kept = record(measured, taken)

    text = run_html(MeasuredRun(judge(run([measured]), {"huge": kept}), run([measured]), {"huge": kept}))

    assert len(text) < 1_000_000
    assert Page(text).open == []


@pytest.mark.parametrize("field", ["layer_begins", "kernels", "outside_graphs"])
def test_positions_outside_of_a_step_are_refused(field: str) -> None:
    """A record that names a layer or a kernel where none is cannot make a page of gigabytes."""
    steps = decode([("gemm", "a", 4000)]).model_dump(mode="json")
    steps["patterns"][0][field] = [2**31]

    with pytest.raises(ValidationError, match="expected"):
        DecodeSteps.model_validate(steps)

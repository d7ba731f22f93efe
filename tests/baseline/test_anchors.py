"""A head beside an anchor: what machine and day are like is in both, so their ratio is held against the visits'."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, HEAD, MACHINE, STEP_S, codes, only, run, scenario_file, trial
from stored import GATES, chained, held_beside, measured, of_day, said, visit, visits_beside

from perfgate import gate as use_cases
from perfgate.baseline.baseline_page import list_document
from perfgate.baseline.lineage import Baseline, Entry, draft
from perfgate.baseline.promotion import promote
from perfgate.baseline.store import Stored, read
from perfgate.baseline.visit_comparison import compare_with_baseline, judge_against
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError, UsageError
from perfgate.machine.fingerprint import Gpu
from perfgate.machine.versioned_json import validated
from perfgate.metrics.trial import Startup, Trial
from perfgate.record.run_record import Record, Run, Visit
from perfgate.report.formats import render

NIGHTS = (0.0, 0.08, -0.05, 0.12, 0.03, -0.09)
"""How much slower the machine is each night: far more than any margin."""
RATIOS = (0.01, 0.0106, 0.0097, 0.0102, 0.0104, 0.0099)
"""ln(build / anchor) each night."""
OLDER, NEWER = {"vllm": "0.8"}, {"vllm": "0.9"}


def beside(ratio: float, day: int, *, anchor: dict[str, str] = OLDER, card: str = "", pairs: int = 6) -> Record:
    """Pairs of an anchor and a head on one night."""
    level = STEP_S * math.exp(NIGHTS[day % len(NIGHTS)])
    taken: list[Trial] = []
    for n in range(pairs):
        wobble = 0.0002 * (n % 3)
        taken.append(trial(2 * n, n, "base", level * math.exp(wobble), versions=anchor))
        taken.append(trial(2 * n + 1, n, "head", level * math.exp(ratio + wobble)))
    gpus = (Gpu(name="NVIDIA H200", uuid=f"GPU-{card}"),) if card else ()
    where = Visit(machine=MACHINE.model_copy(update={"gpus": gpus}), t0_utc=visit(1 + day).t0_utc)
    cell = measured("cell", GATES)
    return Record(cell=cell, subjects={"base": BASE, "head": HEAD}, seed=1, visits=(where,), trials=tuple(taken))


def slowed(side: Record, factor: Callable[[Trial], float]) -> Record:
    """The same with each trial so many times as long."""
    trials = [
        trial(one.index, one.pair, one.subject, one.iterations[0].itl_ns[0] / 1e9 * by, versions=one.versions)
        for one in side.trials
        for by in [factor(one)]
    ]
    return side.model_copy(update={"trials": tuple(trials)})


FOUR = visits_beside([beside(RATIOS[day], day) for day in range(4)])


def test_several_heads_beside_one_anchor() -> None:
    """Each is held against the visits by its own ratio to the anchor, and all gates are one family."""
    slow, same = beside(0.07, 5), beside(0.01, 5)
    heads = {"same": HEAD, "slow": HEAD.model_copy(update={"python": "/envs/slow/bin/python"})}
    taken = [one.model_copy(update={"heads": ("same", "slow")}) for one in same.trials if one.subject == "base"]
    for name, own in (("same", same), ("slow", slow)):
        taken += [one.model_copy(update={"heads": (name,)}) for one in own.trials if one.subject == "head"]
    together = same.model_copy(update={"subjects": {"base": BASE}, "heads": heads, "trials": tuple(taken)})
    manifest: Run = run([same.cell], subjects={"base": BASE}, heads=heads).model_copy(update={"against": {}})

    outcome = judge_against(manifest, {same.cell.cell_id: together}, {same.cell.cell_id: (FOUR,)})

    assert {one.head: said(one.gates[0]) for one in outcome.cells} == {"same": "pass", "slow": "regressed"}
    alone = {name: held_beside(own, FOUR).cells[0].gates for name, own in (("same", same), ("slow", slow))}
    assert {one.head: [gate.change for gate in one.gates] for one in outcome.cells} == {
        name: [gate.change for gate in gates] for name, gates in alone.items()
    }
    assert all(one.gates[0].block_level < alone[one.head][0].block_level for one in outcome.cells if one.head == "slow")


def test_cards_of_one_day_tell_ratios_apart_and_times_not() -> None:
    """A list of baselines says from how many visits on either can pass: beside an anchor cards of one day count."""
    seen = [beside(RATIOS[n], 1, card=card) for n, card in enumerate("ABCD")]

    told = [str(list_document([Stored("", visits_beside(seen[:count]))])) for count in (1, 2, 4)]

    assert "advises; passes after 7 more" in told[0]
    assert "passes after 7 more, beside the anchor after 6 more" in told[1]
    assert "passes after 7 more, beside the anchor after 4 more" in told[2]
    assert said(held_beside(beside(0.07, 1, card="A"), visits_beside(seen))) == "regressed"


def test_one_visit_is_no_spread() -> None:
    """A head beside the anchor has one ratio, and so has a visit: pairs of both are not what is missing."""
    outcome = held_beside(beside(0.01, 4), visits_beside([beside(RATIOS[0], 0)]))

    assert (outcome.verdict, outcome.would_be) == ("advisory", "inconclusive")
    assert codes(only(outcome).reasons) == ["advisory-unpaired"]
    assert "a spread takes two" in only(outcome).reasons[0].text


@pytest.mark.parametrize(("slower", "verdict"), [(0.0, "pass"), (0.06, "regressed"), (-0.05, "improved")])
def test_ratios_travel(slower: float, verdict: str) -> None:
    """A night 3 % slower than any before hides no regression and makes none: the anchor was as slow."""
    outcome = held_beside(beside(0.01 + slower, 4), FOUR)

    assert said(outcome) == verdict
    assert only(outcome).change == pytest.approx(math.expm1(slower), abs=1e-3)
    assert outcome.cells[0].baseline is not None
    assert outcome.cells[0].baseline.anchor == "vllm 0.8"
    assert "ratios to the anchor vllm 0.8" in render("outcome", "text", outcome)


def test_an_anchor_that_tells_little() -> None:
    """Where nothing was measured beside it times are compared; beyond 5 % of the head a newer anchor is asked for."""
    stranger = held_beside(beside(0.01, 4, anchor=NEWER), FOUR)
    far = held_beside(beside(0.11, 4), visits_beside([beside(0.1 + RATIOS[day], day) for day in range(4)]))

    assert all("anchor-weak" in codes(outcome.cells[0].cautions) for outcome in (stranger, far))
    assert stranger.verdict == "inconclusive"
    assert "anchor-weak" not in codes(held_beside(beside(0.01, 4), FOUR).cells[0].cautions)


def test_a_new_anchor_is_linked_by_the_first_visit_beside_it() -> None:
    """Visits beside the old anchor tell how far ratios spread, one beside the new one where they are."""
    linked = visits_beside([*(beside(RATIOS[day], day) for day in range(4)), beside(-0.04, 4, anchor=NEWER)])

    same, slower = (held_beside(beside(-0.04 + by, 5, anchor=NEWER), linked) for by in (0.0, 0.06))

    assert (said(same), said(slower)) == ("pass", "regressed")
    assert only(same).change == pytest.approx(0.0, abs=1e-6)
    assert [gate.visits.visits for gate in same.cells[0].gates if gate.visits] == [1]


def test_values_that_have_no_ratio() -> None:
    """A made-up visit of zeros is beyond judging beside its own anchor, and tells no spread beside another one."""
    (entry, *more) = FOUR.entries
    (one,) = entry.visits
    nothing = {**one.values, "itl_median": (0.0,) * 6}
    zeros = entry.model_copy(update={"visits": (one.model_copy(update={"values": nothing}),)})
    made_up = Baseline(entries=(zeros, *more))
    newer = draft(beside(-0.04, 4, anchor=NEWER), "head", anchored=True)
    linked = chained((*made_up.entries, newer))

    assert codes(only(held_beside(beside(0.01, 5), made_up)).reasons) == ["metric-unusable"]
    assert held_beside(beside(-0.04, 5, anchor=NEWER), linked).verdict == "advisory"


@pytest.mark.parametrize(
    ("cards", "code"), [("AAAA", "advisory-unpaired"), ("ABAB", "advisory-unpaired"), ("ABCD", "would-regress")]
)
def test_ratios_across_cards(cards: str, code: str) -> None:
    """A build may differ from its anchor by card: only visits of four cards, if on one day, tell of a fifth."""
    known = visits_beside([beside(RATIOS[n], 0, card=card) for n, card in enumerate(cards)])

    outcome = held_beside(beside(0.07, 0, card="E"), known)

    assert code in codes([*outcome.cells[0].reasons, *only(outcome).reasons])


@pytest.mark.parametrize(("spoilt", "unchanged"), [(1, "pass"), (2, "inconclusive")])
def test_a_gpu_that_changes_its_state_between_two_trials(spoilt: int, unchanged: str) -> None:
    """A pair or two whose trials met different states, 3.4 % apart, make no regression and hide none."""

    def jumping(ratio: float, day: int) -> Record:
        slow = {2 * (day + n) % 6 * 2 + 1 for n in range(spoilt)}
        return slowed(beside(ratio, day), lambda one: 1.034 if one.index in slow else 1.0)

    known = visits_beside([jumping(RATIOS[day], day) for day in range(4)])

    same, slower = held_beside(jumping(0.01, 4), known), held_beside(jumping(0.07, 4), known)

    assert (said(same), said(slower)) == (unchanged, "regressed")
    assert only(same).change == pytest.approx(0.0, abs=0.001)


@pytest.mark.parametrize(("head", "told"), [(50_000, ["- kv_token_capacity: 100000 tok -> 50000 tok"]), (100_000, [])])
def test_a_smaller_cache_is_told(head: int, told: list[str]) -> None:
    """Beside an anchor too, the head is held against what the visits' builds held: an anchor may hold anything."""

    def holding(one: Record, base: int, head: int) -> Record:
        def started(side: str) -> Startup:
            return Startup(import_ns=1, engine_ns=1, ready_ns=1, kv_token_capacity=base if side == "base" else head)

        kept = tuple(t.model_copy(update={"startup": started(t.subject)}) for t in one.trials)
        return one.model_copy(update={"trials": kept})

    visits = visits_beside([holding(beside(RATIOS[day], day), 70_000, 100_000) for day in range(4)])

    cautions = held_beside(holding(beside(0.01, 5), 80_000, head), visits).cells[0].cautions

    assert [note.text for note in cautions if note.code == "engine-state-changed"] == told


def test_a_gate_that_the_anchor_of_the_visits_does_not_carry() -> None:
    """It has no ratio to be compared with, as a gate that is newer than the visits has no time."""
    content = json.loads(FOUR.text)
    for entry in content["entries"]:
        entry["visits"][0]["anchor"]["values"] = {"ttft": [0.1] * 6}
    entries = tuple(validated(Entry, entry, "entry") for entry in content["entries"])

    outcome = held_beside(beside(0.01, 4), Baseline(entries=entries))

    assert (outcome.verdict, codes(only(outcome).reasons)) == ("not-comparable", ["no-baseline"])
    assert only(outcome).reasons[0].text == "no visit beside vllm 0.8 carries itl_median"


def test_visits_of_many_pairs_are_no_steadier_than_the_head() -> None:
    """Three runs of a night are one observation, of as many pairs as a head has: their median would spread less."""

    def noisy(day: int, seed: int) -> Record:
        noise = iter(np.random.default_rng(seed).normal(0.0, 0.02, 6).tolist())
        return slowed(beside(0.01, day), lambda one: math.exp(next(noise)) if one.subject == "head" else 1.0)

    def compared(runs: int) -> tuple[float | None, float | None]:
        known = visits_beside([noisy(day, 10 * day + again) for day in range(4) for again in range(runs)])
        (gate,) = held_beside(noisy(4, 99), known).cells[0].gates
        assert gate.visits is not None
        assert gate.visits.visits == 4
        return gate.change, gate.visits.visit_sd

    assert compared(3) == compared(1)


def test_pairs_that_were_cut_short_have_no_verdict() -> None:
    """As many pairs are due as a side alone has trials: nobody stops where it suits."""
    outcome = held_beside(beside(0.06, 4, pairs=4), FOUR)

    assert (outcome.verdict, codes(outcome.cells[0].reasons)) == ("not-measured", ["too-few-pairs"])
    assert "4 of 6 timed pairs, cut short" in outcome.cells[0].reasons[0].text


# --- whole runs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., use_cases.Finished]:
    """A function that measures a head beside the anchor of a project on a day, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    file = scenario_file(tmp_path, gates="{metric: itl_median, ignorable: 1%, must_catch: 5%}")

    def night(day: int, slower: float = 1.0, **options: Any) -> use_cases.Finished:
        spec = FakeSpec(restart_sd=0.002, head_ratio={"step": slower}, **options.pop("spec", {}))
        means: dict[str, Any] = {"seed": day, "collector": FakeCollector(spec, day), "against": Path("baselines")}
        finished = use_cases.run([file], {"base": BASE, "head": HEAD}, **means, **options)
        of_day(day, finished.folder)
        return finished

    return night


def test_visits_are_promoted_beside_their_anchor(project: Callable[..., use_cases.Finished]) -> None:
    """A run of a head and its anchor is a visit, whatever its pairs say; four of them tell a slower one."""
    for day in range(1, 5):
        (done,) = promote(project(day, 1.3).folder, Path("baselines"), reason="the first")

    (file,) = Path("baselines").glob("*/*.json")
    baseline = read(file).baseline
    same, slower = project(7, 1.3).outcome, project(8, 1.4)

    assert (done.kind, done.side) == ("equivalent", "head")
    assert [len(one.anchor.values["itl_median"]) for one in baseline.visits if one.anchor] == [6] * 4
    assert (said(same), said(slower.outcome)) == ("pass", "regressed")
    assert use_cases.judge_folder(slower.folder).cells[0].gates == slower.outcome.cells[0].gates
    assert said(compare_with_baseline(f"{slower.folder}:head", file)) == "regressed"
    shown = CliRunner().invoke(main, ["baseline", "show", str(file)]).stdout
    assert "(beside 4 visits)" in shown
    assert "spread between visits  of ratios to the anchor  visits" in shown


def test_check_says_what_both_ways_cost_and_detect(project: Callable[..., use_cases.Finished]) -> None:
    """Beside its anchor a head costs twice as much as alone; below four visits nothing can be told."""
    told = []
    for day in range(1, 5):
        promote(project(day, 1.3).folder, Path("baselines"), reason="the first")
        told.append(CliRunner().invoke(main, ["check", "tiny.yaml"]).stdout)

    alone, beside = (line for line in told[-1].splitlines() if "against the baseline of cpu-" in line)
    assert re.search(r"the head alone: 7 engine starts, \d minutes; detectable itl_median \d", alone)
    assert re.search(
        r"in pairs with its anchor vllm .*: 14 engine starts, \d minutes; detectable itl_median \d", beside
    )
    assert told[0].count("detectable itl_median nothing yet") == 2


def test_six_pairs_are_taken_whatever_they_say(project: Callable[..., use_cases.Finished]) -> None:
    """Pairs with an anchor do not end at a look, and go on where they were cut short."""
    with pytest.raises(InterruptedRunError):
        project(1, 1.5, spec={"sleep_s": 0.02}, budget_s=0.15)
    (folder,) = Path("runs").iterdir()
    cut = json.loads((folder / "verdict.json").read_text())
    finished = use_cases.resume(folder, collector=FakeCollector(FakeSpec(restart_sd=0.002)))
    (record,) = (folder / "records").iterdir()

    assert cut["verdict"] in ("not-comparable", "not-measured")
    assert finished.outcome.verdict == "not-comparable"
    assert len({one["pair"] for one in json.loads(record.read_text())["trials"] if one["pair"] is not None}) == 6


def test_an_anchor_that_cannot_be_told_from_others(tmp_path: Path) -> None:
    """A folder of its own may hold anything: such an anchor is refused before anything is measured."""
    file = scenario_file(tmp_path, gates="{metric: itl_median, ignorable: 1%, must_catch: 5%}")
    opaque = BASE.model_copy(update={"path": ("/plugin",)})

    with pytest.raises(UsageError, match="the anchor has path= or env= of its own"):
        use_cases.run([file], {"base": opaque, "head": HEAD}, against=Path("baselines"))


@pytest.mark.usefixtures("project")
def test_the_command_line_takes_the_anchor_of_the_project(tmp_path: Path) -> None:
    """``--against baseline`` measures the head in pairs with ``[subjects.anchor]``, if perfgate.toml names one."""
    (tmp_path / "perfgate.toml").write_text('[subjects.anchor]\npython = "/bin/true"\n')
    words = ["run", str(tmp_path / "tiny.yaml"), "--head", "args.max_num_seqs=4", "--against", "baseline"]

    ended = CliRunner().invoke(main, words, obj=FakeCollector(FakeSpec()))

    (folder,) = Path("runs").iterdir()
    manifest = json.loads((folder / "run.json").read_text())
    assert ended.exit_code == 21
    assert manifest["subjects"]["base"]["python"] == "/bin/true"
    assert manifest["subjects"]["head"]["args"] == {"max_num_seqs": 4}

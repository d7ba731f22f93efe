"""The rules of other tools that docs/other-rules.txt compares with ours, on examples by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfgate import stats
from perfgate.drill import peer_rules as rules

ROOT = Path(__file__).parents[2]
page: Any = importlib.import_module("other_rules")

WORDS = {stats.REGRESSED: "blocked", stats.PASS: "passed", stats.INCONCLUSIVE: "undecided"}
BY_NAME = {rule.name: rule for rule in page.RULES}


def side(*processes: list[float]) -> Any:
    """One comparison's side: a list of iteration times for each process."""
    return np.array([processes])


def said(codes: Any) -> str:
    """The one verdict of a rule."""
    (code,) = codes
    return WORDS[int(code)]


@pytest.mark.parametrize(("head", "verdict"), [([1.0, 1.019, 1.5], "passed"), ([1.0, 1.021, 1.0301], "blocked")])
def test_flat_threshold(head: list[float], verdict: str) -> None:
    """The median of one run is compared with one run's, and 2 % is the limit."""
    assert verdict == said(rules.flat_threshold(side([1.0, 1.0, 1.0]), side(head), 0.02))


@pytest.mark.parametrize(
    ("base", "head", "p", "verdict"),
    [
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70, "blocked"),
        ([5, 6, 7, 8], [1, 2, 3, 4], 2 / 70, "passed"),
        ([1, 2, 3], [4, 5, 6], 2 / 20, "passed"),
        ([1, 2, 3, 5], [4, 6, 7, 8], 4 / 70, "passed"),
    ],
    ids=["slower", "faster", "too few to tell", "one pair swapped"],
)
def test_u_test(base: list[float], head: list[float], p: float, verdict: str) -> None:
    """The exact two-sided p counts the orders that are as extreme, out of all there are."""
    assert pytest.approx(p) == rules.u_p(np.array([base]), np.array([head]))[0]
    assert verdict == said(rules.u_test(np.array([base]), np.array([head])))


def test_pooling() -> None:
    """Pooled iterations of one slow restart a side convince the U test; one value a restart does not."""
    base = side([1.000, 1.001, 1.002, 1.003], [1.004, 1.005, 1.006, 1.007])
    head = side([1.010, 1.011, 1.012, 1.013], [1.014, 1.015, 1.016, 1.017])

    assert said(rules.u_test(rules.pooled(base), rules.pooled(head))) == "blocked"
    assert said(rules.u_test(rules.summaries(base), rules.summaries(head))) == "passed"


@pytest.mark.parametrize(
    ("change", "factor", "verdict"), [(1.09, 1.1, "passed"), (1.12, 1.1, "blocked"), (1.02, 1.01, "blocked")]
)
def test_asv(change: float, factor: float, verdict: str) -> None:
    """Ten clearly slower samples block only when the medians differ by more than the factor."""
    base = [1 + n * 1e-4 for n in range(10)]

    assert verdict == said(rules.asv_continuous(side(base), side([change * x for x in base]), factor))


@pytest.mark.parametrize(("head", "verdict"), [([1.21, 1.22, 1.19, 1.2], "blocked"), ([1.3, 1.3, 1.3, 1.0], "passed")])
def test_asv_with_few_samples(head: list[float], verdict: str) -> None:
    """With four samples, too few for p below 0.002, the ranges must not overlap."""
    assert verdict == said(rules.asv_continuous(side([1.0, 1.01, 0.99, 1.0]), side(head), 1.1))


@pytest.mark.parametrize(
    ("change", "verdict"), [(1.0, "passed"), (1.005, "passed"), (1.02, "blocked"), (0.9, "passed")]
)
def test_criterion(change: float, verdict: str) -> None:
    """A change blocks when its whole interval lies beyond the noise threshold of 1 %."""
    base = np.random.default_rng(4).normal(1.0, 0.002, 100)

    ended = rules.criterion(side(base.tolist()), side((change * base).tolist()), np.random.default_rng(5))

    assert verdict == said(ended)


def test_criterion_needs_significance() -> None:
    """Samples so wild that their interval covers everything do not block."""
    base = [1.0, 1.0, 1.0, 1.0, 9.0] * 4

    assert said(rules.criterion(side(base), side([1.3 * x for x in base]), np.random.default_rng(6))) == "passed"


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        ([100.0, 100.2, 100.4, 100.6, 130.0], "passed"),
        ([100.9, 101.0, 101.1, 101.2, 101.3], "undecided"),
        ([102.0, 102.2, 102.4, 102.6, 102.8], "blocked"),
        ([97.0, 97.2, 97.4, 97.6, 97.8], "passed"),
        ([100.0, 100.1, 104.0, 108.0, 109.0], "undecided"),
    ],
    ids=["same", "gap of 0.3 %", "gap of 1.4 %", "faster", "spread of 8 %"],
)
def test_nvbench(head: list[float], verdict: str) -> None:
    """Against the interval 100 to 100.6 a gap of half a percent is slow, enough overlap the same, else ambiguous."""
    assert verdict == said(rules.nvbench_robust(side([100.0, 100.2, 100.4, 100.6, 103.0]), side(head)))


def test_bencher_by_the_tools_own_example() -> None:
    """The tool's documentation: 25 stored values of mean 100 and sd 10 give 121.46 as upper boundary at 0.977."""
    assert pytest.approx(21.46, abs=0.005) == rules.prediction_half_width(np.array([10.0]), 25, 0.977)[0]


@pytest.mark.parametrize(("new", "verdict"), [(103.17, "passed"), (103.19, "blocked")])
def test_bencher(new: float, verdict: str) -> None:
    """Eight stored values of mean 100 and sd 1 put the limit for one more at 103.18: t is 2.998 at seven degrees."""
    history = side(*[[99.0], [101.0]] * 4)

    assert verdict == said(rules.bencher_t(history, side([new]), 0.99))


def test_rolling_baseline() -> None:
    """Days of 9, 12, 15 and 18 have trailing means 9, 10.5, 12 and 15; their 5th percentile is 9.225."""
    assert pytest.approx(9.225) == rules.rolling_baseline(np.array([[9.0, 12.0, 15.0, 18.0]]))[0]


@pytest.mark.parametrize(("new", "threshold", "verdict"), [(108, 0.05, "blocked"), (108, 0.1, "passed")])
def test_tensorrt_llm(new: float, threshold: float, verdict: str) -> None:
    """After ninety days at 100, 8 % more blocks after a merge and not before it."""
    history = np.full((1, 90, 1), 100.0)

    assert verdict == said(rules.tensorrt_llm(history, np.full((1, 1, 1), float(new)), threshold))


# --- ours beside them, and the page


@pytest.mark.parametrize(("truth", "share"), [(0.0, "passed"), (0.02, "blocked")])
def test_ours(truth: float, share: str) -> None:
    """Ours lets unchanged builds pass and blocks 2 %, at the price of six to eight pairs and the warm-up trials."""
    found = page.simulate(BY_NAME["perfgate, 0.1 % / 0.5 %"], truth, modes=False, runs=100)

    assert getattr(found, share) == 1.0
    assert 7.0 <= found.minutes <= 9.0


@pytest.mark.parametrize(
    ("name", "minutes"),
    [("flat 2 %", 1.0), ("flat 2 %, stored run", 0.5), ("benchstat", 10.0), ("criterion", 2 * (30 + 80 * 0.7) / 60)],
)
def test_minutes(name: str, minutes: float) -> None:
    """A trial costs half a GPU-minute, an iteration beyond the twentieth its own time, and what is stored nothing."""
    assert pytest.approx(minutes) == page.minutes(BY_NAME[name])


def test_restart_taken_for_a_change() -> None:
    """Where restarts fall in modes, the U test on one process a side blocks unchanged builds far above its 5 %."""
    found = page.simulate(BY_NAME["Mann-Whitney, one process"], 0.0, modes=True, runs=300)

    assert found.blocked > 0.15
    assert found.blocked + found.passed == 1.0


def test_recordings() -> None:
    """Every recorded run of the fixtures is there once."""
    found = page.recordings(ROOT / "tests" / "fixtures")

    assert len(found) == len({one.name for one in found}) == 13


def recorded(tmp_path: Path, pairs: int, slower: float) -> Any:
    """A recording of one value a trial, the head slower by a share."""
    lines = ["pair,subject,metric,unit,value"]
    for pair in range(pairs):
        base = 5 + pair / 1e3
        lines += [f"{pair},base,itl_median,ms,{base}", f"{pair},head,itl_median,ms,{base * (1 + slower + pair / 1e5)}"]
    (tmp_path / "h200-llama-8b-slow.csv").write_text("\n".join(lines) + "\n")
    (one,) = page.recordings(tmp_path)
    return one


def test_trials_only(tmp_path: Path) -> None:
    """A recording of one value a trial says nothing to rules of iterations, and the rest to the others."""
    one = recorded(tmp_path, 8, 0.1)

    words = {name: page.said(BY_NAME[name], one, [one], np.random.default_rng(0)) for name in BY_NAME}

    assert one.name == "h200-llama-8b-slow"
    assert pytest.approx(0.1, abs=1e-3) == page.change(one)
    assert words["criterion"] == words["Mann-Whitney, pooled"] == words["asv continuous"] == "-"
    assert words["benchstat"] == words["perfgate, 0.1 % / 0.5 %"] == "1 of 1"
    assert words["flat 5 %"] == words["Bencher t_test 0.99"] == "8 of 8"


def test_decided_on_what_there_is(tmp_path: Path) -> None:
    """Four pairs of a slow head are no block for ours: it is undecided, and says so."""
    one = recorded(tmp_path, 4, 0.1)

    words = page.said(BY_NAME["perfgate, 0.1 % / 0.5 %"], one, [one], np.random.default_rng(0))

    assert words == "0 of 1, 1 undecided"


def test_committed_page() -> None:
    """The committed page shows every rule under both kinds of restarts and names where each was described."""
    text = (ROOT / "docs" / "other-rules.txt").read_text()

    for rule in page.RULES:
        assert text.count(f"\n| {rule.name} |") == 4
        assert rule.source in text

"""Other rules decide the same draws as ours, each with the measurement it asks for, as far as it was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_made import gate

from perfgate import stats
from perfgate.drill.peer_rules import PEERS, PeerRow, peers
from perfgate.drill.recordings import STEP, Recording, read_recordings
from perfgate.drill.replay import Declared, Replay, Truth
from perfgate.record.csv_table import Values

QUIET = read_recordings(Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-iterations.csv")
DECLARED = Declared("one", (gate(),), stats.DEFAULT_SCHEDULE)


def visits(*levels: float, spread: float = 1e-5) -> list[Recording]:
    """Visits of twelve pairs of one build, whose steps are at these levels."""
    rng = np.random.default_rng(7)
    found = []
    for n, level in enumerate(levels):
        base, head = (level * np.exp(spread * rng.standard_normal((2, 12)))).tolist()
        found.append(Recording(f"visit {n}", "h200", True, {STEP: Values(tuple(base), tuple(head))}, (0,) * 12))
    return found


def by_name(rows: tuple[PeerRow, ...]) -> dict[str, PeerRow]:
    """Rows by the name of their rule."""
    return {row.rule: row for row in rows}


def test_every_rule_decides_the_same_draws() -> None:
    """Each rule has a row with four slowdowns; ours has the figures of the replay itself."""
    replay = Replay.of(QUIET, DECLARED, 60, 1)

    rows = by_name(peers(replay))

    assert [*rows] == [*(rule.name for rule in PEERS), "perfgate, one"]
    for row in rows.values():
        assert [(round(case.size, 6), case.error) for case in row.cases] == [
            (0.0, "false-blocks"), (0.001, "false-blocks"), (0.005, "false-passes"), (0.02, "false-passes"),
        ]  # fmt: skip
    own = replay.row(Truth("half a percent", {STEP: 0.005}, STEP))
    assert rows["perfgate, one"].cases[2].blocked == own.regressed
    assert rows["perfgate, one"].cases[2].starts == 2 * (own.pairs + 1)
    assert rows["benchstat"].cases[0].starts == 20
    assert rows["criterion"].given == "100 samples of one process a side; 20 recorded"
    assert rows["Bencher t_test 0.99"].given.endswith("; drawn from the other visits")


def test_iterations_of_one_process_raise_false_alarms_on_real_pairs() -> None:
    """On pairs of a quiet H200 the test of single iterations blocks one build above its 5 %, ours never in as many."""
    rows = by_name(peers(Replay.of(QUIET, DECLARED, 300, 2)))

    assert rows["Mann-Whitney, one process"].cases[0].wrong.at_least > 0.05
    assert rows["flat 2 %"].cases[2].wrong.value == 1.0
    assert rows["perfgate, one"].cases[0].wrong.events == 0


def test_rules_without_what_they_need_have_no_figures() -> None:
    """Where one value a trial was kept rules of iterations say nothing, and stored runs need another visit."""
    one_visit = by_name(peers(Replay.of(visits(1.0), DECLARED, 20, 0)))
    two_visits = by_name(peers(Replay.of(visits(1.0, 1.0), DECLARED, 20, 0)))

    pools, stored = ({rule.name for rule in PEERS if getattr(rule, what)} for what in ("pools", "stored"))
    assert {name for name, row in one_visit.items() if not row.cases} == pools | stored
    assert {name for name, row in two_visits.items() if not row.cases} == pools


def test_stored_runs_are_of_other_visits() -> None:
    """Two visits 3 % apart: a flat 2 % against a stored run blocks one build half the time, on one visit never."""
    rows = by_name(peers(Replay.of(visits(1.0, 1.03), DECLARED, 200, 0)))

    assert rows["flat 2 %, stored run"].cases[0].wrong.value == pytest.approx(0.5, abs=0.12)
    assert rows["flat 2 %"].cases[0].wrong.events == 0


def test_later_visits_of_a_draw_are_at_the_level_of_its_first() -> None:
    """Six pairs of each of two visits 3 % apart are one sequence for a rule that does not pair."""
    short = [
        Recording(one.name, one.kind, one.same_build, {STEP: Values(values.base[:6], values.head[:6])}, (0,) * 6)
        for one in visits(1.0, 1.03)
        for values in [one.metrics[STEP]]
    ]
    replay = Replay.of(short, DECLARED, 50, 0)

    base, head = replay.pool.sides(STEP, replay.drawn)

    assert np.ptp(np.log([base, head]), axis=(0, 2)).max() < 1e-3
    assert by_name(peers(replay))["benchstat"].cases[2].wrong.events == 0

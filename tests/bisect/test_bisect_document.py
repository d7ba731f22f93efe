"""A search as people read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfgate.bisect.bisect_report import BisectReport, Loss, ShownCommit, ShownComparison
from perfgate.models import Note
from perfgate.report.formats import render

GOOD, PARENT, FOUND, BAD, BROKEN = (f"{digit * 12}{'0' * 28}" for digit in "15aef")
COMPARED: dict[str, Any] = {"run": "steps/x", "verdict": "regressed", "pairs": 6, "change": 0.0052,
                            "change_low": 0.0041, "change_high": 0.0063}  # fmt: skip
SHOWN = ShownCommit(commit=FOUND, title="Fuse the norm into the projection", probability=0.981, pairs=8, worse=0.0049)
REPORT = BisectReport(
    name="bisect-20261122T070000Z-abcdef", scenario=Path("scenarios/llama-8b-decode.yaml"), cell="llama-8b[batch=8]",
    cell_id="0123456789abcdef", metric="itl_median", verdict="found", exit_status=0, error=0.05, why="one",
    probability=0.981, answer=(SHOWN,), commits=64, pairs=46, pair_sd=0.00104,
    reproduced=ShownComparison(base=GOOD, head=BAD, **COMPARED),
    confirmed=ShownComparison(base=PARENT, head=FOUND, **COMPARED),
    loss=Loss(mean=0.0049, low=0.0042, high=0.0056),
    kernels=("norm launches more", "norm: rms_norm_kernel 64 -> 96 launches"),
    measured=(
        ShownCommit(commit=PARENT, title="Rename a variable | ![x](y)", probability=0.004, pairs=4, worse=-0.0002),
        SHOWN,
        ShownCommit(commit=BAD, title="\x1b[31mRelease", probability=0.001, pairs=6, worse=0.0052),
    ),
    skipped=((ShownCommit(commit=BROKEN, title="Break the build", probability=0.004),
              Note(code="build-failed", text="make ended with 2")),),
    uncertain=("The model says 98.1 %.",),
)  # fmt: skip
SEVERAL = {"verdict": "several", "why": "exhausted", "exit_status": 20, "probability": 0.962, "answer": REPORT.measured}


@pytest.mark.parametrize(("form", "name"), [("text", "bisect.txt"), ("markdown", "bisect.md")])
def test_a_commit_that_was_found(golden: Callable[[str, str], None], form: str, name: str) -> None:
    """The answer, both comparisons, the kernels, what was measured and skipped, and what is uncertain."""
    golden(name, render("bisect", form, REPORT))


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (SEVERAL, "SEVERAL: one of 3 commits made itl_median worse (probability 96.2 %): 555555555555, aaaaaaaaaaaa"),
        (SEVERAL | {"why": "inseparable"}, "made itl_median worse, and no build tells them apart (prob"),
        ({"verdict": "nothing-lost", "answer": ()}, "Nothing to search for"),
        ({"verdict": "inconclusive", "answer": ()}, "Undecided: the pairs of the good and the bad commit"),
        ({"verdict": "not-measured", "answer": ()}, "Not measured"),
        ({"verdict": "open", "answer": ()}, "The search is not over"),
    ],
)
def test_other_ends(update: dict[str, Any], told: str) -> None:
    """Each says in its first sentence what there is instead of one commit."""
    assert told in render("bisect", "text", REPORT.model_copy(update=update))


def test_a_title_is_shown_as_text() -> None:
    """Of the commit that was found too: neither Markdown, HTML nor an escape of a terminal."""
    evil = SHOWN.model_copy(update={"title": "**x** ![x](http://e) <img src=x> \x1b[2J @all"})
    shown = render("bisect", "markdown", REPORT.model_copy(update={"answer": (evil,), "measured": (evil,)}))
    assert "![x](" not in shown
    assert "<img" not in shown
    assert "\x1b" not in shown
    assert "**x**" not in shown


def test_the_json_is_the_report() -> None:
    """It is read back as the same."""
    assert BisectReport.model_validate(json.loads(render("bisect", "json", REPORT))) == REPORT

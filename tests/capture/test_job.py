"""What a trial asks of its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfgate.capture.job import Job
from perfgate.scenario.declaration import Choose
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject


def test_the_models_folder_stands_for_its_name_in_arguments(
    make_cell: Callable[..., Cell], make_job: Callable[..., Job]
) -> None:
    """However deep, in the scenario's and in the subject's; numbers stay what they are."""
    cell = make_cell(args='{speculative_config: {model: "{model}/draft", num_speculative_tokens: 3}}')
    job = make_job(cell, Subject(python="python", args={"lora_modules": ["a={model}/a"], "seed": 1}))

    assert job.engine_args == {
        "speculative_config": {"model": f"{cell.model_folder}/draft", "num_speculative_tokens": 3},
        "lora_modules": [f"a={cell.model_folder}/a"],
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("pair", "iterations", "choose", "count"),
    [
        (0, None, None, True), (0, 5, Choose(least=2, most=8), True), (None, None, Choose(least=2, most=8), True),
        (None, 5, Choose(least=2, most=8), False), (None, None, None, False),
    ],
)  # fmt: skip
def test_times_of_a_warm_up_trial_count_where_a_number_follows_from_them(
    make_cell: Callable[..., Cell],
    make_job: Callable[..., Job],
    *,
    pair: int | None,
    iterations: int | None,
    choose: Choose | None,
    count: bool,
) -> None:
    """Not where the number of iterations is declared, or was chosen before."""
    one = make_job(make_cell(), Subject(python="python"))
    measure = one.cell.measure.model_copy(update={"choose": choose})
    cell = one.cell.model_copy(update={"measure": measure})
    assert replace(one, cell=cell, pair=pair, iterations=iterations).times_count is count

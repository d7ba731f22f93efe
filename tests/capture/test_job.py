"""What a trial asks of its engine."""

from __future__ import annotations

from collections.abc import Callable

from perfgate.capture.job import Job
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

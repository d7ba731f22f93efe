"""Images that requests show: what the worker is asked for, and what it draws."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfgate.capture.driver_protocol import Launch
from perfgate.capture.job import Job
from perfgate.capture.parking import Parking
from perfgate.capture.vllm_batch import pictures
from perfgate.capture.vllm_driver import VllmEngine
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.scenario.work import Work
from perfgate.scenario.workload import Images, Workload


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What the worker draws, with Pillow's images left as arrays."""
    pillow = types.ModuleType("PIL")
    vars(pillow)["Image"] = types.SimpleNamespace(fromarray=lambda pixels: pixels)
    monkeypatch.setitem(sys.modules, "PIL", pillow)
    return pictures


def test_no_two_images_are_alike_and_each_is_drawn_again(draw: Callable[..., Any]) -> None:
    """Neither of a request nor of another iteration; another engine draws the same."""
    wanted = {"count": 2, "width": 6, "height": 4, "seed": [0, 3]}

    def images(**other: Any) -> list[Any]:
        return [image for shown in draw(wanted | other, 3) for image in shown["multi_modal_data"]["image"]]

    drawn, again, later = images(), images(), images(seed=[0, 4])
    assert {(image.shape, image.dtype) for image in drawn} == {((4, 6, 3), np.dtype("uint8"))}
    assert len(drawn) == 6
    assert not any(np.array_equal(*two) for two in itertools.combinations([*drawn, *later], 2))
    assert all(itertools.starmap(np.array_equal, zip(drawn, again, strict=True)))


@pytest.mark.parametrize(
    ("images", "tokenizes", "asked"),
    [
        (None, {}, None),
        (Images(width=6, height=4), {"skip_tokenizer_init": False},
         {"count": 1, "width": 6, "height": 4, "seed": [0, 7]}),
    ],
)  # fmt: skip
def test_a_model_that_sees_gets_its_processor_and_images(
    make_cell: Callable[..., Cell],
    make_job: Callable[..., Job],
    images: Images | None,
    tokenizes: dict[str, bool],
    asked: dict[str, Any] | None,
) -> None:
    """The worker makes a tokenizer only where it shows images, and draws them anew in each iteration."""
    cell = make_cell()
    shown = cell.batch.model_copy(update={"images": images})
    job = make_job(cell.model_copy(update={"workload": shown}), Subject(python="python"))
    requests: dict[str, dict[str, Any]] = {}

    class Recorder:
        parked_ns = imported_ns = 0

        def request(self, op: str, _limit: object, **fields: Any) -> dict[str, Any]:
            requests[op] = fields
            return {"versions": {}, "import_ns": 1, "engine_ns": 1, "vocabulary": 100}

        def age_ns(self) -> int:
            return 10

        def stopped_ns(self, _since_ns: int, _until_ns: int) -> int:
            return 0

    worker: Any = Recorder()
    VllmEngine(worker, job, Launch(), Parking()).iterate(job.cell.workload, 7)

    assert requests["start"]["engine_args"] == tokenizes | job.engine_args
    assert requests["iterate"].get("images") == asked


def test_the_report_says_what_was_shown() -> None:
    """Beside the tokens of prompt and answer; of a workload without images nothing is said."""
    shown = Workload(batch=2, input_tokens=4, output_tokens=5, images=Images(count=2, width=6, height=4))

    assert Work(shown).setting()["images"] == "2 images of 6 x 4"
    assert Work(shown.model_copy(update={"images": None})).setting()["images"] == ""

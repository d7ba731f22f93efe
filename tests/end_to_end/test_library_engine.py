"""The tiny models of the library run in a real engine: one trial of each family, one of them on every change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfgate.capture.job import Job
from perfgate.capture.trial_taking import EngineCollector
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import resolve_cells
from perfgate.scenario.subject import Subject

LIBRARY = Path(__file__).parents[2] / "scenarios/library"
OFTEN = ("cpu-mla",)
"""What every change starts: latent attention with experts that are routed and shared."""


FOUR_BITS = ("cpu-awq", "cpu-gptq")
HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def families() -> list[object]:
    """Every tiny model; on every change what shows most in one start."""
    names = sorted(file.stem for file in LIBRARY.glob("cpu-*.yaml"))
    lacks = pytest.mark.skipif(
        not HAS_AVX512, reason="vLLM for the CPU multiplies by weights of 4 bits with AVX-512 alone"
    )
    marks = {name: [] if name in OFTEN else [pytest.mark.slow] for name in names}
    return [pytest.param(name, marks=[*marks[name], *[lacks] * (name in FOUR_BITS)]) for name in names]


@pytest.mark.slow
@pytest.mark.engine(starts=1)
@pytest.mark.parametrize("family", families())
def test_a_family_decodes(family: str, tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """An engine with dummy weights starts once and gives every token that its scenario asks for."""
    (cell,) = resolve_cells(load(LIBRARY / f"{family}.yaml"))
    subject = Subject(python=engine_python, env={"VLLM_CACHE_ROOT": str(engine_cache)})
    folder = tmp_path / "trials" / "000"
    folder.mkdir(parents=True)
    caches = tmp_path / "caches"
    caches.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    collector = EngineCollector()
    try:
        trial = collector.collect(
            Job("timed", cell, "base", subject, 0, None, 0, 0, tmp_path, folder, caches, environment, "library"), print
        )
    finally:
        collector.release()

    assert trial.failure is None, trial.failure
    assert [one.output_tokens for one in trial.iterations] == [cell.batch.output_tokens] * cell.measure.iterations
    assert all(one.elapsed_ns > 0 for one in trial.iterations)

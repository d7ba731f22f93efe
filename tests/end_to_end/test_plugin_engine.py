"""Plugins in a real engine: which are used, and of which it is said that nothing shows that they do anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_scenario import write_engine_scenario
from test_end_to_end import perfgate

from perfgate.record.run_record import read_records, read_run

REGISTER = {
    "idle": """
import dataclasses
from vllm.logger import init_logger
logger = init_logger(__name__)
@dataclasses.dataclass
class Settings:
    on: bool = False
def apply(): return Settings()
def register(): logger.info("does not apply to this version")
""",
    "wraps": """
import functools
def register():
    from vllm.v1.core.sched.scheduler import Scheduler
    old = Scheduler.schedule
    @functools.wraps(old)
    def schedule(self, *given, **named): return old(self, *given, **named)
    Scheduler.schedule = schedule
""",
    "operator": """
import torch
def twice(x: torch.Tensor) -> torch.Tensor: return x * 2
def register():
    torch.library.define("perfgate_tests::twice", "(Tensor x) -> Tensor")
    torch.library.impl("perfgate_tests::twice", "CPU", twice)
""",
    "replaced": """
def register():
    import vllm.v1.sample.sampler as module
    class Sampler(module.Sampler): pass
    module.Sampler = Sampler
""",
    "sets": """
def register():
    import vllm.v1.core.sched.utils as module
    module.LIMIT = 3
""",
}


@pytest.mark.slow
@pytest.mark.engine(starts=8)
def test_plugins(engine_python: str, engine_cache: Path, tmp_path: Path) -> None:
    """A folder that nothing used ends its head as not measured; of the others the one that does nothing is named."""
    scenario = write_engine_scenario(tmp_path, engine_cache)
    words = ["run", str(scenario), "--quick", "--base", f"python={engine_python}", "--format", "json"]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "my_plugin.py").write_text(REGISTER["wraps"])
    # This run fills the cache that engines share: one that fills it imports vLLM's modules in another order.
    plain = perfgate(*words, "--head", f"path={tmp_path / 'plain'}", cwd=tmp_path)
    heads = []
    for name, code in REGISTER.items():
        installed = tmp_path / name / f"{name}-0.1.dist-info"
        installed.mkdir(parents=True)
        (installed.parent / f"plugin_{name}.py").write_text(code)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = plugin_{name}:register\n")
        heads += ["--head", f"{name}:path={installed.parent}"]
    ended = perfgate(*words, *heads, cwd=tmp_path)

    assert [plain.returncode, ended.returncode] == [22, 20], plain.stderr + ended.stderr
    used: dict[str, list[bool]] = {}
    for folder in sorted((tmp_path / "runs").iterdir()):
        (record,) = read_records(folder, read_run(folder))
        for trial in record.trials:
            used[trial.label] = [one.used for process in trial.used or () for one in process.folders or ()]
    assert used == {"base": [], "head": [False], **{name: [True] for name in REGISTER}}
    said = {cell.get("head", "head"): [note["code"] for note in (*cell["reasons"], *cell["cautions"])]
            for ran in (plain, ended) for cell in json.loads(ran.stdout)["cells"]}  # fmt: skip
    assert [name for name, codes in said.items() if "path-unused" in codes] == ["head"]
    assert [name for name, codes in said.items() if "load-unproven" in codes] == ["idle"]

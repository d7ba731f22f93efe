"""Make a git repository of a vLLM plugin, one of whose 16 commits doubles the model's forward, for ``perfgate bisect``.

``python research/bisect_engine.py FOLDER --python ENGINE`` makes the repository with a scenario and a recipe, and
searches it on the real engine, which takes some seventy starts of it. The other commits change little things: a
constant, a comment, a function that nobody calls, a little work of the host in each step. One does not build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMITS = 16
DOUBLES, BROKEN = 11, 7
"""Numbers of the commit that doubles the forward and of the one that does not build."""
PLUGIN = '''"""A plugin of vLLM, version {number}."""

from functools import wraps

VERSION = {number}
ROUNDS = {rounds}


def unused_{number}(value):
    return value + {number}


def register():
    from vllm.model_executor.models.llama import LlamaForCausalLM

    forward = LlamaForCausalLM.forward
    if getattr(forward, "wrapped", False):
        return

    @wraps(forward)
    def own(self, *args, **kwargs):
        for number in range(ROUNDS):
            hash(number)
        for _ in range({extra}):
            forward(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    own.wrapped = True
    LlamaForCausalLM.forward = own
'''
RECIPE = """[build]
path = "{tree}"
commands = [["sh", "-ec", "echo {commit} >> '{here}/made'; python3 -m py_compile small_plugin.py"]]
"""


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    who = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who |= {f"GIT_{role}_{what}": "plugin@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, env={**os.environ, **who}, capture_output=True, text=True, check=True).stdout.strip()


def make(folder: Path) -> list[str]:
    """The repository; the hashes of its commits, the good one first."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    shutil.copytree(ROOT / "scenarios" / "models" / "llama-tiny", folder / "models" / "llama-tiny")
    shutil.copy(ROOT / "scenarios" / "cpu-tiny.yaml", folder / "scenario.yaml")
    about = folder / "small_plugin-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: small_plugin\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nsmall_plugin = small_plugin:register\n")
    (folder / "perfgate.toml").write_text(RECIPE)
    (folder / ".gitignore").write_text("/made\n/runs\n/builds\n__pycache__\n")
    commits = []
    for number in range(COMMITS + 1):
        text = PLUGIN.format(number=number, rounds=20 * number, extra=int(number >= DOUBLES))
        broken = "def (\n" if number == BROKEN else ""
        (folder / "small_plugin.py").write_text(text + broken)
        git(folder, "add", "--all")
        git(
            folder,
            "commit",
            "--quiet",
            "-m",
            f"Change {number}: {'twice the forward' if number == DOUBLES else 'little'}",
        )
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def main() -> None:
    """Make the repository, search it, and say how long that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", required=True, help="The engine's interpreter.")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    commits = make(folder)
    words = ["bisect", "--good", commits[0], "--bad", "main", "scenario.yaml", "--metric", "itl_median", "--seed", "1",
             "--base", f"python={Path(asked.python).absolute()}", "--format", "text", "--output", "found.md",
             "--output", "found.json"]  # fmt: skip
    begun = time.monotonic()
    ended = subprocess.run([sys.executable, "-m", "perfgate", *words], cwd=folder, check=False,
                           env={**os.environ, "PERFGATE_BUILDS": str(folder / "builds")})  # fmt: skip
    built = (folder / "made").read_text().split()
    print(f"exit status {ended.returncode}, {(time.monotonic() - begun) / 60:.1f} min, planted {commits[DOUBLES][:12]}")
    print(f"{len(built)} builds of {len(set(built))} commits")


if __name__ == "__main__":
    main()

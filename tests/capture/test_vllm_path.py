"""What a process says that it used of folders on its module path, and whether that does anything."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from perfgate.metrics.path_use import FolderUse, ProcessUse, read_uses

FILE = Path(__file__).parents[2] / "perfgate" / "capture" / "vllm_path.py"
ASK = f"""
import importlib.machinery, json, sys, types
module = types.ModuleType("vllm_path")
importlib.machinery.SourceFileLoader("vllm_path", {str(FILE)!r}).exec_module(module)
print(json.dumps(module.report(None, sys.argv[1:])))
"""
ENGINE = """
REGISTRY = {}
LIMIT = 3
def sample(): return 1
def other(): return 2
class Scheduler:
    size = 1
    def schedule(self): return sample()
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder


def plugin(folder: Path, code: str, group: str = "vllm.general_plugins") -> Path:
    """An installed plugin, whose entry point is ``mine``."""
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n",
        "entry_points.txt": f"[{group}]\nmine = my_plugin:register\n",
    }
    installed = {f"mine-0.1.dist-info/{name}": text for name, text in metadata.items()}
    return write(folder, {"my_plugin.py": code, **installed})


def report(cwd: Path, *folders: Path, runs: str = "", python: str = sys.executable, **variables: str) -> dict[str, Any]:
    """What a process says that has run some code with these folders on its module path."""
    path = os.pathsep.join(map(str, folders))
    words = [python, "-c", f"{textwrap.dedent(runs)}\n{ASK}", *map(str, folders)]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": path, **variables}
    said = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def counts(cwd: Path, *folders: Path, runs: str = "", **variables: str) -> list[tuple[int, int, list[str]]]:
    """Modules, libraries and plugins of each folder."""
    told = report(cwd, *folders, runs=runs, **variables)["folders"]
    return [(one["modules"], one["libraries"], one["plugins"]) for one in told]


def test_each_folder_for_itself(tmp_path: Path) -> None:
    """A module counts for the folder that it was imported from, also where that lies in the other one."""
    tree = write(tmp_path / "tree", {"engine/__init__.py": "", "engine/core.py": "", "my_plugin.py": ""})
    inside = write(tree / "plugins", {"other_plugin.py": ""})

    assert counts(tmp_path, inside, tree, runs="import engine.core") == [(0, 0, []), (2, 0, [])]
    assert counts(tmp_path, tree, inside, runs="import other_plugin") == [(0, 0, []), (1, 0, [])]


def test_a_folder_by_its_link(tmp_path: Path) -> None:
    """A folder that is a link is used, whichever way its modules name it."""
    write(tmp_path / "real", {"my_plugin.py": ""})
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    resolved = f"import sys; sys.path.insert(0, {str(tmp_path / 'real')!r}); import my_plugin"

    assert counts(tmp_path, link, runs="import my_plugin") == [(1, 0, [])]
    assert counts(tmp_path, link, runs=resolved) == [(1, 0, [])]


def test_namespace_packages(tmp_path: Path) -> None:
    """One that lies in the folder alone is use; a portion of one that is imported from elsewhere is none."""
    own, other = tmp_path / "own", tmp_path / "other"
    write(own, {"space/mine.py": ""})
    write(other, {"space/theirs.py": ""})

    assert counts(tmp_path, own, runs="import space") == [(1, 0, [])]
    assert counts(tmp_path, own, other, runs="import space.theirs") == [(0, 0, []), (1, 0, [])]
    assert counts(tmp_path, own, other, runs="import space.mine") == [(1, 0, []), (0, 0, [])]


def test_what_lies_below_a_folder_by_chance(tmp_path: Path) -> None:
    """The environment, caches and run folders of a project are no part of a path= that names the project."""
    project = write(tmp_path / "project", {"pyproject.toml": "", "venv/site/dependency.py": "", "cache/made.py": ""})
    runs = f"""
    import sys, importlib.util
    sys.path.append({str(project / "venv" / "site")!r})
    import dependency
    made = importlib.util.spec_from_file_location("generated", {str(project / "cache" / "made.py")!r})
    sys.modules["generated"] = importlib.util.module_from_spec(made)
    """

    assert counts(tmp_path, project, runs=runs, VLLM_CACHE_ROOT=str(project / "cache")) == [(0, 0, [])]
    assert counts(tmp_path, project, runs=runs) == [(1, 0, [])]


def test_shared_objects(tmp_path: Path) -> None:
    """A library that was mapped and no module is use."""
    (library,) = [file for file in Path("/proc/self/maps").read_text().split() if "libc.so" in file][:1]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "kernels.so").write_bytes(Path(library).read_bytes())

    assert counts(tmp_path, folder) == [(0, 0, [])]
    assert counts(tmp_path, folder, runs=f"import ctypes; ctypes.CDLL({str(folder / 'kernels.so')!r})") == [(0, 1, [])]


def test_entry_points(tmp_path: Path) -> None:
    """One that vLLM loads by itself counts once its module is there, in a group of vLLM's that is not switched off."""
    folder = plugin(tmp_path / "folder", "def register(): ...")
    stray = plugin(tmp_path / "stray", "def register(): ...", group="console_scripts")
    (stray / "my_plugin.py").unlink()
    imported = "import my_plugin"

    assert counts(tmp_path, folder) == [(0, 0, [])]
    assert counts(tmp_path, folder, runs=imported) == [(1, 0, ["mine"])]
    assert counts(tmp_path, folder, runs=imported, VLLM_PLUGINS="") == [(1, 0, [])]
    assert counts(tmp_path, stray, folder, runs=imported) == [(0, 0, []), (1, 0, ["mine"])]


WITHOUT_A_MODULE = {
    "by its place": """import importlib.util as found
    spec = found.spec_from_file_location("mine", FILE)
    module = found.module_from_spec(spec)
    spec.loader.exec_module(module)
    vllm.sample = module.step""",
    "run": "import runpy; vllm.sample = runpy.run_path(FILE)['step']",
    "dropped": "import my_plugin, sys; vllm.Scheduler.schedule = my_plugin.step; del sys.modules['my_plugin']",
    "in a table": "import runpy; vllm.REGISTRY['mine'] = [runpy.run_path(FILE)['step']]",
    "wrapped": """import runpy, functools
    vllm.sample = functools.partial(runpy.run_path(FILE)['step'])""",
    "a class": "import runpy; vllm.Scheduler = runpy.run_path(FILE)['Step']",
    "not kept": "import runpy; runpy.run_path(FILE)",
}


@pytest.mark.parametrize("load", WITHOUT_A_MODULE)
def test_code_whose_module_is_not_kept(tmp_path: Path, load: str) -> None:
    """What vLLM holds of a file is use of it, whether or not a module by its name is there."""
    engine = write(tmp_path / "engine", {"vllm/__init__.py": ENGINE})
    code = "def step(): return 1\nclass Step:\n    def schedule(self): return 1\n"
    folder = write(tmp_path / "folder", {"my_plugin.py": code})
    runs = f"import vllm; FILE = {str(folder / 'my_plugin.py')!r}\nif FILE:\n    {WITHOUT_A_MODULE[load]}"

    assert counts(tmp_path, folder, engine, runs=runs)[0][0] == (load != "not kept")


IDLE = """
import dataclasses, functools, os
from vllm import LIMIT, REGISTRY, sample
TABLE = {"a": sample}
class Thing:
    def go(self): return super().__init__()
@dataclasses.dataclass
class Both:
    one: int = 1
ONE = Both()
@functools.lru_cache
def helper(): return Thing()
"""
DOES = {
    "nothing": "",
    "logs": "import logging; logging.getLogger(__name__).info('loaded')",
    "reads": "import vllm; vllm.Scheduler.schedule; vllm.sample()",
    "patches a method": "import vllm; vllm.Scheduler.schedule = helper",
    "patches by a lambda": "import vllm; vllm.Scheduler.schedule = lambda self: 1",
    "wraps": """import vllm
    old = vllm.Scheduler.schedule
    @functools.wraps(old)
    def schedule(self): return old(self)
    vllm.Scheduler.schedule = schedule""",
    "replaces a class": """import vllm
    class Scheduler(vllm.Scheduler): size = 2
    vllm.Scheduler = Scheduler""",
    "registers a class": "REGISTRY['mine'] = Thing",
    "registers an object": "REGISTRY['mine'] = ONE",
    "registers a name": "REGISTRY['mine'] = 'my_plugin:Thing'",
    "keeps a closure": "import atexit; atexit.register(lambda: helper())",
    "starts a thread": """import threading, time
    threading.Thread(target=lambda: time.sleep(60), daemon=True).start()""",
    "handles a signal": "import signal; signal.signal(signal.SIGUSR1, lambda *_: helper())",
    "sets a constant": "import vllm; vllm.LIMIT = 4",
    "sets an attribute": "import vllm; vllm.Scheduler.size = 4",
    "adds an attribute": "import vllm; vllm.Scheduler.more = 4",
    "takes vLLM's own": "import vllm; vllm.sample = vllm.other",
    "binds an argument": "import vllm; vllm.sample = functools.partial(vllm.sample)",
    "changes code": "import vllm; vllm.sample.__code__ = vllm.other.__code__",
    "sets a variable": "os.environ['VLLM_SWITCH'] = '1'",
    "stops collecting": "import gc; gc.disable()",
    "collects more often": "import gc; gc.set_threshold(10)",
    "leaves out of collections": "import gc; gc.freeze()",
    "logs more": "import logging; logging.getLogger().setLevel(1)",
}
"""What the function of a plugin does, and which of it can be told from nothing."""
NOTHING = ("nothing", "logs", "reads")
LOAD = "from importlib import import_module as load; load('vllm'); load('my_plugin').register()"
"""Which leaves no name for the plugin behind, as vLLM does not."""


@pytest.mark.parametrize("does", DOES)
def test_a_plugin_that_does_something(tmp_path: Path, does: str) -> None:
    """One that does nothing is apart and leaves vLLM as it was; each other one is not, or does not."""
    engine = write(tmp_path / "engine", {"vllm/__init__.py": ENGINE})
    code = f"{IDLE}\ndef register():\n    {DOES[does]}\n    return None\n"
    folder = write(tmp_path / "folder", {"my_plugin.py": code})
    base = report(tmp_path, engine, runs="import vllm")["state"]

    told = report(tmp_path, folder, engine, runs=LOAD)

    mine, theirs = told["folders"]
    assert base
    assert (mine["apart"] and told["state"] == base) is (does in NOTHING)
    assert theirs["modules"] == 1


def test_a_plugin_of_a_single_function_that_does_nothing(tmp_path: Path) -> None:
    """It is apart though there is nothing else in it: what is looked at last is held by no name of ours."""
    engine = write(tmp_path / "engine", {"vllm/__init__.py": ENGINE})
    folder = write(tmp_path / "folder", {"my_plugin.py": "def register(): ..."})

    assert report(tmp_path, folder, engine, runs=LOAD)["folders"][0]["apart"] is True


def test_what_another_module_knows(tmp_path: Path) -> None:
    """A module that something outside has imported is not apart, nor is one that Python imports at its start."""
    engine = write(tmp_path / "engine", {"vllm/__init__.py": "import my_plugin"})
    folder = write(tmp_path / "folder", {"my_plugin.py": "def register(): ..."})
    early = write(tmp_path / "early", {"sitecustomize.py": "def register(): ..."})

    assert report(tmp_path, folder, engine, runs="import vllm")["folders"][0]["apart"] is False
    assert report(tmp_path, early)["folders"] == [{"modules": 1, "libraries": 0, "plugins": [], "apart": False}]


def test_a_process_in_which_something_fails() -> None:
    """What was used is not known there, and nothing is raised."""
    asked = runpy.run_path(str(FILE))["report"](None, [None])
    assert asked is None
    assert read_uses([asked], 1) == (ProcessUse(process="?", folders=None),)


@pytest.mark.parametrize(
    "answers",
    [None, [], {}, "used", [7], [{"process": "one", "folders": []}], [{"process": "\n", "folders": [{}]}],
     [{"process": "one", "folders": [{"modules": -1}]}], [{"process": "one", "folders": [{"plugins": ["x" * 101]}]}],
     [{"process": "one", "state": "no digest", "folders": [{}]}]],
)  # fmt: skip
def test_answers_that_are_none(answers: object) -> None:
    """Whatever an engine answers otherwise is that of a process that does not tell."""
    assert read_uses(answers, 1) == (ProcessUse(process="?", folders=None),)


def test_an_answer() -> None:
    """It is kept without the number of the process."""
    answer = {"process": "one", "pid": 7, "state": "0f", "folders": [{"modules": 2, "plugins": ["mine"]}]}
    kept = ProcessUse(process="one", state="0f", folders=(FolderUse(modules=2, plugins=("mine",)),))
    assert read_uses([answer, None], 1) == (kept, ProcessUse(process="?", folders=None))

"""``perfgate init``: the files that a repository begins with, the questions that it asks and what it tells.

What is written, a scenario that fits the machine, ``perfgate.toml``, workflows and a hook, depends on the folder and on
few answers, is valid as it is, and never takes the place of what is there already unless that is asked for.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Literal

import click

from perfgate import __version__, rooms
from perfgate.errors import UsageError
from perfgate.machine.accelerator import connect
from perfgate.machine.atomic_files import write_atomically
from perfgate.scenario.subject_words import CONFIG_FILE

Done = Literal["wrote", "replaced", "left"]
SCENARIOS: Mapping[str, str] = {"cpu-tiny": "llama-tiny", "llama-8b-decode": "llama-8b"}
"""The scenarios that can be begun with, each with the folder of its model."""
ENGINE = "~/engine/bin/python"
"""Where the engine's interpreter is taken to be: a place that a person and a runner's user can both have."""
LABELS = ("self-hosted", "linux", "gpu")

_ACTION = re.compile(r"OWNER/perfgate((?:/[\w./-]+)?)@0{40} # version")
_PLUGIN = re.compile(r"\bvllm\.\w+_plugins\b")
_NO_PACKAGES = {"tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "tools"}
_TEMPLATES = files("perfgate").joinpath("templates")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--scenario", metavar="NAME", help="cpu-tiny or llama-8b-decode; by default what fits this machine.")
@click.option("--python", metavar="PATH", help="The interpreter that holds vLLM.  [default: ~/engine/bin/python]")
@click.option(
    "--action",
    metavar="OWNER/perfgate@COMMIT",
    help="The action that workflows use; by default the commit that this perfgate was installed from.",
)
@click.option("--labels", metavar="A,B", help="Labels of the runner that measures.  [default: self-hosted,linux,gpu]")
@click.option("--pre-push", is_flag=True, help="Also install the git hook that checks the scenarios of a push.")
@click.option("--yes", is_flag=True, help="Ask nothing, take the defaults; so it is without a terminal, too.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
def init(folder: Path, *, pre_push: bool, yes: bool, force: bool, **given: str | None) -> None:
    """Write what a repository begins with: a scenario, perfgate.toml, GitHub workflows, the runner's page.

    What is there already is left as it is.
    """
    answer = partial(_answer, not yes and sys.stdin.isatty())
    chosen = answer("Scenario", given["scenario"], _fitting)
    if chosen not in SCENARIOS:
        raise UsageError(f"--scenario {chosen}: expected one of {', '.join(SCENARIOS)}")
    python = answer("Interpreter that holds vLLM", given["python"], lambda: ENGINE)
    question = "perfgate's action, OWNER/perfgate@COMMIT (empty: later)"
    action = answer(question, given["action"], installed_action)
    labels = answer("Labels of the runner that measures", given["labels"], lambda: ",".join(LABELS))
    answers = Answers(chosen, python, action, _words(labels) or LABELS, pre_push)
    done = list(write_files(starter_files(folder, answers), force=force))
    for file, what in done:
        click.echo(f"{what:<8} {file.path}" + (" (there already)" if what == "left" else ""))
    click.echo("\nnext:")
    for number, step in enumerate(_next(folder, answers, done), 1):
        click.echo(f"  {number}. {step}")


def _answer(asks: bool, question: str, given: str | None, default: Callable[[], str]) -> str:  # noqa: FBT001
    if given is not None:
        return given
    return str(click.prompt(question, default=default(), err=True)) if asks else default()


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _fitting() -> str:
    """The scenario that this machine can run: a GPU's where the driver shows one."""
    nvml = connect()
    if nvml is None:
        return "cpu-tiny"
    with nvml:
        return "llama-8b-decode" if nvml.gpus() else "cpu-tiny"


def _next(folder: Path, answers: Answers, done: list[tuple[StarterFile, Done]]) -> tuple[str, str, str]:
    """How to get a verdict, how to compare a branch, how to have it on GitHub."""
    scenario = f"scenarios/{answers.scenario}.yaml"
    engine = folder.absolute() / Path(answers.python).expanduser()
    missing = f"put an engine at {answers.python}, then " if "/" in answers.python and not engine.exists() else ""
    lines = " and ".join(not_ignored(folder, answers))
    ignore = f" (with {lines} in .gitignore)" if lines else ""
    build = "" if any("\n[build]" in file.text for file, _ in done) else "fill in [build] in perfgate.toml; "
    pin = "" if answers.action else "perfgate init --action OWNER/perfgate@COMMIT completes the workflows; "
    return (
        f"{missing}perfgate run {scenario}: a build against itself, to see it pass",
        f"{build}commit these files{ignore}; perfgate run {scenario} --against main compares your branch",
        f"{pin}.github/perfgate-runner.md sets up the runner",
    )


@dataclass(frozen=True)
class Answers:
    """What is asked, each with a default for those who do not want to be."""

    scenario: str  # one of :data:`SCENARIOS`
    python: str = ENGINE  # the interpreter that holds vLLM, as `perfgate.toml` will name it
    action: str = ""  # `owner/perfgate@<40 hexadecimal digits>`; empty leaves the placeholder in the workflows
    labels: tuple[str, ...] = LABELS  # labels of the runner that measures
    pre_push: bool = False  # install the hook


@dataclass(frozen=True)
class StarterFile:
    """One file to be written."""

    path: Path  # where
    text: str  # all of it
    # What an earlier `init` wrote for want of an answer; as long as it says that, it is ours to replace
    unfilled: str | None = None
    program: bool = False  # whether it is one
    precious: bool = False  # not even replaced on request: it holds more than what is ours


def starter_files(folder: Path, answers: Answers) -> tuple[StarterFile, ...]:
    """Everything that a repository begins with, whose top is ``folder``; nothing is written.

    Raises:
        UsageError: An answer cannot be, ``folder`` is within a repository, or a hook is wanted where none can be.
    """
    if not answers.python or not answers.python.isprintable():
        raise UsageError(f"{answers.python!r} is not the path of an interpreter")
    top = _top(folder)
    if top is not None and top != folder.resolve():
        raise UsageError(
            "is inside a git repository, and workflows belong to its top folder",
            where=str(folder),
            remedy=f"perfgate init {shlex.quote(str(top))}",
        )
    model = SCENARIOS[answers.scenario]
    shipped = (f"scenarios/{answers.scenario}.yaml", f"scenarios/models/{model}/config.json")
    planned = [StarterFile(folder / name, _shipped(name)) for name in shipped]
    planned.append(StarterFile(folder / CONFIG_FILE, _config(folder, answers.python, is_repository=top is not None)))
    unfilled = workflows("", answers.labels)
    written = workflows(answers.action, answers.labels)
    planned += [StarterFile(folder / name, text, unfilled[name]) for name, text in written.items()]
    page = _shipped("runner.md").replace("@LABELS@", ", ".join(answers.labels)).replace("@PYTHON@", answers.python)
    planned.append(StarterFile(folder / ".github" / "perfgate-runner.md", page))
    ignored = "".join(f"{line}\n" for line in _ignored(answers.python))
    planned.append(StarterFile(folder / ".gitignore", ignored, precious=True))
    if answers.pre_push:
        if top is None:
            raise UsageError("a pre-push hook needs a git repository", where=str(folder), remedy="git init first.")
        planned.append(_hook(rooms.use("git").Repository(folder).hook("pre-push"), folder))
    return tuple(planned)


def write_files(planned: tuple[StarterFile, ...], *, force: bool = False) -> Iterator[tuple[StarterFile, Done]]:
    """Write what is not there yet, or all with ``force``, one after the other, and say of each what was done.

    Raises:
        UsageError: A folder is in a file's place, or the other way round; then nothing is written.
        OSError: The file system refused.
    """
    for file in planned:
        for parent in file.path.parents:
            if parent.exists() and not parent.is_dir():
                raise UsageError(f"a folder is needed here, and there is a file: {file.path}", where=str(parent))
        if file.path.is_dir():
            raise UsageError("a file is needed here, and there is a folder", where=str(file.path))
    for file in planned:
        there = os.path.lexists(file.path)
        ours = there and file.unfilled not in (None, file.text) and _says(file.path, file.unfilled)
        if there and not ours and (file.precious or not force):
            yield file, "left"
            continue
        file.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file.path, file.text)
        if file.program:
            file.path.chmod(0o755)
        yield file, "replaced" if there else "wrote"


def not_ignored(folder: Path, answers: Answers) -> tuple[str, ...]:
    """Lines that ``.gitignore`` lacks: else git takes for the change under test what is none of it."""
    try:
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return tuple(line for line in _ignored(answers.python) if not {line, line[1:], line[:-1], line[1:-1]} & {*lines})


def installed_action() -> str:
    """The commit of the repository that this perfgate was installed from, where pip knows it and it is GitHub's.

    ``pip install git+https://github.com/OWNER/perfgate`` keeps it in ``direct_url.json`` (PEP 610).
    """
    try:
        installed = json.loads(distribution("perfgate").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    url, commit = installed.get("url", ""), installed.get("vcs_info", {}).get("commit_id", "")
    origin = re.fullmatch(r"(?:https|ssh)://(?:git@)?github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", url)
    return f"{origin[1]}@{commit}" if origin and re.fullmatch(r"[0-9a-f]{40}", commit) else ""


def _top(folder: Path) -> Path | None:
    nearest = next(above for above in (folder, *folder.absolute().parents) if above.is_dir())
    try:
        return Path(rooms.use("git").Repository(nearest).folder).resolve()
    except UsageError:
        return None  # no repository yet, or no git at all: nothing that is written here needs one


def _shipped(name: str) -> str:
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")


def _ignored(python: str) -> list[str]:
    """Run folders, and an engine's environment that is in the repository."""
    environment = Path(os.path.normpath(Path(python).parent.parent))
    inside = os.sep in python and not python.startswith((os.sep, "~")) and environment.parts[:1] not in ((), ("..",))
    return ["/runs/", f"/{environment}/"] if inside else ["/runs/"]


def _says(path: Path, text: str | None) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def workflows(action: str, labels: tuple[str, ...]) -> dict[str, str]:
    """The text of every workflow, by its path from the repository's root.

    Args:
        action: The repository of the action with the commit to take, ``owner/perfgate@<40 hexadecimal digits>``; empty
            where it is not known yet: the placeholders stay, and jobs fail at once.
        labels: Labels of the measuring runner; the last one also orders its jobs.

    Raises:
        UsageError: The action is pinned to no commit, or a label cannot appear in a workflow.
    """
    pinned = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", action)
    if action and pinned is None:
        raise UsageError(
            f"{action}: expected OWNER/perfgate@COMMIT with the commit's 40 hexadecimal digits",
            remedy="A tag can be moved: git ls-remote URL refs/tags/VERSION says which commit it is now.",
        )
    for label in labels:
        if not re.fullmatch(r"[\w./*?+-]*", label):
            raise UsageError(f"{label!r} is not allowed in a workflow: letters, digits and ./*?+- only")
    written = {}
    for template in sorted(_TEMPLATES.joinpath("github").iterdir(), key=lambda file: file.name):
        text = template.read_text(encoding="utf-8").replace("[self-hosted, linux, gpu]", f"[{', '.join(labels)}]")
        text = text.replace("group: perfgate-gpu\n", f"group: perfgate-{labels[-1]}\n")
        if pinned:
            text = _ACTION.sub(rf"{pinned[1]}\g<1>@{pinned[2]} # {__version__}", text)
        written[f".github/workflows/{template.name}"] = text
    return written


def _hook(path: Path, folder: Path) -> StarterFile:
    """The hook; one that is in the working tree is shared with others, whose perfgate is elsewhere."""
    inside = path.is_relative_to(folder.resolve()) and ".git" not in path.relative_to(folder.resolve()).parts
    words = "command perfgate" if inside else f"{shlex.quote(sys.executable)} -m perfgate"
    return StarterFile(path, _shipped("pre-push").replace("@PERFGATE@", words), program=True)


def _config(folder: Path, python: str, *, is_repository: bool) -> str:
    """``perfgate.toml``: a base and a head that are one build, and how a git ref becomes another."""
    kind, source = _kind(folder) if is_repository else ("example", "")
    recipe = _shipped(f"build/{kind}.toml").replace("@PYTHON@", _toml(_plain(python)))
    recipe = recipe.replace("@SOURCE@", _toml(source)).replace("@PIP@", ", ".join(map(_toml, _pip(python))))
    return _shipped(CONFIG_FILE).replace("@PYTHON@", _toml(python)) + recipe


def _kind(folder: Path) -> tuple[str, str]:
    """What is in the folder, by the name of its recipe, and where its packages are in a checkout."""
    if (folder / "vllm" / "__init__.py").is_file():
        return "vllm", ""
    source = _source_folder(folder)
    if source is None:
        return "example", ""
    metadata = (folder / name for name in ("pyproject.toml", "setup.cfg", "setup.py"))
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in metadata if file.is_file())
    return "plugin" if any(map(_PLUGIN.search, texts)) else "package", source


def _source_folder(folder: Path) -> str | None:
    for where, source in ((folder / "src", "{tree}/src"), (folder, "{tree}")):
        packages = {file.parent.name for file in where.glob("*/__init__.py")}
        if packages - _NO_PACKAGES:
            return source
    return None


def _pip(python: str) -> list[str]:
    """The words that start an interpreter's pip in a build's command."""
    relative = os.sep in python and not python.startswith(("/", "~/"))
    return [f"{{here}}/{_plain(python)}" if relative else _plain(python), "-m", "pip"]


def _plain(text: str) -> str:
    """In a recipe, where braces hold placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def _toml(text: str) -> str:
    """A basic string of TOML, which JSON's strings are where every character is printable."""
    return json.dumps(text, ensure_ascii=False)

"""perfgate init: what is written is valid, fits what is there, and takes nobody's place."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from fake_nvml import FakeMachine
from git_project import GitProject
from ruamel.yaml import YAML

from perfgate.cli.init import SCENARIOS, installed_action
from perfgate.cli.main import main
from perfgate.errors import ExitStatus
from perfgate.machine.nvml import connect
from perfgate.project.build import CACHE, Builder
from perfgate.project.config import load_config
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import resolve_cells

ROOT = Path(__file__).parents[2]
ACTION = f"me/perfgate@{'1a' * 20}"
KINDS = ("", "-comment", "-fleet", "-fleet-deadline", "-history", "-nightly", "-shard")
WORKFLOWS = [f".github/workflows/perfgate{name}.yml" for name in KINDS]
PLUGIN = '[project]\nname = "p"\nversion = "1"\n[project.entry-points."vllm.general_plugins"]\np = "p:register"\n'

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver, whatever this one has."""
    monkeypatch.setattr("perfgate.machine.nvml.connect", lambda: None)


def init(folder: Path, *words: str) -> Result:
    """``perfgate init`` without a terminal."""
    return CliRunner().invoke(main, ["init", str(folder), *words])


def written(folder: Path) -> list[str]:
    """Every file in a folder but git's own."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(str(file) for file in files if file.parts[0] != ".git")


def test_an_empty_folder_gets_everything_and_is_asked_nothing(tmp_path: Path) -> None:
    """Without a terminal nothing is asked, and scenario and perfgate.toml are valid as they stand."""
    folder = tmp_path / "new"
    result = init(folder)

    assert result.exit_code == 0, result.output
    assert written(folder) == sorted(
        [*WORKFLOWS, ".github/perfgate-runner.md", ".gitignore", "perfgate.toml", "scenarios/cpu-tiny.yaml",
         "scenarios/models/llama-tiny/config.json"]
    )  # fmt: skip
    assert load_config(folder / "perfgate.toml").build is None
    assert set(load_config(folder / "perfgate.toml").subjects) == {"base", "head"}
    files = [str(folder / name) for name in ("perfgate.toml", "scenarios/cpu-tiny.yaml")]
    checked = CliRunner().invoke(main, ["check", *files])
    assert checked.exit_code == 0, checked.output
    assert "subjects: base, head; no [build]" in checked.output
    assert len(result.output.partition("next:\n")[2].splitlines()) == 3


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenarios_are_ours(tmp_path: Path, name: str) -> None:
    """What is shipped measures the very cell of the scenario in scenarios/, by the same margins."""
    init(tmp_path, "--scenario", name)
    ours, theirs = (load(folder / "scenarios" / f"{name}.yaml") for folder in (ROOT, tmp_path))

    assert theirs.scenario == ours.scenario
    assert [cell.cell_id for cell in resolve_cells(theirs)] == [cell.cell_id for cell in resolve_cells(ours)]


def test_a_machine_with_a_gpu_gets_the_scenario_of_a_gpu(
    tmp_path: Path, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is asked; where all GPUs are hidden, there is none."""
    assert fake_nvml.file.exists()
    monkeypatch.setattr("perfgate.machine.nvml.connect", connect)
    for visible, scenario in (("0", "llama-8b-decode"), ("", "cpu-tiny")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        init(tmp_path / scenario)
        assert [file.stem for file in (tmp_path / scenario / "scenarios").glob("*.yaml")] == [scenario]


@pytest.mark.parametrize(
    ("files", "path", "commands"),
    [
        ({"pkg/__init__.py": ""}, ("{tree}",), 0),
        ({"src/pkg/__init__.py": "", "pyproject.toml": "[broken"}, ("{tree}/src",), 0),
        ({"pkg/__init__.py": "", "pyproject.toml": PLUGIN}, ("{env}",), 1),
        ({"vllm/__init__.py": ""}, (), 2),
        ({"tests/__init__.py": "", "README.md": ""}, None, 0),
    ],
)
def test_the_recipe_fits_the_repository(
    tmp_path: Path, files: dict[str, str], path: tuple[str, ...] | None, commands: int
) -> None:
    """A package is put on the path, a plugin is installed, vLLM is built; of anything else there is an example."""
    GitProject(tmp_path).write(files)
    result = init(tmp_path, "--python", "envs/a b/{x}/bin/python")
    build = load_config(tmp_path / "perfgate.toml").build

    assert result.exit_code == 0, result.output
    assert (build and (build.path, len(build.commands))) == (None if path is None else (path, commands))
    assert ("fill in [build]" in result.output) == (path is None)


def test_the_example_is_a_recipe(tmp_path: Path) -> None:
    """The [build] that stands there as a comment is right once it is none."""
    init(tmp_path)
    head, sign, example = (tmp_path / "perfgate.toml").read_text().partition("# [build]\n")
    (tmp_path / "perfgate.toml").write_text(head + (sign + example).replace("# ", ""))

    build = load_config(tmp_path / "perfgate.toml").build
    assert build is not None
    assert (build.python, build.path) == ("~/engine/bin/python", ("{tree}",))


@pytest.mark.parametrize("python", ["~/e {n}v/bin/python", "e {n}v/bin/python"])
def test_the_recipe_of_a_plugin_is_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """It asks the engine's own pip to install beside it, wherever the engine lies and whatever it is called."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(CACHE, str(tmp_path / "builds"))
    project = GitProject(tmp_path / "project")
    home = project.folder if python.startswith("e") else tmp_path
    engine = home / python.removeprefix("~/")
    engine.parent.mkdir(parents=True)
    engine.write_text('#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\nmkdir "$2"; cp -r "$3/pkg" "$2"\n')
    engine.chmod(0o755)
    project.write({"pkg/__init__.py": "one\n", "pyproject.toml": PLUGIN})
    init(project.folder, "--python", python)
    project.commit({})

    build = Builder(load_config(project.folder / "perfgate.toml"), lambda _: None)("main")
    assert (Path(build["path"][0]) / "pkg" / "__init__.py").read_text() == "one\n"
    assert build["python"] == str(engine)


def test_what_is_there_is_left_and_said(tmp_path: Path) -> None:
    """Nothing is overwritten; --force replaces all but .gitignore, which holds more than what is ours."""
    mine = {"perfgate.toml": "", ".gitignore": "x\n", "scenarios/cpu-tiny.yaml": "mine", WORKFLOWS[0]: ""}
    GitProject(tmp_path).write(mine)
    result = init(tmp_path)

    assert result.exit_code == 0
    for name, text in mine.items():
        assert f"left     {tmp_path / name} (there already)\n" in result.output
        assert (tmp_path / name).read_text() == text
    assert "(with /runs/ in .gitignore)" in result.output
    assert f"wrote    {tmp_path}/.github/perfgate-runner.md\n" in result.output

    forced = init(tmp_path, "--force")
    assert {name for name, text in mine.items() if (tmp_path / name).read_text() == text} == {".gitignore"}
    assert f"replaced {tmp_path}/perfgate.toml\n" in forced.output


def test_workflows_are_completed_later_as_long_as_nobody_touched_them(tmp_path: Path) -> None:
    """A placeholder that init left is filled by a second one; a file that was edited meanwhile is left."""
    init(tmp_path)
    edited = tmp_path / WORKFLOWS[0]
    edited.write_text(edited.read_text() + "# mine\n")
    result = init(tmp_path, "--action", ACTION)

    assert "0" * 40 in edited.read_text()
    filled = [name for name in WORKFLOWS if f"@{'1a' * 20} # " in (tmp_path / name).read_text()]
    assert filled == [name for name in WORKFLOWS[1:] if "deadline" not in name]
    assert "--action" not in result.output
    assert f"left     {edited} (there already)\n" in result.output


@pytest.mark.parametrize("words", [(), ("--action", ACTION, "--labels", "self-hosted,h200")])
def test_workflows_pass_the_linters(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As they are written they hold before zizmor and GitHub's schema, with and without the action's commit."""
    linters = [Path(sys.executable).with_name(name) for name in ("zizmor", "check-jsonschema")]
    if not all(linter.exists() for linter in linters):
        pytest.skip("zizmor and check-jsonschema come with the development group")
    init(tmp_path, *words)
    files = [str(tmp_path / name) for name in WORKFLOWS]

    for linter, options in zip(
        linters, (["--quiet", "--offline"], ["--builtin-schema", "vendor.github-workflows"]), strict=True
    ):
        ended = subprocess.run([linter, *options, *files], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_answers_stand_where_they_belong(tmp_path: Path) -> None:
    """Labels in workflows and on the runner's page, the interpreter in perfgate.toml, its environment in .gitignore."""
    init(tmp_path, "--labels", "self-hosted, h200", "--python", "envs/main/bin/python")
    job = YAML(typ="safe", pure=True).load(tmp_path / WORKFLOWS[0])["jobs"]["measure"]
    page = (tmp_path / ".github/perfgate-runner.md").read_text()

    assert (job["runs-on"], job["concurrency"]["group"]) == (["self-hosted", "h200"], "perfgate-h200")
    assert "`self-hosted, h200`" in page
    assert "`envs/main/bin/python`" in page
    assert "@" not in page
    said = tomllib.loads((tmp_path / "perfgate.toml").read_text())
    assert said["subjects"]["base"]["python"] == "envs/main/bin/python"
    assert (tmp_path / ".gitignore").read_text() == "/runs/\n/envs/main/\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--action", "me/perfgate@v1"), "40 hexadecimal digits"),
        (("--labels", "a b"), "is not allowed in a workflow"),
        (("--scenario", "cpu"), "expected one of cpu-tiny, llama-8b-decode"),
        (("--python", "a\nb"), "is not the path of an interpreter"),
        (("--pre-push",), "needs a git repository"),
    ],
)
def test_an_answer_that_cannot_be_writes_nothing(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    """It is a usage error, found before the first file."""
    result = init(tmp_path, *words)

    assert result.exit_code == ExitStatus.USAGE
    assert problem in result.output
    assert written(tmp_path) == []


def test_a_folder_within_a_repository_is_refused(tmp_path: Path) -> None:
    """GitHub reads workflows at the top only, and the command for there is said."""
    GitProject(tmp_path)
    result = init(tmp_path / "a" / "b")

    assert result.exit_code == ExitStatus.USAGE
    assert f"perfgate init {tmp_path}" in result.output


def test_a_file_in_a_folders_place_is_refused(tmp_path: Path) -> None:
    """Nothing is written where not everything can be."""
    (tmp_path / "scenarios").touch()
    result = init(tmp_path, "--force")

    assert result.exit_code == ExitStatus.USAGE
    assert "a folder is needed here, and there is a file" in result.output
    assert written(tmp_path) == ["scenarios"]


def test_a_terminal_is_asked_and_may_take_every_default(tmp_path: Path) -> None:
    """Four questions, each with its default; --yes asks none of them."""
    answers = ["cpu-tiny", "envs/mine/bin/python", "", ""]
    for words, name in (((), "envs/mine/bin/python"), (("--yes",), "~/engine/bin/python")):
        master, slave = pty.openpty()
        os.write(master, "".join(f"{answer}\n" for answer in answers).encode())
        command = [sys.executable, "-m", "perfgate", "init", "asked", "--force", *words]
        ended = subprocess.run(command, cwd=tmp_path, stdin=slave, capture_output=True, text=True, check=False)
        os.close(slave)
        os.close(master)

        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.count("]: ") == (0 if words else 4)
        assert load_config(tmp_path / "asked" / "perfgate.toml").subjects["base"]["python"].endswith(name.strip("~"))


@pytest.mark.parametrize(
    ("direct_url", "action"),
    [
        ({"url": "https://github.com/me/perfgate.git", "vcs_info": {"vcs": "git", "commit_id": "1a" * 20}}, ACTION),
        ({"url": "ssh://git@github.com/me/perfgate", "vcs_info": {"vcs": "git", "commit_id": "1a" * 20}}, ACTION),
        ({"url": "https://example.org/me/perfgate", "vcs_info": {"vcs": "git", "commit_id": "1a" * 20}}, ""),
        ({"url": "file:///perfgate", "dir_info": {}}, ""),
        (None, ""),
    ],
)
def test_the_action_is_what_perfgate_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, object] | None, action: str
) -> None:
    """Repository and commit are what pip keeps; another host, a folder, an index or a bare checkout is no action."""

    def absent(name: str) -> object:
        raise PackageNotFoundError(name)

    text = json.dumps(direct_url) if direct_url else None
    monkeypatch.setattr("perfgate.cli.init.distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert installed_action() == action
    monkeypatch.setattr("perfgate.cli.init.distribution", absent)
    assert installed_action() == ""


@pytest.mark.slow
def test_the_wheel_holds_the_templates(tmp_path: Path) -> None:
    """What pip installs can write everything that a checkout can."""
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = tmp_path.glob("*.whl")
    templates = ROOT / "perfgate" / "templates"

    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if name.startswith("perfgate/templates/")}
    assert held == {f"perfgate/templates/{name}": (templates / name).read_bytes() for name in written(templates)}

"""What stands around the measuring: the installation, the last job, and templates that fit the actions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from action_runner import ROOT, ActionRunner, job_step, read_yaml

TEMPLATES = ROOT / "perfgate" / "templates" / "github"
OK = {"result": "success", "outputs": {"verdict": "pass"}}


@pytest.mark.parametrize(("name", "extra"), [("requirements.txt", ""), ("requirements-history.txt", "history")])
def test_the_actions_lock(name: str, extra: str) -> None:
    """Every package that perfgate or its build needs is listed with its hashes, and no registry is named."""
    lines = (ROOT / ".github" / "actions" / name).read_text().split("\n")
    listed = {line.split("==")[0]: number for number, line in enumerate(lines) if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["dependency-groups"]["build"]]
    needed += project["project"]["optional-dependencies"][extra] if extra else []

    assert {re.split("[><=]", one)[0].replace(".", "-") for one in needed} <= set(listed)
    assert all("--hash=sha256:" in lines[number + 1] for number in listed.values())
    assert "://" not in "".join(lines)


BACKEND = """
import zipfile
def build_wheel(folder, *_):
    name = "perfgate-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for file, text in FILES.items():
            wheel.writestr(file, text)
        for file, text in {
            "METADATA": "Metadata-Version: 2.1\\nName: perfgate\\nVersion: 1\\n",
            "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
            "entry_points.txt": "[console_scripts]\\nperfgate=perfgate:main\\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"perfgate-1.dist-info/{file}", text)
    return name
"""
"""Packs a perfgate that imports a package of its lock."""


def _wheel(folder: Path, name: str, files: Mapping[str, str]) -> str:
    """Write a wheel, called by its distribution, version and build; its hash."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}py3-none-any.whl"
    project = name.partition("-")[0]
    meta = {"METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1\n", "RECORD": "",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    with zipfile.ZipFile(file, "w") as wheel:
        for one, text in {**files, **{f"{project}-1.dist-info/{key}": text for key, text in meta.items()}}.items():
            wheel.writestr(one, text)
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.slow
def test_installing_runs_nothing_of_the_change(tmp_path: Path) -> None:
    """Only files with the lock's hashes are installed, settings of pip and Python that lead elsewhere unheeded."""
    root, work, wheels, trap = (tmp_path / name for name in ("root", "work", "wheels", "trap"))
    actions = root / ".github" / "actions"
    actions.mkdir(parents=True)
    shutil.copy(ROOT / ".github" / "actions" / "install", actions)
    shutil.copy(ROOT / "action.yml", root)
    ours = {"perfgate/__init__.py": "def main():\n    import part\n    print(part.words)\n"}
    (root / "b.py").write_text(f"{BACKEND}FILES = {ours!r}\n")
    (root / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n')
    words, harm = "words = 'of the lock'\n", f"open({str(trap)!r}, 'a').write(__name__)\n"
    named = _wheel(wheels, "part-1-", {"part.py": words})
    other = _wheel(wheels, "part-1-2-", {"part.py": harm})  # the same version, which pip would prefer
    evil = _wheel(wheels, "evil-1-", {"evil.pth": f"import builtins; {harm}"})
    (actions / "requirements.txt").write_text(f"part==1 --hash=sha256:{named}\n")
    page = {"part-1-": named, "part-1-2-": other, "evil-1-": evil}
    links = (f'<a href="{name}py3-none-any.whl#sha256={digest}">{name}</a>' for name, digest in page.items())
    (wheels / "page.html").write_text("".join(links))
    work.mkdir()
    for name in ("venv", "ensurepip", "pip", "sitecustomize", "part", "b"):
        (work / f"{name}.py").write_text(harm)
    (work / "more.txt").write_text(f"evil==1 --hash=sha256:{evil}\n")
    (work / "pip.conf").write_text("[install]\nrequirement = more.txt\n")
    job = {
        "PIP_FIND_LINKS": str(wheels / "page.html"), "PIP_NO_INDEX": "1",
        "PIP_REQUIRE_HASHES": "0", "PIP_NO_BINARY": ":all:",
        "PIP_REQUIREMENT": str(work / "more.txt"), "PIP_TARGET": str(work), "PIP_CONFIG_FILE": str(work / "pip.conf"),
        "PYTHONPATH": str(work), "PYTHONSTARTUP": str(work / "part.py"), "PYTHONPYCACHEPREFIX": str(work),
    }  # fmt: skip
    runner = ActionRunner(root / "action.yml", tmp_path / "temp", work, job)

    runner.run()

    assert runner.steps["prepare"].log == "of the lock\n", runner.steps["install"].log
    assert not trap.exists(), trap.read_text()


@pytest.mark.parametrize(
    ("needs", "status", "said"),
    [
        ({"measure": OK}, 0, "ended well and gave a verdict"),
        ({"measure": OK | {"outputs": {"verdict": "inconclusive"}}}, 0, ""),
        ({"measure": OK, "more": {"result": "skipped", "outputs": {}}}, 10, "job more ended as skipped"),
        ({"measure": {"result": "cancelled", "outputs": {}}}, 10, "job measure ended as cancelled"),
        ({"measure": {"result": "failure", "outputs": {"verdict": "regressed"}}}, 10, "with verdict regressed"),
        ({"measure": {"result": "success", "outputs": {}}}, 10, "job measure gave no verdict"),
        ({"measure": OK | {"outputs": {"verdict": "regressed"}}}, 10, "green but its verdict is regressed"),
        ({}, 10, "no job is needed"),
        ("nonsense", 10, "no job is needed"),
    ],
)
def test_final(tmp_path: Path, needs: Any, status: int, said: str) -> None:
    """The required check is green only where every job that it needs ended well and gave a verdict."""
    action = ROOT / ".github" / "actions" / "final" / "action.yml"
    assert job_step(TEMPLATES / "perfgate.yml", "perfgate", "/.github/actions/final")["with"] == {
        "needs": "${{ toJSON(needs) }}"
    }
    runner = ActionRunner(action, tmp_path / "temp", tmp_path, {}, {"needs": json.dumps(needs)})

    runner.run()

    assert runner.steps["final"].status == status
    assert said in runner.steps["final"].log


def test_forks_stay_out_of_the_comments_queue() -> None:
    """Comments on one branch wait for each other; a fork's branch of that name runs nothing and has another queue."""
    job = read_yaml(TEMPLATES / "perfgate-comment.yml")["jobs"]["comment"]
    origin = "github.event.workflow_run.head_repository.full_name"

    assert job["if"] == f"{origin} == github.repository"
    assert job["concurrency"] == {
        "group": f"perfgate-comment-${{{{ {origin} }}}}-${{{{ github.event.workflow_run.head_branch }}}}",
        "cancel-in-progress": False,
    }


def test_templates_use_the_actions() -> None:
    """What the workflows give to our actions are inputs that these have, and what they take from them are outputs."""
    for file in TEMPLATES.glob("*.yml"):
        for job in read_yaml(file)["jobs"].values():
            for step in job.get("steps", ()):  # a job may be another workflow
                uses = step.get("uses", "").partition("@")[0]
                if uses.startswith("OWNER/perfgate"):
                    action = read_yaml(ROOT / uses.removeprefix("OWNER/perfgate").strip("/") / "action.yml")
                    assert set(step.get("with", {})) <= set(action["inputs"]), file


RUNS = """{"workflow_runs": [
 {"id": 7, "head_branch": "main", "head_repository": {"full_name": "me/it"}},
 {"id": 9, "head_branch": "main", "head_repository": {"full_name": "fork/it"}},
 {"id": 10, "head_branch": "main", "head_repository": null},
 {"id": 8, "head_branch": "main", "head_repository": {"full_name": "me/it"}}]}"""
"""As GitHub lists those of a branch: with pull requests of forks from one of that name, also of a fork that is gone."""
GH = f"""#!/bin/sh
case "$2$3" in
  repos/me/it--jq) echo main ;;
  --paginate*/actions/workflows?per_page=100*) printf '.github/workflows/perfgate%s.yml\\n' "" $KNOWN ;;
  --paginate*workflows/perfgate-fleet.yml/runs?branch=main*) echo 11 ;;
  --paginate*workflows/perfgate-nightly.yml/runs?branch=main*) jq "$5" <<'EOF'
{RUNS}
EOF
  ;;
  */actions/runs/11/artifacts*) echo 110 ;;
  */actions/runs/7/artifacts*) echo 70 ;;
  */actions/runs/8/artifacts*) echo 80; echo 81 ;;
  */actions/artifacts/81/zip*) exit 1 ;;
  */actions/artifacts/*/zip*) echo packed ;;
  *) echo "no answer to $*" >&2; exit 2 ;;
esac
"""
PERFGATE = """#!/bin/sh
if [ "$1" = --version ]; then exit 0; fi
echo "$@"
exit 21
"""


@pytest.mark.parametrize(
    ("known", "fetched"),
    [
        ("-nightly", ["7-70.zip", "8-80.zip", "8-81.zip"]),
        ("-fleet", ["11-110.zip"]),
        ("-nightly -fleet", ["11-110.zip", "7-70.zip", "8-80.zip", "8-81.zip"]),
        ("", []),
    ],
)
def test_the_history_action(tmp_path: Path, known: str, fetched: list[str]) -> None:
    """Every artifact of the repository's own nights on its default branch is fetched packed and given to perfgate, with
    what there is of baselines; one that cannot be fetched is told, and no data is no failure.
    """  # noqa: D205 (one sentence)
    programs, work, temp = (tmp_path / name for name in ("programs", "work", "temp"))
    programs.mkdir()
    (work / "heads").mkdir(parents=True)
    for name, text in (("gh", GH), ("perfgate", PERFGATE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    job = {"GITHUB_REPOSITORY": "me/it", "TOKEN": "t", "KNOWN": known, "PATH": f"{programs}:{os.environ['PATH']}"}
    inputs = {"output": str(tmp_path / "site"), "perfgate": str(programs / "perfgate")}
    runner = ActionRunner(ROOT / ".github" / "actions" / "history" / "action.yml", temp, work, job, inputs)

    ended = runner.run()

    nights = temp / "perfgate-nights"
    assert ended == "success", runner.steps
    assert sorted(file.name for file in nights.iterdir()) == fetched
    told = "::warning title=perfgate::the artifact 81 of run 8 could not be fetched" in runner.steps["fetch"].log
    assert told == ("-nightly" in known)
    assert runner.steps["history"].log.startswith(f"history {nights} heads --output {tmp_path / 'site'} --cache ")

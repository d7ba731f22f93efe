"""``perfgate bisect`` as it is called: what it refuses, and one step for ``git bisect run``."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from commit_line import CommitCollector, CommitLine
from perfgate_process import MARKED

from perfgate.cli.main import main
from perfgate.project.build import CACHE

PROGRAM = f"""{MARKED}
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from commit_line import CommitCollector
from perfgate.cli.main import main
main(obj=CommitCollector())
"""


def perfgate(*words: str, collector: CommitCollector | None = None) -> Result:
    """A command of perfgate with invented trials."""
    return CliRunner().invoke(main, words, obj=collector or CommitCollector())


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommitLine]:
    """Makes the repository that is the working directory."""
    monkeypatch.setenv(CACHE, str(tmp_path / "builds"))

    def made(*speeds: str) -> CommitLine:
        line = CommitLine(tmp_path / "project", speeds)
        monkeypatch.chdir(line.folder)
        return line

    return made


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--good", "HEAD~1"], "expected a scenario and --good"),
        (["scenario.yaml"], "expected a scenario and --good"),
        (["scenario.yaml", "--good", "HEAD"], "are the same commit"),
        (["scenario.yaml", "--good", "HEAD", "--bad", "HEAD~1"], "it is the other way round"),
        (["scenario.yaml", "--good", "HEAD~1", "--bad", "."], "not the working tree"),
        (["scenario.yaml", "--good", "nothing"], "there is no commit nothing"),
        (["scenario.yaml", "--good", "--output=x"], "does not name a commit"),
        (["scenario.yaml", "--good", "HEAD~1", "--base", "ref=main"], "--base names a ref"),
        (["scenario.yaml", "--good", "HEAD~1", "--metric", "ttft_median"], "no gate on ttft_median"),
        (["scenario.yaml", "--good", "HEAD~1", "--cell", "another"], "no cell another"),
        (["scenario.yaml", "--good", "HEAD~1", "--error", "1%"], "expected more than 1 %"),
        (["scenario.yaml", "--good", "HEAD~1", "--error", "5"], "with its % sign"),
        (["scenario.yaml", "--good", "HEAD~1", "--loss", "1%"], "--loss goes with --step"),
        (["scenario.yaml", "--good", "HEAD~1", "--base", "path=/tmp"], "every commit would be the same build"),
        (["nothing.yaml", "--good", "HEAD~1"], "nothing.yaml"),
        (["--resume", "latest"], "holds no bisect"),
        (["--resume", "latest", "--good", "HEAD~1"], "as it began"),
    ],
)
def test_what_cannot_be_searched_is_refused(lines: Callable[..., CommitLine], words: list[str], told: str) -> None:
    """With what is wrong, before anything is built; the exit status is that of usage."""
    line = lines("1", "1.01")
    ended = perfgate("bisect", *words)
    assert ended.exit_code == 2, ended.output
    assert told in ended.stderr
    assert line.made == []


def test_changes_that_are_not_committed_are_told_of(lines: Callable[..., CommitLine]) -> None:
    """They are not part of HEAD, and a search up to it says so."""
    line = lines("1", "1")
    line.project.write({"speed": "7\n"})
    ended = perfgate("bisect", "scenario.yaml", "--good", "HEAD~1", "--base", "python=/bin/true")
    assert ended.exit_code == 21
    assert "warning: changes that are not committed" in ended.stderr


def step(line: CommitLine, *words: str, good: int = 0) -> int:
    """The exit status of a single step."""
    return perfgate(
        "bisect", "--step", "scenario.yaml", "--good", line.commits[good], "--base", "python=/bin/true", *words,
        collector=CommitCollector(dies=("8",)),
    ).exit_code  # fmt: skip


def test_a_step_says_what_git_bisect_run_understands(lines: Callable[..., CommitLine]) -> None:
    """0 for as fast, 1 for slower, 125 for what cannot be built or run, and 128 where the commit is not to blame."""
    line = lines("1", "1", "1.01", "broken", "8")
    statuses = []
    for commit in line.commits[1:]:
        line.project.git("checkout", "--quiet", commit)
        statuses.append(step(line))
    assert statuses == [0, 1, 125, 125]

    assert step(line, good=3) == 128
    assert step(line, "--no-such-option") == 128
    assert step(line, "--metric", "nothing") == 128
    line.project.write({"speed": "1\n"})
    assert step(line) == 128


def test_the_margins_of_a_step_may_be_those_of_the_loss(lines: Callable[..., CommitLine]) -> None:
    """A commit that is slower by less than a third of what was lost is good, though the scenario's gate blocks it."""
    line = lines("1", "1.008")
    assert step(line) == 1
    assert step(line, "--loss", "3%") == 0


def test_git_bisect_run(lines: Callable[..., CommitLine]) -> None:
    """Git steers by single steps and names the commit."""
    line = lines("1", "1", "1.02")
    scenario = shutil.copytree(line.folder, line.folder.parent / "kept", ignore=shutil.ignore_patterns(".git"))
    words = [sys.executable, "-c", PROGRAM, "bisect", "--step", "--good", line.commits[0], "--base", "python=/bin/true",
             "--quiet", str(scenario / "scenario.yaml")]  # fmt: skip
    line.project.git("bisect", "start", line.commits[-1], line.commits[0])

    said = line.project.git("bisect", "run", "sh", "-c", shlex.join(words))

    assert f"{line.commits[2]} is the first bad commit" in said

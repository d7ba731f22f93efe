"""What README and docs show as a console session is run, and what they show of its output is what comes out.

A page runs from top to bottom in a copy of this repository with two environments, fakes in the place of engines:

* ```` ```console ```` blocks are sessions: ``$ command``, then its output. ``...`` is what varies: text or lines.
  A command without output may print anything. It ends with 0, or as its comment says: ``# exit 10``, ``exit 0 or 22``.
* ``<!-- file: NAME -->`` before a block of another language puts it into that file.
* ``<!-- not run: REASON -->`` before a session leaves it out.
"""

from __future__ import annotations

import contextlib
import glob
import io
import itertools
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_collector import FakeCollector, FakeSpec
from git_project import SETTINGS, GitProject
from stub_engine import bare_python

import perfgate.project.build  # noqa: F401 (it keeps its own name of what is replaced for `perfgate clean`)
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.metrics.trial import Trial

ROOT = Path(__file__).parents[2]
DOCS = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", ".github/runner/README.md", *DOCS)
DATA = {"yaml", "toml", "json", "python", "ini", "bash", "mermaid"}
"""Languages of blocks that are shown, not run; other tests read most of them."""
MEASURED = "docs/measurements.md"
"""Its sessions took GPUs or many minutes each."""
NOT_RUN = 11
"""At most so many sessions of the other pages are not run."""
SHELL = str(shutil.which("bash"))
COPIED = ("scenarios", "tests/fixtures", "drills")
CONFIG = """[build]
python = "envs/main/bin/python"
path = "{tree}"
[subjects]
base.python = "envs/main/bin/python"
head.python = "envs/head/bin/python"
"""
SAME, SLOWER = FakeSpec(restart_sd=0.002), FakeSpec(restart_sd=0.002, head_ratio={"step": 1.6})
FENCE = re.compile(r"(?ms)^(?:<!-- ([^:\n]+): (.+?) -->\n)?```([^\n]*)\n(.*?)^```$")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, in which language, and what the comment before it says."""

    page: str
    line: int
    mark: str
    said: str
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start(3)) + 1
        yield Block(page, line, found[1] or "", found[2] or "", found[3], found[4])


def commands(session: str) -> list[tuple[str, str]]:
    """The commands of a session, each with the output that is shown of it."""
    parts = re.split(r"(?m)^\$ (.*)\n", session)
    assert not parts[0], f"a session begins with a command, not with {parts[0]!r}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def statuses(command: str) -> set[int]:
    """The exit statuses that the comment of a command allows."""
    said = re.search(r"#.*\bexit (\d+(?: or \d+)*)", command)
    return {int(status) for status in said[1].split(" or ")} if said else {0}


def pattern(shown: str) -> re.Pattern[str]:
    """What matches the output that is shown, ``...`` for whatever varies."""
    lines = (re.escape(line.rstrip()).replace(re.escape("..."), ".*") + "\n" for line in shown.splitlines())
    return re.compile("".join("(?:.*\n)*" if line == ".*\n" else line for line in lines))


class Stream(io.TextIOBase):
    """One of the two streams of a terminal: what is written to either is on the screen in order."""

    def __init__(self, screen: list[str], *, terminal: bool) -> None:
        self._screen, self._terminal = screen, terminal

    def write(self, text: str) -> int:
        """Show it."""
        self._screen.append(text)
        return len(text)

    def isatty(self) -> bool:
        """Whether reports are shown as on a terminal, or progress as in a log."""
        return self._terminal


class Rehearsed(FakeCollector):
    """A fake whose head is slower where a plant is put on it."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Invent a trial of the build that the subject names."""
        self.spec = SLOWER if any("drills" in folder for folder in job.subject.path) else SAME
        return super().collect(job, progress)


def in_process(words: list[str]) -> tuple[int, str]:
    """What perfgate ends with and shows on a terminal, in this process."""
    screen: list[str] = []
    streams = Stream(screen, terminal=True), Stream(screen, terminal=False)
    with (
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        pytest.raises(SystemExit) as end,
    ):
        main(words, prog_name="perfgate")
    return int(end.value.code or 0), "".join(screen)


def shell(command: str) -> tuple[int, str]:
    """What the shell ends with and shows."""
    ended = subprocess.run([SHELL, "-uc", command], stdout=-1, stderr=subprocess.STDOUT, text=True, check=False)
    return ended.returncode, ended.stdout


def ran(command: str) -> tuple[int, str]:
    """Run one command as a shell would: perfgate here, unless a redirection or pipe is for the shell."""
    words = shlex.split(os.path.expandvars(command), comments=True)
    if words[0] != "perfgate" or {">", "|", "&&"} & {*words}:
        return shell(command)
    spread = ((sorted(glob.glob(word)) or [word]) if "*" in word else [word] for word in words[1:])  # noqa: PTH207
    return in_process([word for some in spread for word in some])


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the pages use of this repository, with two environments, and a home of its own."""
    folder = tmp_path / "perfgate"
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    for environment in (folder / "envs/main", folder / "envs/head", tmp_path / "engine"):
        bare_python(environment)
    project = GitProject(folder)
    project.commit({"perfgate.toml": CONFIG, ".gitignore": "/runs/\n/envs/\n"})
    project.git("tag", "v0.9.0")
    for name, value in (SETTINGS | {"HOME": str(tmp_path), "COLUMNS": "140"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setattr("perfgate.capture.session.EngineCollector", Rehearsed)
    monkeypatch.setattr("perfgate.doctor.preflight.locate", lambda *_: "no engine is in this environment")
    for search in ("end_orphans", "find_orphans"):  # it would end those of other tests
        monkeypatch.setattr(f"perfgate.machine.orphans.{search}", tuple)
    numbers = itertools.count()  # names of runs begun in one second are in order, so that latest is the last of them
    monkeypatch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "console" for b in blocks(page))])
def test_sessions(page: str, clone: Path) -> None:
    """Every session of a page ends as it says, and prints what it shows."""
    for block in blocks(page):
        if block.mark == "file":
            (clone / block.said).parent.mkdir(parents=True, exist_ok=True)
            (clone / block.said).write_text(block.text, encoding="utf-8")
        if block.language != "console" or block.mark == "not run":
            continue
        for command, shown in commands(block.text):
            status, screen = ran(command)
            place = f"{page}:{block.line}: $ {command}\n{screen}"
            assert status in statuses(command), f"{place}ended with {status}"
            assert not shown or pattern(shown).fullmatch(re.sub(r"[ \t]+$", "", screen, flags=re.MULTILINE)), place


def test_every_block_has_a_language() -> None:
    """A block is a session or data: none is out of sight because it has no language."""
    strange = [f"{b.page}:{b.line}" for page in PAGES for b in blocks(page) if b.language not in DATA | {"console"}]
    assert strange == []


def test_sessions_that_are_not_run_say_why() -> None:
    """A session is left out for a GPU, GitHub, root or minutes of work, and there are few of these."""
    left = [block for page in PAGES for block in blocks(page) if block.mark == "not run"]
    assert sum(block.page != MEASURED for block in left) <= NOT_RUN
    assert [f"{block.page}:{block.line}" for block in left if len(block.said.split()) < len(("a", "reason"))] == []
    marks = {block.mark for page in PAGES for block in blocks(page)}
    assert marks <= {"", "file", "not run"}


@pytest.mark.parametrize(
    ("shown", "screen", "same"),
    [
        ("a\n", "a\n", True), ("a\n", "b\n", False), ("a\n", "a\nb\n", False), ("a\n...\n", "a\nb\nc\n", True),
        ("a ... c\n", "a b c\n", True), ("a ... c\n", "a\nc\n", False), ("a.c\n", "abc\n", False),
    ],
)  # fmt: skip
def test_what_is_shown_is_compared(shown: str, screen: str, same: bool) -> None:  # noqa: FBT001 (a value of the table)
    """Lines must be equal but for ``...``, which is anything within a line, or any lines."""
    assert bool(pattern(shown).fullmatch(screen)) is same

"""Git repositories for tests: made, committed to and looked at without the user's own settings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org",
    "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.org",
}  # fmt: skip


class GitProject:
    """A repository with a branch ``main``.

    Args:
        folder: Its working tree, made here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str, told: str | None = None) -> str:
        """What a git command printed that was told something, without the last line's end."""
        command = ["git", "-C", str(self.folder), *words]
        environment = {**os.environ, **SETTINGS}
        ended = subprocess.run(command, env=environment, input=told, capture_output=True, text=True, check=True)
        return ended.stdout.removesuffix("\n")

    def write(self, files: Mapping[str, str]) -> None:
        """Put files into the working tree."""
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def commit(self, files: Mapping[str, str]) -> str:
        """Commit files, and everything else that lies there; the full hash."""
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def import_commits(self, several: Sequence[Mapping[str, str]]) -> None:
        """Commit files of ASCII text to ``main`` several times, which takes no longer than once."""
        lines: list[str] = []
        for files in several:
            first = "" if lines else "from refs/heads/main^0\n"
            lines.append(f"commit refs/heads/main\ncommitter t <t@example.org> now\ndata 8\na change\n{first}")
            lines += [f"M 100644 inline {name}\ndata {len(text)}\n{text}\n" for name, text in files.items()]
        self.git("fast-import", "--quiet", "--date-format=now", told="".join(lines))
        self.git("reset", "--quiet", "--hard")

    def state(self) -> tuple[str, ...]:
        """Everything of the user's that perfgate must leave alone: status, index, stash, refs, worktree."""
        looks = ("status --porcelain", "ls-files --stage", "stash list", "for-each-ref", "diff", "log --all --oneline")
        index = (self.folder / ".git" / "index").read_bytes().hex()
        return index, *(self.git(*look.split()) for look in looks)

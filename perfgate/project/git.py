"""A git repository as builds need it: which commit is meant, what the working tree holds, and worktrees.

Nothing of the user's is touched: neither index, stash, branches nor the working tree, and no hook of theirs is run.
Objects are added (the snapshot of uncommitted changes), which git removes by itself once nothing names them.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from perfgate.errors import NotMeasuredError, PerfgateError, UsageError
from perfgate.machine.cleanup import remove_tree
from perfgate.models import Frozen
from perfgate.scenario.subject import SHOWN, Revision
from perfgate.scenario.subject_words import WORKING_TREE

TITLE = 72
"""Characters of a commit's first line that are kept; git's own advice is to write no more."""

UNSHALLOW = "Fetch the whole history: git fetch --unshallow, or fetch-depth: 0 in actions/checkout."
"""What to do where a clone ends before the commits that are asked for."""

_OF_ANOTHER_REPOSITORY = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE",
)  # fmt: skip
"""git's variables that name one repository, which hooks have set: with them ``git -C FOLDER`` reads another one."""
_NO_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
"""Arguments of git with which it starts none of the programs that the repository's configuration names, but filters."""

_NO_FETCH = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}
"""Variables with which git fetches nothing; since 2.44 it then says what is missing instead of failing."""


class Snapshot(Revision):
    """A revision that can be checked out.

    Args:
        snapshot: Full hash of the commit to check out: ``commit``, or one made of the changes on top of it.
    """

    snapshot: str

    @classmethod
    def of(cls, ref: str, commit: str) -> Snapshot:
        """A commit without changes."""
        return cls(ref=ref, commit=commit, changes="", snapshot=commit)


def plain_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """``variables`` without those by which git hooks point at one repository."""
    return {name: value for name, value in variables.items() if name not in _OF_ANOTHER_REPOSITORY}


class Commit(Frozen):
    """One commit of a line of history.

    Args:
        commit: Full hash.
        parents: Full hashes, that of the line first.
        title: First line of its message, at most 72 characters of it.
    """

    commit: str
    parents: tuple[str, ...]
    title: str


class NoRepositoryError(UsageError):
    """A folder is in no working tree."""


class NoGitError(NoRepositoryError):
    """There is no git on PATH."""


class Git:
    """git in a folder: on the folder's own repository, in English, and without the hooks that it configures.

    Args:
        folder: Where.
        fetches: Whether git may fetch what a partial clone lacks: by the programs that the repository's configuration
            names, which may have come with it.
    """

    def __init__(self, folder: Path, *, fetches: bool = True) -> None:
        self.folder = folder
        # Without optional locks, git leaves the user's index as it is, also where it could refresh it.
        self.variables = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"} | ({} if fetches else _NO_FETCH)

    def having(self, **variables: str) -> Self:
        """The same with further variables in git's environment."""
        git = copy.copy(self)
        git.variables = self.variables | variables
        return git

    def ask(self, *words: str, text: str = "", settings: Sequence[str] = _NO_HOOKS) -> subprocess.CompletedProcess[str]:
        """Run git, whatever it ends with; line ends are as they were written.

        Args:
            words: The subcommand and its arguments.
            text: What git reads from stdin.
            settings: Arguments before the subcommand.

        Raises:
            NoGitError: There is no git.
        """
        ended = self._ended(words, text, settings)
        return subprocess.CompletedProcess(ended.args, ended.returncode, _text(ended.stdout), _text(ended.stderr))

    def run(self, *words: str, text: str = "") -> str:
        """What git prints; for its arguments see :meth:`ask`, for errors :meth:`content`."""
        return _text(self.content(*words, text=text))

    def content(self, *words: str, text: str = "") -> bytes:
        """What git prints, byte for byte; for its arguments see :meth:`ask`.

        Raises:
            PerfgateError: git failed; :class:`UsageError` where the user asked for what is not there.
        """
        ended = self._ended(words, text, _NO_HOOKS)
        if ended.returncode:
            raise self._failed(f"git {words[0]} ended with {ended.returncode}: {_text(ended.stderr).strip()}")
        return ended.stdout

    def _ended(self, words: Sequence[str], text: str, settings: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 (git, with words of ours and commits that were checked)
                ["git", "-C", str(self.folder), *settings, *words],  # noqa: S607 (the user's own git)
                env=plain_environment(os.environ) | self.variables,
                input=text.encode(errors="surrogateescape"), capture_output=True, check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise NoGitError("git not found", where=str(self.folder), remedy="Install git.") from error

    def commit(self, ref: str) -> str:
        """The full hash of a commit; empty where the repository has none of this name."""
        ended = self.ask("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return "" if ended.returncode else ended.stdout.strip()

    def names(self, command: str, *words: str) -> list[str]:
        """The names of files that a command of git lists with ``-z``; for errors see :meth:`run`."""
        return list(filter(None, self.run(command, "-z", *words).split("\0")))

    def check_out(self, commit: str, tree: Path) -> None:
        """Make a worktree of a commit in a new folder; one that is registered there and gone is replaced.

        Raises:
            PerfgateError: With git's words.
        """
        # Forced twice: a kill in the middle of an earlier one left it registered, and locked as well.
        self.run("worktree", "add", "--force", "--force", "--detach", str(tree), commit)

    def _failed(self, text: str) -> PerfgateError:
        return UsageError(text, where=str(self.folder))


class Repository(Git):
    """A git repository with a working tree, whose top is its folder; what git fails at is a failed build.

    Args:
        folder: A folder in the working tree.

    Raises:
        UsageError: git is not there, or the folder is in no working tree.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        ended = self.ask("rev-parse", "--show-toplevel")
        if ended.returncode or not ended.stdout.strip():
            reason = (ended.stderr.strip().splitlines() or ["git says nothing"])[-1]
            raise NoRepositoryError(
                f"not inside a git working tree: {reason}",
                where=str(folder),
                remedy="Run perfgate in one, or name it in perfgate.toml: [build] repository = ...",
            )
        self.folder = Path(ended.stdout.removesuffix("\n"))

    def find(self, ref: str, left_out: Sequence[Path] = ()) -> Snapshot:
        """What a ref means now.

        Args:
            ref: A branch, tag or commit; ``A...B`` for the merge base of the two, of HEAD where one is left out; ``.``
                for the working tree with its uncommitted changes.
            left_out: Folders whose content is not a change: what perfgate itself writes into the working tree.

        Raises:
            UsageError: There is no such commit, or no merge base.
            NotMeasuredError: ``build-failed``: git could not read the working tree.
        """
        if ref == WORKING_TREE:
            return self._working_tree(left_out)
        ends = [end or "HEAD" for end in ref.split("...", 1)]
        commit = self._merge_base(*ends) if len(ends) > 1 else self._known(ref)
        return Snapshot.of(ref if len(ends) == 1 else f"merge base of {' and '.join(ends)}", commit)

    def title(self, commit: str) -> str:
        """The first line of a commit's message, at most 72 characters of it."""
        return _title(self.run("show", "--no-patch", "--no-show-signature", "--format=%s", commit))

    def line(self, good: str, bad: str) -> list[Commit]:
        """The commits from one to another by first parents: merges count as one commit each, the good one is the first.

        Raises:
            UsageError: There is no such commit, they are the same, or the good one is not on the line of the bad one.
        """
        ends = [self._known(ref) for ref in (good, bad)]
        if ends[0] == ends[1]:
            raise UsageError(f"{good} and {bad} are the same commit, {ends[0][:SHOWN]}", where=str(self.folder))
        if self.ask("merge-base", "--is-ancestor", *ends).returncode:
            raise self._no_ancestor(good, bad, ends)
        text = self.run("log", "--first-parent", "--reverse", "--no-show-signature", "--format=%H%x00%P%x00%s",
                        f"{ends[0]}..{ends[1]}")  # fmt: skip
        rows = [line.split("\0", 2) for line in text.split("\n") if line]
        commits = [Commit(commit=commit, parents=tuple(of.split()), title=_title(title)) for commit, of, title in rows]
        before = commits[0].parents[0] if commits and commits[0].parents else ""
        if before != ends[0]:
            raise UsageError(
                f"{good} is in the history of {bad}, but not on its line of first parents: it came in by a merge",
                where=str(self.folder),
                remedy=f"Name a commit of that line, like {before[:SHOWN]}: git log --first-parent {ends[1][:SHOWN]}.",
            )
        return [Commit(commit=ends[0], parents=(), title=self.title(ends[0])), *commits]

    @property
    def has_changes(self) -> bool:
        """Whether tracked files of the working tree differ from HEAD."""
        return bool(self.run("status", "--porcelain", "--untracked-files=no").strip())

    def _no_ancestor(self, good: str, bad: str, ends: Sequence[str]) -> UsageError:
        text = f"{good} is not an ancestor of {bad}"
        common = self.ask("merge-base", *ends).stdout.strip()
        remedy = f"Name an ancestor: their merge base is {common[:SHOWN]}." if common else "They share no commit."
        if self._shallow:
            text, remedy = f"{text} in this shallow clone", UNSHALLOW
        elif common == ends[1]:
            text += ": it is the other way round"
            remedy = (
                f"For what became faster name them as they are in time: --good {bad} --bad {good} finds a loss only."
            )
        return UsageError(text, where=str(self.folder), remedy=remedy)

    @property
    def _shallow(self) -> bool:
        return self.run("rev-parse", "--is-shallow-repository").strip() == "true"

    def hook(self, name: str) -> Path:
        """Where git looks for a hook of this working tree, whatever ``core.hooksPath`` says.

        Raises:
            UsageError: It is looked for outside this repository: hooks there serve other repositories too.
        """
        named = self.ask("rev-parse", "--git-path", f"hooks/{name}", settings=()).stdout.strip()
        path = Path(os.path.normpath(self.folder / named))
        shared = self.folder / self.run("rev-parse", "--git-common-dir").strip()
        if not any(path.is_relative_to(os.path.normpath(folder)) for folder in (self.folder, shared)):
            raise UsageError(
                f"hooks lie outside this repository: {path.parent}",
                where=str(self.folder),
                remedy="core.hooksPath says so. For hooks of its own: git config --local core.hooksPath .githooks",
            )
        return path

    def _known(self, ref: str) -> str:
        if not ref or ref.startswith("-") or not ref.isprintable():
            raise UsageError(f"{ref!r} does not name a commit")
        if commit := self.commit(ref):
            return commit
        near = next(filter(self.commit, (f"{remote}/{ref}" for remote in self.run("remote").split())), None)
        here = self.ask("symbolic-ref", "--quiet", "--short", "HEAD").stdout.strip()
        branch = f"The branch here is {here}; " if here and here != ref else ""
        remedy = f"There is {near}." if near else f"{branch}git branch --all and git tag list what there is."
        raise UsageError(f"there is no commit {ref}", where=str(self.folder), remedy=remedy)

    def _merge_base(self, base: str, head: str) -> str:
        ended = self.ask("merge-base", self._known(base), self._known(head))
        if not ended.returncode:
            return ended.stdout.strip()
        in_clone, remedy = (" in this shallow clone", UNSHALLOW) if self._shallow else ("", "")
        text = f"{base} and {head} have no commit in common{in_clone}"
        raise UsageError(text, where=str(self.folder), remedy=remedy)

    def _working_tree(self, left_out: Sequence[Path]) -> Snapshot:
        head = self._known("HEAD")
        tree = self._written_tree(left_out)
        if tree == self.run("rev-parse", f"{head}^{{tree}}").strip():
            return Snapshot.of("HEAD", head)
        return self.again("working tree", head, tree)

    def again(self, ref: str, commit: str, changes: str) -> Snapshot:
        """A revision found earlier, of the objects that are still there, by the full hashes of commit and changed tree.

        Raises:
            NotMeasuredError: ``build-failed``: the repository no longer has them, or never did.
        """
        for thing in filter(None, (commit, changes)):
            if self.ask("cat-file", "-e", thing).returncode:
                what = "changes" if thing == changes else "commit"
                text = f"the repository does not have the {what} {thing[:SHOWN]} (any more)"
                raise NotMeasuredError(text, where=str(self.folder), code="build-failed")
        if not changes:
            return Snapshot.of(ref, commit)
        when = self.run("show", "--no-patch", "--no-show-signature", "--format=%cI", commit).strip()
        made_by = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "perfgate"), ("EMAIL", "perfgate@localhost"), ("DATE", when))
        }  # the same changes are the same commit, whoever asks and whenever
        git = self.having(**made_by)
        snapshot = git.run("commit-tree", changes, "-p", commit, "-m", "perfgate: uncommitted changes").strip()
        return Snapshot(ref=ref, commit=commit, changes=changes, snapshot=snapshot)

    def _written_tree(self, left_out: Sequence[Path]) -> str:
        """The tree that committing everything now would make: tracked files and new ones that are not ignored.

        It is made in a copy of the index. The copy keeps the time of the original, by which git knows which entries
        it must read again.
        """
        index = Path(self.run("rev-parse", "--absolute-git-dir").removesuffix("\n")) / "index"
        with tempfile.TemporaryDirectory(prefix="perfgate-") as scratch:
            if index.exists():
                shutil.copy2(index, Path(scratch) / "index")
            git = self.having(GIT_INDEX_FILE=f"{scratch}/index")
            written = [folder.resolve() for folder in left_out]
            # Not git add: it fails where a folder that is left out is also ignored. Files that became folders go with
            # those that are gone, else git neither removes them nor lists what is in the folder.
            gone = _listed(git, written, "--deleted")
            gone += filter(self._became_folder, _listed(git, written, "--modified"))
            _update(git, "--force-remove", gone)
            _update(git, "--add", _listed(git, written, "--modified", "--others", "--exclude-standard"))
            return git.run("write-tree").strip()

    def _became_folder(self, name: str) -> bool:
        path = self.folder / name
        return path.is_dir() and not path.is_symlink() and not (path / ".git").exists()  # .git: a submodule

    def _failed(self, text: str) -> PerfgateError:
        return NotMeasuredError(text, where=str(self.folder), code="build-failed")


def _text(printed: bytes) -> str:
    """What git printed, names of any bytes included. Python's text mode would make carriage returns line ends."""
    return printed.decode(errors="surrogateescape")


def _title(text: str) -> str:
    """A commit's first line as every record can hold it: a message may hold bytes that are not UTF-8."""
    return text.strip()[:TITLE].encode(errors="replace").decode()


def _listed(git: Git, left_out: Sequence[Path], *which: str) -> list[str]:
    """Files of the working tree by ``git ls-files``; a repository within this one (``name/``) is none of them."""
    top = git.folder.resolve()
    names = (name for name in dict.fromkeys(git.names("ls-files", *which)) if not name.endswith("/"))
    return [name for name in names if not any((top / name).is_relative_to(folder) for folder in left_out)]


def _update(git: Git, how: str, names: Sequence[str]) -> None:
    git.run("update-index", "-z", "--replace", how, "--stdin", text="".join(f"{name}\0" for name in names))


def remove_worktree(tree: Path, repository: Path) -> None:
    """Take a worktree away, and its registration where its repository is still there.

    Raises:
        OSError: The folder cannot be removed.
    """
    git = Git(repository)
    with contextlib.suppress(NoGitError):
        git.ask("worktree", "remove", "--force", "--force", str(tree))  # what it left goes below
    if tree.exists():
        remove_tree(tree)
    with contextlib.suppress(NoGitError):
        git.ask("worktree", "prune")  # git does so itself in time

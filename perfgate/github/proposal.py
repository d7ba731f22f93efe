"""A pull request with new baselines, made through the API: no job needs git's credentials on its disk for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfgate.errors import UsageError
from perfgate.github.api import Api, ApiError, PullRequest
from perfgate.project.git import Git

BRANCH = "perfgate/baselines"  # of the pull request; it holds one proposal alone, so an older one is replaced


@dataclass(frozen=True)
class Proposal:
    """What is proposed."""

    base: str  # the branch it aims at
    title: str  # of the pull request and its commit
    body: str  # markdown


class _Object(BaseModel):
    sha: str


class _Commit(BaseModel):
    tree: _Object


def propose(api: Api, repository: str, tree: Path, paths: Sequence[str], proposal: Proposal) -> str:
    """Put what changed below some paths of a working tree into a pull request; returns what was done, in words.

    Args:
        api: With a token that may write contents and pull requests.
        repository: ``owner/name``.
        tree: A checkout of the branch aimed at.
        paths: Files and folders in it.
        proposal: Where it goes and what it says.

    Raises:
        UsageError: ``tree`` is not a checkout, or a file that changed is not text.
        ApiError: GitHub refused.
    """
    changed = changed_files(tree, paths)
    if not changed:
        return f"nothing changed in {', '.join(paths)}: nothing to propose"
    root = f"/repos/{repository}"
    head = Git(tree).run("rev-parse", "HEAD").strip()
    entries = [_entry(api, root, tree, name) for name in changed]
    base_tree = api.get(_Commit, f"{root}/git/commits/{head}").tree.sha
    made = api.make(_Object, f"{root}/git/trees", {"base_tree": base_tree, "tree": entries}).sha
    content = {"message": proposal.title, "tree": made, "parents": [head]}
    commit = api.make(_Object, f"{root}/git/commits", content).sha
    _point(api, root, BRANCH, commit)
    owner = repository.partition("/")[0]
    text = {"title": proposal.title, "body": proposal.body}
    page, names = f"{root}/pulls", ", ".join(changed)
    for request in api.pages(PullRequest, page, head=f"{owner}:{BRANCH}", state="open", base=proposal.base):
        api.send("PATCH", f"{page}/{request.number}", text)
        return f"pull request {request.number} now proposes {names}"
    request = api.make(PullRequest, page, {**text, "head": BRANCH, "base": proposal.base})
    return f"pull request {request.number} proposes {names}"


def changed_files(tree: Path, paths: Sequence[str]) -> list[str]:
    """Files below the paths that are not as in HEAD, new and deleted ones too, sorted.

    Raises:
        UsageError: ``tree`` is not a checkout.
    """
    git = Git(tree)
    changed = git.names("diff", "--name-only", "--no-renames", "HEAD", "--", *paths)
    return sorted({*changed, *git.names("ls-files", "--others", "--exclude-standard", "--", *paths)})


def _entry(api: Api, root: str, tree: Path, name: str) -> dict[str, Any]:
    """A file as the tree has it; without a digest it is deleted."""
    file = tree / name
    entry: dict[str, Any] = {"path": name, "mode": "100644", "type": "blob", "sha": None}
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise UsageError("not a plain file", where=name)
    if file.exists():
        try:
            text = file.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UsageError("not text", where=name) from error
        entry["sha"] = api.make(_Object, f"{root}/git/blobs", {"content": text, "encoding": "utf-8"}).sha
    return entry


def _point(api: Api, root: str, branch: str, commit: str) -> None:
    try:
        api.send("GET", f"{root}/git/ref/heads/{branch}")
    except ApiError as error:
        if error.status != 404:  # noqa: PLR2004 (not found)
            raise
        api.send("POST", f"{root}/git/refs", {"ref": f"refs/heads/{branch}", "sha": commit})
        return
    api.send("PATCH", f"{root}/git/refs/heads/{branch}", {"sha": commit, "force": True})

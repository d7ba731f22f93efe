"""What git has of baselines beside their newest files: lineages that were removed, cut or begun anew."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from perfgate.baseline.lineage import FORMAT
from perfgate.errors import PerfgateError
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.json_text import BASELINE
from perfgate.project.git import Git, NoGitError

FORMATTED = f'"format": "{FORMAT.partition("/")[0]}/'  # what every baseline's file says of itself
MOST_VERSIONS = 20_000  # of all files of a source; a promotion a night for fifty years
AT_ONCE = 16
MOST_NAMED = 10  # of versions that git does not give: a partial clone may lack all of them
_DIGEST = re.compile(r'"(?:digest|tip)": "([0-9a-f]{64})"')
_TIP = re.compile(r'"tip": "([0-9a-f]{64})"\s*}\s*$')
_CHANGE = re.compile(r":\d+ \d+ ([0-9a-f]{40,64}) ([0-9a-f]{40,64}) \w+\0([^\0]*)\0")


@dataclass(frozen=True)
class Version:
    """A file as it was at some commit."""

    path: str  # of the file, in its repository
    blob: str  # what git calls its content
    text: str  # all of it

    @property
    def digest(self) -> str:
        """What it is known by."""
        return f"git {self.blob}"


def entries_in(text: str) -> frozenset[str]:
    """The digests of the entries that the text of a baseline names."""
    return frozenset(_DIGEST.findall(text))


def versions(path: Path, known: AbstractSet[str]) -> Iterator[Version | str]:
    """Versions that hold an entry which no newer one does, the newest first; why others are not read, in words.

    Args:
        path: A folder or a file, perhaps of a repository.
        known: The digests of entries that were read, and of broken files that are there now. It is asked before each
            version, so the caller adds those of a version once that could be read: a broken one hides no older one.
    """
    git = Git(path if path.is_dir() else path.parent, fetches=False)
    try:
        if git.ask("rev-parse", "--git-dir").returncode or not git.commit("HEAD"):
            return
        if git.run("rev-parse", "--is-shallow-repository").strip() == "true":
            yield "a shallow clone: what its baselines held before is not read (fetch-depth: 0)"
        listed = git.run("log", "--no-show-signature", "--no-renames", "--no-ext-diff", "--raw", "-z", "--no-abbrev",
                         "--format=", "--", "." if path.is_dir() else path.name)  # fmt: skip
    except NoGitError:
        yield "its git history is not read: there is no git on PATH"
        return
    except PerfgateError as error:
        yield f"its git history is not read: {error.text}"
        return
    blobs = {blob: name for old, new, name in _CHANGE.findall(listed) if name.endswith(".json")
             for blob in (new, old) if blob.strip("0")}  # fmt: skip
    if len(blobs) > MOST_VERSIONS:
        yield f"has {len(blobs)} versions in git; the newest {MOST_VERSIONS} are read"
    yield from _read_of(git, dict([*blobs.items()][:MOST_VERSIONS]), known)


def _read_of(git: Git, blobs: Mapping[str, str], known: AbstractSet[str]) -> Iterator[Version | str]:
    names, lost = [*blobs], 0
    for begin in range(0, len(names), AT_ONCE):
        for blob, text, problem in _contents(git, names[begin : begin + AT_ONCE]):
            tip = _TIP.search(text[-200:])
            if problem:
                lost += 1
                if lost <= MOST_NAMED:
                    yield f"{blobs[blob]} at {blob[:12]} in git is not read: {problem}"
            elif FORMATTED in text and not {tip[1] if tip else "", sha256_hex(text)} & known:
                yield Version(blobs[blob], blob, text)
    if lost > MOST_NAMED:
        yield f"{lost} versions in git are not read, of which the first {MOST_NAMED} are named"


def _contents(git: Git, blobs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """The text of each blob and why git does not give it; nothing of one that no baseline can be so large as."""
    try:
        read = [*_read(git, blobs)]
    except PerfgateError as error:  # git ends at the first that it cannot read, and does not say where it was
        if len(blobs) > 1:
            for blob in blobs:
                yield from _contents(git, [blob])
            return
        read = [(blobs[0], "", error.text)]
    yield from read


def _read(git: Git, blobs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    small = []
    for line in git.run("cat-file", "--batch-check", text="".join(f"{blob}\n" for blob in blobs)).splitlines():
        blob, *kind = line.split()
        if kind == ["missing"]:
            yield blob, "", "this repository does not have it"
        elif kind[0] == "blob" and int(kind[1]) <= BASELINE.mib << 20:
            small.append(blob)
    rest = git.content("cat-file", "--batch", text="".join(f"{blob}\n" for blob in small))
    for blob in small:
        heading, _, rest = rest.partition(b"\n")
        size = int(heading.rpartition(b" ")[2])
        yield blob, rest[:size].decode(errors="replace"), ""
        rest = rest[size + 1 :]

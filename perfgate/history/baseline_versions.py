"""What git has of baselines beside their newest files: lineages that were removed, cut or begun anew."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.baseline.lineage import FORMAT
from perfgate.errors import PerfgateError
from perfgate.machine.json_text import BASELINE
from perfgate.machine.versioned_json import read_bytes
from perfgate.project.git import Git, NoGitError

FORMATTED = f'"format": "{FORMAT.partition("/")[0]}/'
"""What every baseline's file says of itself."""
MOST_VERSIONS = 20_000
"""Of all files of a source; a promotion a night for fifty years."""
AT_ONCE = 16
_DIGEST = re.compile(r'"(?:digest|tip)": "([0-9a-f]{64})"')
_TIP = re.compile(r'"tip": "([0-9a-f]{64})"\s*}\s*$')
_CHANGE = re.compile(r":\d+ \d+ ([0-9a-f]{40,64}) ([0-9a-f]{40,64}) \w+\0([^\0]*)\0")


@dataclass(frozen=True)
class Version:
    """A file as it was at some commit.

    Args:
        path: Of the file, in its repository.
        blob: What git calls its content.
        text: All of it.
    """

    path: str
    blob: str
    text: str

    @property
    def digest(self) -> str:
        """What it is known by."""
        return f"git {self.blob}"


def versions(path: Path, kept: Sequence[Path]) -> Iterator[Version | str]:
    """Versions that hold an entry which no newer one does, the newest first; why there are none, in words.

    Args:
        path: A folder or a file, perhaps of a repository.
        kept: Baselines that are there now.
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
    known = {digest for file in kept for digest in _DIGEST.findall(read_bytes(file, BASELINE).decode(errors="replace"))}
    blobs = {blob: name for old, new, name in _CHANGE.findall(listed) if name.endswith(".json")
             for blob in (new, old) if blob.strip("0")}  # fmt: skip
    if len(blobs) > MOST_VERSIONS:
        yield f"has {len(blobs)} versions in git; the newest {MOST_VERSIONS} are read"
    names = [*blobs][:MOST_VERSIONS]
    for begin in range(0, len(names), AT_ONCE):
        for blob, text in _contents(git, names[begin : begin + AT_ONCE]):
            tip = _TIP.search(text[-200:])
            if FORMATTED in text and (tip is None or tip[1] not in known):
                known.update(_DIGEST.findall(text))
                yield Version(blobs[blob], blob, text)


def _contents(git: Git, blobs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The text of each blob; of one that no baseline can be so large as, nothing."""
    sizes = git.run("cat-file", "--batch-check", text="".join(f"{blob}\n" for blob in blobs))
    told = (line.split() for line in sizes.splitlines())
    small = [blob for blob, kind, size in (words for words in told if len(words) == 3)  # noqa: PLR2004 (or "missing")
             if kind == "blob" and int(size) <= BASELINE.mib << 20]  # fmt: skip
    rest = git.run("cat-file", "--batch", text="".join(f"{blob}\n" for blob in small)).encode(errors="surrogateescape")
    for blob in small:
        heading, _, rest = rest.partition(b"\n")
        size = int(heading.rpartition(b" ")[2])
        yield blob, rest[:size].decode(errors="replace")
        rest = rest[size + 1 :]

"""Artifacts of workflow runs: found, fetched, unpacked and read; whatever they hold is taken for hostile."""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import AwareDatetime, BaseModel

from perfgate.errors import RecordError
from perfgate.github.api import Api, WorkflowRun
from perfgate.github.workflow_job import GithubJob
from perfgate.judge.outcome import WORST_FIRST, Outcome
from perfgate.machine.json_text import VERDICT as VERDICT_SIZE
from perfgate.machine.versioned_json import parse_content, validated
from perfgate.models import Note
from perfgate.reasons import CODE
from perfgate.report.document import printable

VERDICT = "perfgate-verdict"  # the small artifact that the comment is made from
MEMBERS = 50_000
# How GitHub packs; of other ways nothing good is to be had but more that can go wrong
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile raises of archives that are none, are encrypted, are cut, lie, or hold a file below a file
_MALFORMED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, zlib.error)
RUN_BYTES = 4 * 1024**3  # no run folder is larger; it is unpacked on the measuring machine


class UploadedArtifact(BaseModel):
    """An artifact as GitHub lists it."""

    id: int  # GitHub's number
    name: str  # its name, unique within an attempt of a run
    size_in_bytes: int  # packed
    created_at: AwareDatetime  # when it was uploaded
    expired: bool  # whether it was removed since


def of_run(api: Api, repository: str, run_id: int, name: str) -> UploadedArtifact | None:
    """The newest artifact of that name in one workflow run; only the jobs of that run can have uploaded it.

    Raises:
        ApiError: GitHub refused.
    """
    listed = api.pages(UploadedArtifact, f"/repos/{repository}/actions/runs/{run_id}/artifacts", "artifacts")
    artifacts = [artifact for artifact in listed if not artifact.expired and artifact.name == name]
    return max(artifacts, key=lambda artifact: (artifact.created_at, artifact.id), default=None)


def of_earlier_attempt(api: Api, job: GithubJob, name: str, head_sha: str) -> UploadedArtifact | None:
    """What an earlier attempt of this very workflow run left under a name; ``None`` in a first attempt.

    The same name in another run is anybody's: every workflow run of the repository can upload it. So GitHub is asked
    what this run is, and only its own artifacts are looked at.

    ``head_sha`` is the commit that GitHub lists this run at.

    Raises:
        RecordError: GitHub lists this run with another workflow, event, commit or repository than this job's.
        ApiError: GitHub refused.
    """
    run_id, attempt = int(job.variable("GITHUB_RUN_ID")), int(job.variable("GITHUB_RUN_ATTEMPT"))
    if attempt <= 1:
        return None
    run = api.get(WorkflowRun, f"/repos/{job.repository}/actions/runs/{run_id}")
    workflow = job.variable("GITHUB_WORKFLOW_REF").partition("@")[0].removeprefix(f"{job.repository}/")
    expected = {"id": run_id, "path": workflow, "event": job.variable("GITHUB_EVENT_NAME"), "head_sha": head_sha,
                "head_repository": job.repository}  # fmt: skip
    listed = {**run.model_dump(), "path": run.path.partition("@")[0], "head_repository": run.origin}
    wrong = [key for key, value in expected.items() if listed[key] != value]
    if wrong:
        raise RecordError(f"GitHub lists this run with another {', '.join(wrong)} than this job's")
    return of_run(api, job.repository, run_id, name)


def fetch(api: Api, repository: str, artifact: UploadedArtifact, file: Path, limit_bytes: int) -> None:
    """Download an artifact's archive.

    Raises:
        RecordError: It is larger than allowed.
        ApiError: GitHub refused.
    """
    if artifact.size_in_bytes > limit_bytes:
        raise RecordError(f"{artifact.size_in_bytes} bytes, more than {limit_bytes}", where=f"artifact {artifact.name}")
    api.download(f"/repos/{repository}/actions/artifacts/{artifact.id}/zip", file, limit_bytes)


def read_member(archive: Path, name: str, limit_bytes: int) -> bytes | None:
    """One file of an archive, read into memory; ``None`` where it has none of that name.

    Raises:
        RecordError: It is not an archive, or the file is larger than allowed.
    """
    with _opened(archive, limit_bytes) as opened:
        return opened.read(name) if name in opened.namelist() else None


def unpack(
    archive: Path, target: Path, limit_bytes: int = RUN_BYTES, wanted: Callable[[str], bool] = lambda _: True
) -> None:
    """Unpack an archive into a folder that appears only when it is whole.

    Only ``wanted`` members are unpacked, up to the limit; all of them must be harmless.

    Raises:
        RecordError: It is not an archive, holds nothing, is too large, names files outside its folder, or does
            not go onto this disk.
        OSError: The folder is there already, or its parent cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as scratch:
        with _opened(archive, limit_bytes, wanted) as opened:
            members = [name for name in opened.namelist() if wanted(name)]
            if not members:
                raise RecordError("holds nothing", where=archive.name)
            opened.extractall(Path(scratch) / "content", members)
        (Path(scratch) / "content").rename(target)


@contextmanager
def _opened(
    archive: Path, limit_bytes: int, wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[zipfile.ZipFile]:
    """An archive whose members are known to be harmless; zipfile reads of each no more than the size declared here."""
    try:
        with zipfile.ZipFile(archive) as opened:
            _check(opened.infolist(), limit_bytes, archive.name, wanted)
            yield opened
    except _MALFORMED as error:
        raise RecordError(f"cannot be unpacked: {error}", where=archive.name) from error


def _check(infos: list[zipfile.ZipInfo], limit_bytes: int, where: str, wanted: Callable[[str], bool]) -> None:
    if len(infos) > MEMBERS:
        raise RecordError(f"holds {len(infos)} files, more than {MEMBERS}", where=where)
    if (size := sum(info.file_size for info in infos if wanted(info.filename))) > limit_bytes:
        raise RecordError(f"unpacks to {size} bytes, more than {limit_bytes}", where=where)
    for info in infos:
        parts = PurePosixPath(info.filename).parts
        if not parts or info.filename.startswith("/") or ".." in parts or re.search(r"[\\\x00-\x1f:]", info.filename):
            raise RecordError(f"names a file outside its folder: {info.filename!r}", where=where)
        if info.compress_type not in _PACKED:
            raise RecordError(f"packs {info.filename!r} in a way that GitHub does not", where=where)


LIMIT_BYTES = VERDICT_SIZE.mib << 20
DEPTH = 24
TEXT = 20_000  # characters of one text; an engine's last lines are fewer
LARGEST = 1e18
BREAK = "\u200b"  # a space without width: invisible, and no link goes on behind it
# Each match is broken before its last character
_LINKS = re.compile(r"(?i):/(?=/)|www\.|#\w|gh-(?=\d)")


def read_verdict(data: bytes, where: str) -> Outcome:
    """The outcome of a ``verdict.json`` that somebody else may have written, fit to be rendered.

    Whoever runs code in a measuring job can write any verdict, so this cannot tell a true one from a false one. It
    makes sure that what is shown of it is a report and nothing else: no markup, no link, no mention, no crash.

    Raises:
        RecordError: It is too large, no JSON, no outcome of this version, or contradicts itself.
    """
    content = parse_content(data, Outcome.model_fields["format"].default, where, VERDICT_SIZE)
    try:
        content = _harmless(content, DEPTH)
    except ValueError as error:
        raise RecordError(f"not a verdict: {error}", where=where) from error
    outcome = validated(Outcome, content, where, strict=True)
    _check_consistent(outcome, where)
    # No reader is offered a command that an artifact made up: commands go on with a run, and no cell names one.
    cells = tuple(
        cell.model_copy(update={"setting": cell.setting.model_copy(update={"run": ""})}) if cell.setting else cell
        for cell in outcome.cells
    )
    return outcome.model_copy(update={"cells": cells})


def unlinked(text: str) -> str:
    """Text that is printable and of which GitHub makes no link, be it to an address, an issue or a pull request.

    A backslash does not keep ``#1`` from becoming one: GitHub seeks references in what Markdown has become.
    """
    return _LINKS.sub(lambda match: f"{match[0][:-1]}{BREAK}{match[0][-1]}", printable(text))


def _check_consistent(outcome: Outcome, where: str) -> None:
    """No headline is better than what is below it."""
    good = ("pass", "improved")
    claims = [(outcome.verdict, [cell.verdict for cell in outcome.cells])]
    for cell in outcome.cells:
        counted = [cell.counters.verdict] if cell.counters else []
        claims.append((cell.verdict, [*(gate.verdict for gate in cell.gates), *counted]))
    wrong = any(verdict in good and not set(below) <= set(good) for verdict, below in claims)
    wrong |= outcome.verdict in good and not outcome.cells
    if wrong or outcome.exit_status != WORST_FIRST[outcome.verdict]:
        raise RecordError("not a verdict: it contradicts itself", where=where)


def _harmless(value: Any, depth: int) -> Any:
    """The same value, its texts printable, cut, and with nothing in them that GitHub makes a link of."""
    if depth < 0:
        raise ValueError(f"nested deeper than {DEPTH} levels")
    if isinstance(value, str):
        return unlinked(value[:TEXT])
    if isinstance(value, list):
        return [_harmless(item, depth - 1) for item in value]
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ValueError("a number is too large")
    if isinstance(value, dict):
        if value.keys() >= Note.model_fields.keys() and not re.fullmatch(CODE, str(value["code"])):
            raise ValueError("a note has an unknown code")
        return {_harmless(key, depth - 1): _harmless(item, depth - 1) for key, item in value.items()}
    return value

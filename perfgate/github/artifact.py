"""Artifacts of workflow runs: found, fetched, unpacked; whatever they hold is taken for hostile."""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from pydantic import AwareDatetime, BaseModel

from perfgate.errors import RecordError
from perfgate.github.api import Api, WorkflowRun
from perfgate.github.workflow_job import GithubJob

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

    Args:
        api: Reads artifacts and runs.
        job: This job.
        name: The artifact's.
        head_sha: Commit that GitHub lists this run at.

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

    Args:
        archive: The archive.
        target: The folder.
        limit_bytes: Of what is unpacked.
        wanted: Which members are, by their names; all of them must be harmless.

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

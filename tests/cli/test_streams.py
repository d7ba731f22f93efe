"""Standard streams that are closed, full or without a reader: they cost neither a measurement nor a verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from perfgate_process import PROGRAM, fake_words

from perfgate.judge.outcome import Outcome

GONE, FULL, CLOSED = "gone", "full", "closed"
NO_SPACE = "No space left on device"
needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def ended(folder: Path, words: Sequence[str], **faults: str) -> tuple[int, dict[str, str]]:
    """The exit status of perfgate with faulty streams, and what the sound ones got."""
    redirections = {"stdout": "1>", "stderr": "2>"}
    closing = " ".join(f"{redirections[name]}&-" for name, fault in faults.items() if fault == CLOSED)
    handles = {}
    for name in redirections:
        fault = faults.get(name)
        if fault == GONE:
            reader, handles[name] = os.pipe()
            os.close(reader)
        else:
            target = "/dev/full" if fault == FULL else folder / name
            handles[name] = os.open(target, os.O_WRONLY | os.O_CREAT)
    shell = ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", PROGRAM, "0.0001", "run", *words]
    process = subprocess.run(shell, cwd=folder, check=False, **handles)  # type: ignore[call-overload]
    for handle in handles.values():
        os.close(handle)
    return process.returncode, {name: (folder / name).read_text() for name in redirections if name not in faults}


@needs_dev_full
@pytest.mark.parametrize("fault", [pytest.param(GONE, marks=pytest.mark.slow), FULL, CLOSED])
def test_nobody_reads_stderr(tmp_path: Path, fault: str) -> None:
    """A run whose progress nobody can read measures on, prints its verdict and ends with it."""
    status, said = ended(tmp_path, fake_words(tmp_path), stderr=fault)

    assert status == 0
    assert said["stdout"].startswith("**PASS")


@needs_dev_full
@pytest.mark.parametrize(
    ("fault", "expected"), [(GONE, 0), (FULL, 22), pytest.param(CLOSED, 0, marks=pytest.mark.slow)]
)
def test_nobody_reads_stdout(tmp_path: Path, fault: str, expected: int) -> None:
    """Who closes stdout wants no report, and the verdict is the status; a report lost on a full disk is no success."""
    status, said = ended(tmp_path, [*fake_words(tmp_path), "--output", "a.json"], stdout=fault)

    assert status == expected
    assert "Traceback" not in said["stderr"]
    assert "Exception ignored" not in said["stderr"]
    assert (f"could not be written to stdout: {NO_SPACE}" in said["stderr"]) == (fault == FULL)
    assert Outcome.model_validate_json((tmp_path / "a.json").read_text()).verdict == "pass"

"""What an engine imports, read from its log: modules by package, and which packages the sides import otherwise."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perfgate.calls.host_difference import changed_imports
from perfgate.calls.host_sampling import MOST_PACKAGES, read_imports

LOG = b"""loading weights
import time: self [us] | cumulative | imported package
import time:       120 |        300 |     torch._dynamo.config
import time:        80 |         80 |     torch._dynamo
import time:        10 |         10 | re
import time:       999 |        999 |     torch._dynamo
import time: many | few | torch
(EngineCore) import time: 5 | 5 | forged by a line of the engine
"""


def test_modules_are_summed_by_package(tmp_path: Path) -> None:
    """The first two parts of a name are a package; a module counts once, and lines of another form do not."""
    log = tmp_path / "engine.log"
    log.write_bytes(LOG)

    assert read_imports(log) == {"torch._dynamo": (2, 1119), "re": (1, 10)}


def test_what_python_writes_is_understood(tmp_path: Path) -> None:
    """The table of the interpreter that runs this."""
    log = tmp_path / "engine.log"
    with log.open("wb") as stream:
        subprocess.run([sys.executable, "-X", "importtime", "-c", "import json"], stderr=stream, check=True)

    found = read_imports(log)
    assert {"json", "json.decoder", "json.scanner"} <= found.keys()
    assert all(modules > 0 for modules, _ in found.values())


@given(st.binary(max_size=300))
def test_any_log_can_be_read(text: bytes) -> None:
    """Whatever an engine prints before, there is no error, and what Python wrote is found."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"
        log.write_bytes(text + b"\n" + LOG)

        assert "torch._dynamo" in read_imports(log)


def test_no_more_is_kept_than_an_engine_imports(tmp_path: Path) -> None:
    """A log that names packages without end fills no memory."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"".join(b"import time: 1 | 1 | m%d\n" % n for n in range(MOST_PACKAGES + 9)))

    assert len(read_imports(log)) == MOST_PACKAGES


def test_a_package_that_is_imported_more_is_named() -> None:
    """By its number of modules: the time of an import differs with every start."""
    base = {"torch._dynamo": (200, 800_000), "vllm.v1": (90, 300_000)}
    head = {"vllm.v1": (90, 400_000), "scipy.stats": (120, 900_000)}

    changes = [(change.package, change.modules) for change in changed_imports(base, head)]
    assert changes == [("scipy.stats", (0, 120)), ("torch._dynamo", (200, 0))]

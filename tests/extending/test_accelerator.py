"""A new vendor of accelerators, as docs/extending.md describes it: a folder with its table and one module."""

from __future__ import annotations

import json
from pathlib import Path

from perfgate_process import stub_words
from removed_rooms import called, without

TABLE = """
[accelerators]
amd = "perfgate.amd.rocm:connect"
"""
GUARD = '''
"""Two AMD GPUs that were never here."""

from pathlib import Path

from perfgate.machine.fingerprint import Gpu
from perfgate.machine.telemetry import Sample


class Rocm:
    driver, cuda = "6.14", ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def gpus(self, environment=None):
        return tuple(map(self.facts, ("GPU-amd-0", "GPU-amd-1")))

    def architecture(self, uuid):
        return None

    def facts(self, uuid):
        return Gpu(name="AMD Instinct MI300X", uuid=uuid, memory_bytes=192 * 1024**3)

    def sample(self, uuid):
        return Sample(sm_mhz=2100, memory_mhz=1300, power_mw=700_000, temperature_c=60, utilisation_percent=90)

    def processes(self, uuid):
        return ()

    def memory_used_bytes(self, uuid):
        return 0

    def supported_clocks_mhz(self, uuid):
        return {}

    def lock_clocks(self, uuid, sm_mhz, memory_mhz):
        raise NotImplementedError

    def reset_clocks(self, uuid, *, memory):
        pass


def connect():
    return Rocm()
'''
PROGRAM = """
import sys
from perfgate.__main__ import main
try:
    main()
finally:
    assert "pynvml" not in sys.modules and "perfgate.machine.nvml" not in sys.modules
"""


def test_a_vendor_is_a_folder(tmp_path: Path) -> None:
    """With it a run finds its GPUs, guards them and reads their clocks, and NVML is not imported."""
    tree = without((), tmp_path / "tree")
    (tree / "perfgate" / "amd").mkdir()
    for name, text in (("room.toml", TABLE), ("rocm.py", GUARD), ("__init__.py", '"""AMD."""\n')):
        (tree / "perfgate" / "amd" / name).write_text(text)

    ran = called(tree, "-c", PROGRAM, "run", *stub_words(tmp_path), "--quick", here=tmp_path)

    assert ran.returncode == 20, ran.stderr
    (record,) = (tmp_path / "runs").glob("*/records/*.json")
    measured = json.loads(record.read_text())
    assert [gpu["name"] for gpu in measured["visits"][0]["machine"]["gpus"]] == ["AMD Instinct MI300X"]
    assert measured["visits"][0]["machine"]["driver"] == "6.14"
    timed = [trial for trial in measured["trials"] if not trial["failure"]]
    assert {trial["telemetry"][0]["sm_mhz"]["median"] for trial in timed} == {2100}

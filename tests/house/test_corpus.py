"""Inputs that fuzzing kept: each is still read, or refused by an error of perfgate's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from readers import CORPUS, READERS, refusal
from whole_inputs import WHOLE


def test_every_reader_has_a_whole_input() -> None:
    """And every folder of the corpus has its reader, so that nothing in it is left out."""
    assert READERS.keys() == WHOLE.keys()
    assert {folder.name for folder in CORPUS.iterdir()} <= READERS.keys()


@pytest.mark.parametrize("name", READERS)
def test_kept_inputs(name: str, tmp_path: Path) -> None:
    """What reaches other code than the whole input, and what once broke the reader."""
    whole = refusal(name, WHOLE[name], tmp_path / "input")
    assert whole == "" or (name == "counted.ncu-rep" and "finds no kernel" in whole)  # its package is a stand-in
    for file in sorted((CORPUS / name).glob("*")):
        said = refusal(name, file.read_bytes(), tmp_path / "input")
        assert len(said) < 20_000, file


@pytest.mark.parametrize(
    ("machine", "status", "text"),
    [("aarch64", 0, "atheris has no wheel for Python 3.13 on aarch64"), ("x86_64", 1, "pip install --group fuzz")],
)
def test_fuzzing_without_atheris(machine: str, status: int, text: str) -> None:
    """Where there is no wheel of atheris that is said, and is no failure; where there is one, how to install it."""
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    program = f"""
import platform, runpy, sys
sys.modules["atheris"], sys.version_info, platform.machine = None, (3, 13), lambda: {machine!r}
runpy.run_path({str(script)!r}, run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == status
    assert text in ended.stdout + ended.stderr

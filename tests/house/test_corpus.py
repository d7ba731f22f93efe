"""Inputs that fuzzing kept: each is still read, or refused by an error of perfgate's own."""

from __future__ import annotations

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

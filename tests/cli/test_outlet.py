"""What leaves by the standard streams: text that steers no terminal and commands no GitHub runner."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hand_made import scenario_file
from hypothesis import given
from hypothesis import strategies as st

from perfgate.cli.main import main
from perfgate.cli.outlet import Outlet, command, outlets

EVIL = "x\n::add-mask::y\r##[error]z\x1b[2J\u202e\udcff"


@given(st.text(st.characters(codec=None)))
def test_what_leaves_is_harmless(text: str) -> None:
    """No line begins with a command, none holds one of the old form, and no character steers, whatever was written."""
    stream = io.StringIO()
    Outlet(stream, watched=True).write(text)

    left = stream.getvalue()
    assert not [line for line in left.splitlines() if line.strip().startswith("::")]
    assert "##[" not in left
    assert not set(left) & {"\r", "\x1b", "\x07", "\x85", "\u2028", "\u202e", "\ud800"}


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"], codec="utf-8")))
def test_what_is_harmless_leaves_as_it_is(text: str) -> None:
    """Where no runner reads along, text without control characters is not touched: ``::at::native`` is a name."""
    stream = io.StringIO()
    Outlet(stream, watched=False).write(f"{text}\n\t::at::native")

    assert stream.getvalue() == f"{text}\n\t::at::native"


def test_only_drawings_steer() -> None:
    """What draws made its own text harmless; the same stream still takes no escape from anybody else."""
    stream = io.StringIO()
    outlet = Outlet(stream, watched=False)
    outlet.for_drawing().write("\x1b[1A")
    outlet.write("\x1b[1A")

    assert stream.getvalue() == "\x1b[1A\ufffd[1A"


def test_streams_of_another_encoding() -> None:
    """What a stream cannot hold is a question mark in it and no error."""
    stream = io.TextIOWrapper(held := io.BytesIO(), encoding="ascii")
    Outlet(stream, watched=False).write("\u00e9")
    stream.flush()

    assert held.getvalue() == b"?"


def test_commands_are_obeyed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is a command of ours leaves as it is; what is printed beside it does not."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with outlets():
        command("::notice::ours")
        sys.stdout.write("::notice::theirs\n")

    assert capsys.readouterr().out == "::notice::ours\n:\u200b:notice::theirs\n"


def _verdict(folder: Path) -> list[str]:
    (folder / "run.json").write_text(json.dumps({"format": EVIL}))
    return ["judge", str(folder)]


def _scenario(folder: Path) -> list[str]:
    file = scenario_file(folder)
    file.write_text(file.read_text() + '"a\\n::add-mask::y\\e[2J": 1\n')
    return ["check", str(file)]


def _record(folder: Path) -> list[str]:
    (folder / "a.json").write_text(json.dumps({"format": "perfgate-record/1", EVIL: 1}))
    return ["compare", str(folder / "a.json"), str(folder / "a.json")]


def _table(folder: Path) -> list[str]:
    (folder / "a.csv").write_text('pair,subject,metric,unit,value\n"::add-mask::\x1b[2J",base,itl_median,ms,x\n')
    return ["compare", str(folder / "a.csv"), "--gate", "itl_median:1%:5%"]


def _baseline(folder: Path) -> list[str]:
    (folder / "b.json").write_text(json.dumps({"format": "perfgate-baseline/1", EVIL: [EVIL]}))
    return ["baseline", "show", str(folder / "b.json")]


def _option(_: Path) -> list[str]:
    return ["judge", "--format", "a\n::add-mask::y\x1b[2J"]


@pytest.mark.parametrize("make", [_verdict, _scenario, _record, _table, _baseline, _option])
def test_messages_about_files_of_others(make: Any, tmp_path: Path) -> None:
    """A key, a pair or a field with a command or an escape in it is named in the error, and does nothing there."""
    result = CliRunner().invoke(main, make(tmp_path), env={"GITHUB_ACTIONS": "true"})

    assert result.exit_code == 2, result.output
    said = result.stdout + result.stderr
    assert said
    assert not [line for line in said.splitlines() if line.strip().startswith("::")]
    assert not {"\x1b", "\r", "\u202e"} & set(said)

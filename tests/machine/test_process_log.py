"""What of an engine's log is shown beside a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.machine.process_log import last_words, tail

INFO = "(MainProcess pid=7) INFO 11-22 00:46:05 [core.py:402] init engine took 0.04 s"
ROOT = "(EngineCore pid=9) ERROR 11-22 00:46:06 [core.py:100] torch.OutOfMemoryError: CUDA out of memory"
TOLD = "RuntimeError: Engine core initialization failed. See root cause above."


@pytest.mark.parametrize(
    ("lines", "said", "shown"),
    [
        ([INFO, "Traceback (most recent call last):", TOLD, INFO], TOLD, ()),
        ([INFO, ROOT, INFO, TOLD], TOLD, (ROOT,)),
        ([ROOT, ROOT, INFO], "the worker ended with status 1", (ROOT,)),
        ([INFO, "", "loading weights"], "the worker ended with status 3", ("loading weights",)),
        ([INFO, "Fatal Python error: Segmentation fault", "Thread 1"], "SIGSEGV",
         ("Fatal Python error: Segmentation fault",)),
        ([f"{kind}Error: x" for kind in "ABCD"], "", ("BError: x", "CError: x", "DError: x")),
        (["\x1b[31mKeyError: 'x'\x1b[0m"], "", ("KeyError: 'x'",)),
        ([], "gone", ()),
    ],
)  # fmt: skip
def test_last_words(tmp_path: Path, lines: list[str], said: str, shown: tuple[str, ...]) -> None:
    """Errors that were not told yet are shown, each once; where there is none, the line that came last."""
    (tmp_path / "engine.log").write_text("\n".join(lines))

    assert last_words(tmp_path / "engine.log", said) == shown


OOM = "(pid=1) ERROR [core.py:1] torch.OutOfMemoryError: CUDA out of memory"
NOISE = [f"(pid=1) INFO shutting down {n}" for n in range(50)]
MANY = ["AError: 1", "BError: 2", "CError: 3", "DError: 4", "BError: 2", "CError: 3", "end"]


@pytest.mark.parametrize(
    ("log", "lines", "shown"),
    [
        (["one", "\x1b[31mtwo\x1b[0m", "", "three  "], 2, ["two", "three"]),
        (["one", "\x1b[31mtwo\x1b[0m", "", "three  "], 9, ["one", "two", "three"]),
        (["Traceback (most recent call last):", OOM, *NOISE], 2, [OOM, "...", *NOISE[-2:]]),
        (MANY, 1, ["DError: 4", "BError: 2", "CError: 3", "...", "end"]),
        ([], 5, []),
    ],
    ids=["last lines", "all lines", "an exception before them", "three distinct exceptions", "an empty log"],
)
def test_tail(tmp_path: Path, log: list[str], lines: int, shown: list[str]) -> None:
    """The last lines come without colours and empty lines, behind the last distinct exceptions that are before them."""
    (tmp_path / "log").write_text("\n".join(log))

    assert tail(tmp_path / "log", lines).splitlines() == shown


def test_no_log(tmp_path: Path) -> None:
    """An engine that never ran left no log."""
    assert (last_words(tmp_path / "engine.log"), tail(tmp_path / "engine.log", 5)) == ((), "")

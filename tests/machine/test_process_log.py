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


def test_no_log(tmp_path: Path) -> None:
    """An engine that never ran left no log."""
    assert last_words(tmp_path / "engine.log") == ()


def test_tail_without_exception(tmp_path: Path) -> None:
    """The last lines come without colours and empty lines."""
    (tmp_path / "log").write_text("one\n\x1b[31mtwo\x1b[0m\n\nthree  \n")
    assert tail(tmp_path / "log", 2) == "two\nthree"
    assert tail(tmp_path / "log", 9) == "one\ntwo\nthree"


def test_tail_keeps_the_exception(tmp_path: Path) -> None:
    """The final line of a traceback is kept though much was printed after it."""
    noise = [f"(pid=1) INFO shutting down {n}" for n in range(50)]
    error = "(pid=1) ERROR [core.py:1] torch.OutOfMemoryError: CUDA out of memory"
    (tmp_path / "log").write_text("\n".join(["Traceback (most recent call last):", error, *noise]))
    assert tail(tmp_path / "log", 2).splitlines() == [error, "...", *noise[-2:]]


def test_tail_keeps_few_distinct_exceptions(tmp_path: Path) -> None:
    """Of many exceptions the last three distinct ones are kept, in their order, and none twice."""
    lines = ["AError: 1", "BError: 2", "CError: 3", "DError: 4", "BError: 2", "CError: 3", "end"]
    (tmp_path / "log").write_text("\n".join(lines))
    assert tail(tmp_path / "log", 1).splitlines() == ["DError: 4", "BError: 2", "CError: 3", "...", "end"]


def test_tail_of_nothing(tmp_path: Path) -> None:
    """No log and an empty log both have no last lines."""
    assert tail(tmp_path / "log", 5) == ""
    (tmp_path / "log").touch()
    assert tail(tmp_path / "log", 5) == ""

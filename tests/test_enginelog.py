"""What of an engine's log is shown beside a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.capture.enginelog import last_words

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

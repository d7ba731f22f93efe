"""The standard streams of a command: what is printed steers no terminal and no GitHub runner, and stops no measurement.

Names, keys and texts of files that others wrote reach messages and reports. So the two streams are wrapped for the
whole of a command, and what is meant to be obeyed goes through :func:`command` alone.

A stream may be closed (``2>&-``), its disk full, its reader gone. What was to be written to stderr is then dropped, and
everything else goes on. What was to be written to stdout is the report, so its writer must hear of a full disk. Who
closes it has read enough: the rest is dropped, and the command goes on to its end, whose exit status counts.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line end, what turns the direction of text, and halves of surrogate pairs."""
_COMMAND = re.compile(r"(?m)^(\s*:)(?=:)|(##)(?=\[)")
"""Where GitHub's runner sees a command: ``::`` at the start of a line, also after blanks, and ``##[`` anywhere."""
_BREAK = "\u200b"
_PLAIN = str.maketrans(
    "\u2502\u2551\u256b\u2560\u2550\u251c\u2524\u2500\u253c\u25cf\u25cb\u00b7\u25c4\u25ba\u2026", "|:+:=[]-+*o.<>~"
)
"""What reports and progress draw with, for a stream that has no such characters."""


def harmless(text: str) -> str:
    """Text that steers nothing; lines and tabs stay."""
    return _STEERING.sub("\ufffd", text)


class Outlet:
    """A text stream through which only harmless text leaves.

    Args:
        stream: Where it goes.
        watched: Whether a GitHub runner reads it and obeys commands in it.
        lasting: Whether writing never fails: after a failure that lasts, what is written goes nowhere.
        drawn: Whether the text is a drawing of ours, made of text that is :func:`harmless`: it may steer a terminal.
    """

    def __init__(self, stream: TextIO, *, watched: bool, lasting: bool = False, drawn: bool = False) -> None:
        self.stream = stream
        self._watched = watched
        self._lasting = lasting
        self._drawn = drawn
        self._readers = [True]

    def for_drawing(self) -> Outlet:
        """The same stream for what draws on a terminal."""
        drawing = Outlet(self.stream, watched=self._watched, lasting=self._lasting, drawn=True)
        drawing._readers = self._readers
        return drawing

    @property
    def unread(self) -> bool:
        """Whether something was written after its reader had gone, or could not be written and was dropped."""
        return not self._readers[0]

    @property
    def in_colours(self) -> bool:
        """Whether its reader wants colours, as https://no-color.org and https://force-color.org say."""
        plain = not self.stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown")
        return not os.environ.get("NO_COLOR") and (not plain or bool(os.environ.get("FORCE_COLOR")))

    def write(self, text: str | bytes, *, obeyed: bool = False) -> int:
        """Write text; ``obeyed``: with the commands that are in it. click hands completions over as bytes."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        shown = self.shown(text, obeyed=obeyed)
        with self.failures():
            self.stream.write(shown)
        return len(text)

    def shown(self, text: str, *, obeyed: bool = False) -> str:
        """What is written of a text."""
        shown = text if self._drawn else harmless(text)
        if self._watched and not obeyed:
            shown = _COMMAND.sub(lambda match: f"{match[0]}{_BREAK}", shown)
        encoding = self.stream.encoding or "utf-8"
        if not encoding.lower().startswith("utf"):
            shown = shown.translate(_PLAIN)
        return shown.encode(encoding, "replace").decode(encoding)

    def flush(self) -> None:
        """Flush."""
        with self.failures():
            self.stream.flush()

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Around what writes to the stream: where writing never fails, or its reader has gone, it is dropped."""
        try:
            yield
        except OSError as error:
            if not self._lasting and not isinstance(error, BrokenPipeError):
                raise
            if not isinstance(error, BlockingIOError):  # its reader is slow: only this piece is lost
                self._readers[0] = False
                abandon(self.stream)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own, but for its bytes, which would go past this."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextmanager
def outlets() -> Iterator[None]:
    """Wrap the standard streams while the block lasts; an error keeps them wrapped, for its traceback leaves too.

    A closed descriptor is opened to nowhere first: the next file that is opened would take it, and would then be
    read or written as a standard stream by whoever inherits it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the lowest free number is taken, and those below are open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _wrapped(stream, number)) for number, stream in enumerate(before, 1))
    try:
        yield
    except Exception:
        raise
    except BaseException:  # SystemExit: the usual end
        sys.stdout, sys.stderr = before
        raise
    sys.stdout, sys.stderr = before


def _wrapped(stream: TextIO | None, number: int) -> Outlet:
    if isinstance(stream, Outlet):
        return stream
    opened = stream or os.fdopen(number, "w", encoding="utf-8", closefd=False)
    return Outlet(opened, watched=os.environ.get("GITHUB_ACTIONS") == "true", lasting=number == 2)  # noqa: PLR2004


def abandon(stream: TextIO) -> None:
    """Let nothing more be written to a stream that failed, not even when the interpreter flushes at its end."""
    with suppress(io.UnsupportedOperation):  # a stream in memory has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def command(text: str) -> None:
    """Print lines that GitHub's runner is to obey; every text in them must be escaped already."""
    if isinstance(sys.stdout, Outlet):
        sys.stdout.write(f"{text}\n", obeyed=True)
        sys.stdout.flush()
    else:
        print(text, flush=True)  # noqa: T201 (a command's own output)

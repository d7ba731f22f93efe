"""Where text leaves: what is printed steers no terminal and commands no GitHub runner, whoever wrote it.

Names, keys and texts of files that others wrote reach messages and reports. So the two standard streams are wrapped for
the whole of a command, and what is meant to be obeyed goes through :func:`command` alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

CLEAR = "\r\x1b[K"
"""To the start of the line, and rub it out; let through at the beginning of what is written to a terminal."""
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line end, what turns the direction of text, and halves of surrogate pairs."""
_COMMAND = re.compile(r"(?m)^(\s*:)(?=:)|(##)(?=\[)")
"""Where GitHub's runner sees a command: ``::`` at the start of a line, also after blanks, and ``##[`` anywhere."""
_BREAK = "\u200b"


class Outlet:
    """A text stream through which only harmless text leaves.

    Args:
        stream: Where it goes.
        watched: Whether a GitHub runner reads it and obeys commands in it.
    """

    def __init__(self, stream: TextIO, *, watched: bool) -> None:
        self._stream = stream
        self._watched = watched

    def write(self, text: str | bytes, *, obeyed: bool = False) -> int:
        """Write text; ``obeyed``: with the commands that are in it. click hands completions over as bytes."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        start = CLEAR if text.startswith(CLEAR) and self._stream.isatty() else ""
        harmless = _STEERING.sub("\ufffd", text[len(start) :])
        if self._watched and not obeyed:
            harmless = _COMMAND.sub(lambda found: f"{found[0]}{_BREAK}", harmless)
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(start + harmless.encode(encoding, "replace").decode(encoding))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own, but for its bytes, which would go past this."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


@contextmanager
def outlets() -> Iterator[None]:
    """Wrap the standard streams while the block lasts; an error keeps them wrapped, for its traceback leaves too."""
    before = sys.stdout, sys.stderr
    watched = os.environ.get("GITHUB_ACTIONS") == "true"
    sys.stdout, sys.stderr = (
        cast("TextIO", one if one is None or isinstance(one, Outlet) else Outlet(one, watched=watched))
        for one in before
    )
    try:
        yield
    except Exception:
        raise
    except BaseException:  # SystemExit: the usual end
        sys.stdout, sys.stderr = before
        raise
    sys.stdout, sys.stderr = before


def command(text: str) -> None:
    """Print lines that GitHub's runner is to obey; every text in them must be escaped already."""
    if isinstance(sys.stdout, Outlet):
        sys.stdout.write(f"{text}\n", obeyed=True)
        sys.stdout.flush()
    else:
        print(text, flush=True)  # noqa: T201 (a command's own output)

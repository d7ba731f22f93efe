"""The ``perfgate`` command, and ``python -m perfgate``.

Importing takes a while on a busy machine. Ctrl-C in it ends as later, with a word and 130; nothing was begun.
"""

import contextlib
import os
import signal
import sys

_INTERRUPTED = 130


def _stop(*_: object) -> None:
    os.write(2, b"perfgate: interrupted\n")
    os._exit(_INTERRUPTED)


def main() -> None:
    """Run the command line."""
    # numpy would start a thread a core for matrices that perfgate has none of, and they spin. Only its library reads
    # this: os.environ, from which builds and engines get theirs, stays as it is.
    os.putenv("OPENBLAS_NUM_THREADS", "1")
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from perfgate.cli.main import main as commands  # noqa: PLC0415 (this is what takes a while)

    signal.signal(signal.SIGINT, before)
    try:
        commands()
    except SystemExit as end:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # everything is said: Ctrl-C takes nothing from the status any more
        if end.code != _INTERRUPTED:
            raise
        # Under -m an interpreter whose interruption came out of a string that was executed, such as a dataclass being
        # made, ends by the signal after all, whatever status it is given.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()

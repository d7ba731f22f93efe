"""The ``perfgate`` command, and ``python -m perfgate``.

Importing takes a while on a busy machine. Ctrl-C in it ends as later, with a word and 130; nothing was begun.
"""

import os
import signal


def _stop(*_: object) -> None:
    os.write(2, b"perfgate: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from perfgate.cli import main as commands  # noqa: PLC0415 (this is what takes a while)

    signal.signal(signal.SIGINT, before)
    commands()


if __name__ == "__main__":
    main()

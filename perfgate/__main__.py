"""``python -m perfgate`` is the ``perfgate`` command."""

from perfgate.cli import main

if __name__ == "__main__":
    main()

"""Runs ``vllm serve`` in the subject's interpreter: ``python vllm_server.py MODEL OPTION...``.

It imports nothing of perfgate and must run on Python 3.10. Builds of vLLM for the CPU are installed under a name of
their own, under which ``vllm serve`` does not find its version; they have the server's module.
"""

from __future__ import annotations

import importlib.metadata
import runpy
import sys
from pathlib import Path


def main(words: list[str]) -> None:
    """Serve until somebody ends it."""
    own = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != own]  # where Python ignores PYTHONSAFEPATH
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        sys.argv = ["api_server", "--model", *words]
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
        return
    from vllm.entrypoints.cli.main import main as command

    sys.argv = ["vllm", "serve", *words]
    command()


if __name__ == "__main__":
    main(sys.argv[1:])

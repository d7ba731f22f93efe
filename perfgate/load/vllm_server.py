"""Runs ``vllm serve`` in the subject's interpreter: ``python vllm_server.py REQUEST_FD ANSWER_FD``.

It imports nothing of perfgate and must run on Python 3.10. It speaks the protocol of
:mod:`perfgate.capture.vllm_worker` until it serves, so that a server can import ahead of its trial:

======= =============== =====================================================================
op      request         answer
======= =============== =====================================================================
imports                 end_ns, cuda: whether a GPU was touched
serve   words: model    nothing; from here on this process is the server, whatever becomes of
        and options     it, and the descriptors are closed
======= =============== =====================================================================

Builds of vLLM for the CPU are installed under a name of their own, under which ``vllm serve`` does not find its
version; they have the server's module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import importlib.metadata
import json
import os
import runpy
import signal
import sys
import time
import types
from pathlib import Path
from typing import IO, Any

PROTOCOL = 1
MODULE, COMMAND = "vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"
MORE = ("vllm.entrypoints.cli.serve", "vllm.entrypoints.cli.preload", MODULE, "vllm.v1.engine.core")
"""What ``vllm serve`` imports once it begins, where a version has it."""
PROBE = "perfgate_probe"
"""A module that is nowhere on disk: its class ``Ranks`` is what ``--worker-extension-cls`` names."""
FAILED = "perfgate_probe_failed"
"""Where a rank keeps why its probe failed."""
ASKED, TOLD, SIGNAL = "asked-use.json", "told-use-{}.json", signal.SIGRTMIN + 9
"""What perfgate asks for, what answers, and by which signal; see :mod:`perfgate.load.server_use`."""


def offer_probe() -> None:
    """Have each rank find the class by which it times the probe, see :mod:`perfgate.capture.vllm_probe`.

    A rank that is forked has the module; one that is spawned runs this file first, as ``__mp_main__``.
    """
    probe, module = beside("vllm_probe"), types.ModuleType(PROBE)

    class Ranks:
        """What vLLM adds to its workers."""

        def perfgate_read_probe(self) -> Any:
            """A reading in nanoseconds, or why there is none; once it has failed nothing more is tried."""
            reading = vars(self).get(FAILED) or probe.read_rank(self)
            if isinstance(reading, str) and FAILED not in vars(self):
                vars(self)[FAILED] = reading
                sys.stderr.write(f"perfgate: no probe: {reading}\n")
                sys.stderr.flush()
            return reading

    vars(module)[Ranks.__name__] = Ranks
    sys.modules[PROBE] = module


def tell_when_asked() -> None:
    """Have each process of the server say what it used of ``path=``, see :mod:`perfgate.capture.vllm_path`.

    Nothing is looked at before it is asked, which is after the load. One that is spawned runs this file first too.
    """
    use = beside("vllm_path")

    def tell(_number: int, _frame: Any) -> None:
        with contextlib.suppress(Exception):  # then it has not told
            report = use.report(None, json.loads(Path(ASKED).read_text(encoding="utf-8"))["folders"])
            made, file = Path(f".{TOLD}".format(os.getpid())), Path(TOLD.format(os.getpid()))
            made.write_text(json.dumps(report), encoding="utf-8")
            made.replace(file)

    signal.signal(SIGNAL, tell)


def beside(name: str) -> types.ModuleType:
    """The module of that name beside the worker."""
    file, module = Path(__file__).parents[1] / "capture" / f"{name}.py", types.ModuleType(name)
    importlib.machinery.SourceFileLoader(name, str(file)).exec_module(module)
    return module


def has_command() -> bool:
    """Whether ``vllm serve`` finds its own version."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def imports() -> dict[str, Any]:
    """Import what a server does before it touches a GPU, and say when that ended."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # a sixth of the time would go into looking for garbage
    importlib.import_module(COMMAND if has_command() else MODULE)
    for name in MORE:
        with contextlib.suppress(Exception):  # what serves says what is wrong with it
            importlib.import_module(name)
    torch = importlib.import_module("torch")
    if gc.get_threshold()[0] == 0:
        gc.set_threshold(*thresholds)
    return {"end_ns": time.monotonic_ns(), "cuda": bool(torch.cuda.is_initialized())}


def words_of(requests: IO[str], answers: IO[str]) -> list[str] | None:
    """What is to be served, once that is told; ``None`` where the other end closes before."""
    for line in requests:
        request = json.loads(line)
        serves = request["op"] == "serve"
        try:
            answer = {"ok": True, **({} if serves else imports())}
        except Exception as error:  # noqa: BLE001 (whatever a build does when it is imported)
            answer = {"ok": False, "code": "engine-import-failed", "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"v": PROTOCOL, "id": request["id"], **answer}) + "\n")
        answers.flush()
        if serves:
            return list(request["words"])
    return None


def serve(words: list[str]) -> None:
    """Serve until somebody ends it."""
    if has_command():
        sys.argv = ["vllm", "serve", *words]
        importlib.import_module(COMMAND).main()
    else:
        sys.argv = ["api_server", "--model", *words]
        sys.modules.pop(MODULE, None)  # it runs under another name, and says so where it was imported
        runpy.run_module(MODULE, run_name="__main__")


def main(arguments: list[str]) -> None:
    """Speak the protocol, and become a server."""
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]  # where Python ignores PYTHONSAFEPATH
    request_fd, answer_fd = map(int, arguments)
    for descriptor in (request_fd, answer_fd):
        os.set_inheritable(descriptor, False)
    with os.fdopen(request_fd, encoding="utf-8") as requests, os.fdopen(answer_fd, "w", encoding="utf-8") as answers:
        words = words_of(requests, answers)
    if words is not None:
        serve(words)


if __name__ in ("__main__", "__mp_main__"):
    offer_probe()
    tell_when_asked()
if __name__ == "__main__":
    main(sys.argv[1:])

"""The worker: one vLLM engine, driven from outside over two private descriptors.

Run by the subject's own interpreter, so it imports nothing of perfgate: the standard library, then vllm and torch when
told to. It must run on Python 3.10, the oldest that vLLM supports.

Protocol 1: JSON lines, one answer a request, in order. A request is ``{"v": 1, "id": n, "op": ...}``, an answer
``{"v": 1, "id": n, "ok": true, ...}`` or ``{"v": 1, "id": n, "ok": false, "code": reason, "error": "Type: text"}``.

========= ================================================= ==========================================================
op        request                                           answer
========= ================================================= ==========================================================
hello                                                       python, pid
imports   count_calls; as in start what the engine is, for  end_ns, cuda: whether a GPU was touched; ahead of a start
          its configuration to be made too
start     model, revision or null, dummy, engine_args,      import_ns, engine_ns, versions, vocabulary,
          count_calls, sample_host                          model_memory_bytes, kv_memory_bytes and kv_token_capacity,
                                                            each or null
iterate   prompts: batch x input token ids, output_tokens,  submitted_ns: batch; deliveries: [[t_ns, tokens: batch]];
          probe, images: count, width, height and seed      tokens_digest, finish_reasons: batch, preemptions or null;
                                                            probe_ns: [before: ranks, after: ranks] or null; where
                                                            memory: of each process, or null (vllm_memory.py); where
                                                            count_calls was true also host_calls (call_counter.py)
                                                            and process (vllm_memory.py, system_counters.py), where
                                                            sample_host was host_samples, with either decode_begins:
                                                            the first step after every request has its first token
profile   on, ranges: nvtx or record_function, window       nothing; ranges surround steps from here on, or no more;
                                                            with window the profiler records meanwhile
stop      path: folders put on the module path              used: what each process used of them (vllm_path.py); the
                                                            engine is down, the worker exits
========= ================================================= ==========================================================

While it is profiled, each engine step carries a range ``perfgate.step.N``, N counting from 0, in every process that
runs the model, and each layer that the host runs one by one (no graph, not compiled) a range ``perfgate.layer.L``
(vllm_ranges.py). Engine arguments say which profiler it is
(vLLM's ``profiler_config``), and then vLLM puts its own ranges into each step too. A profiler that picks steps by their
ranges needs no window.

Standard output and error are the engine's and go to its log; nothing of the protocol passes there.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import importlib.machinery
import inspect
import json
import os
import pickle
import platform
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PROTOCOL = 1
OPERATIONS = ("hello", "imports", "start", "iterate", "profile", "stop")
PR_SET_PDEATHSIG = 1


class RequestError(Exception):
    """A request that this worker answers with a failure of its own.

    Args:
        code: Reason code of :mod:`perfgate.reasons`.
        text: What is wrong.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class WorkerLoop:
    """The engine of this process and what the protocol can ask of it."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.iterations = 0
        self.ranges: Any = None
        self.marks = beside("vllm_ranges")
        self.awaited = False
        self.watchers: dict[str, Any] = {}
        self.imported: tuple[Any, ...] = ()
        self.configured: Any = None
        self.import_ns = 0
        self.frozen = 0
        self.batch = beside("vllm_batch")
        self.read_probe = beside("vllm_probe").StateProbe(call_ranks).read
        self.system: Any = None
        self.memory = beside("vllm_memory")
        self.read_memory = self.memory.MemoryReader(call_ranks).read

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request yields; the caller frames it.

        Raises:
            RequestError: Anything of the engine went wrong; the worker can go on.
        """
        op = request.get("op")
        if request.get("v") != PROTOCOL or op not in OPERATIONS:
            raise RequestError("engine-failed", f"no such request in protocol {PROTOCOL}: {str(request)[:200]}")
        answer: dict[str, Any] = getattr(self, str(op))(request)
        return answer

    def hello(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Prove that the interpreter runs."""
        return {"python": platform.python_version(), "pid": os.getpid()}

    def imports(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import and configure ahead of the start, and say when that ended and whether it touched a GPU.

        Looking for garbage and being stopped come after that, and count neither as import nor as start.
        """
        self.count_calls(request)
        # A sixth of the time would go into looking for garbage. Where workers are parked no start is judged.
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
        torch, *_ = self.import_engine()
        if "engine_args" in request:
            self.configure(request)
        end_ns = time.monotonic_ns()
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)
        if gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()  # nor is what was imported searched again while the engine is built
            self.frozen = gc.get_freeze_count()
        return {"end_ns": end_ns, "cuda": bool(torch.cuda.is_initialized())}

    def count_calls(self, request: dict[str, Any]) -> None:
        """Have calls counted if a request asks for that: from before there are threads of what is imported."""
        if request.get("count_calls") is True and "host_calls" not in self.watchers:
            self.watchers["host_calls"] = beside("call_counter", "calls").CallCounter()
            self.system = beside("system_counters", "calls").SystemCounters()
            os.environ.setdefault("VLLM_LOG_STATS_INTERVAL", "1e9")  # a line every ten seconds meets a step by chance

    def import_engine(self) -> tuple[Any, ...]:
        """Import torch, vllm, its arguments and its engine with all that they lead to; once, timed."""
        if self.imported:
            return self.imported
        begin_ns = time.perf_counter_ns()
        try:
            import torch
            import vllm
            from vllm import EngineArgs, LLMEngine
        except Exception as error:
            raise RequestError("engine-import-failed", describe(error)) from error
        self.import_ns = time.perf_counter_ns() - begin_ns
        self.imported = torch, vllm, EngineArgs, LLMEngine
        return self.imported

    def configure(self, request: dict[str, Any]) -> None:
        """Have vLLM make its configuration of the engine's arguments ahead of the start; it counts as import.

        It touches no GPU: a server makes it before it forks its engine. Where anything speaks against it the start does
        it all: it fails there by itself, the arguments change or are of another kind than vLLM's are now, or what was
        made names the folder that this process is in until its trial begins.
        """
        _, _, engine_args, llm_engine = self.import_engine()
        begin_ns = time.perf_counter_ns()
        with contextlib.suppress(Exception, SystemExit):
            arguments = arguments_of(engine_args, request)
            usage = inspect.signature(llm_engine.from_engine_args).parameters["usage_context"].default
            made = arguments.create_engine_config(usage)
            if Path.cwd().name.encode() not in pickle.dumps(made):
                arguments.create_engine_config = made_before(arguments, usage, made)
                self.configured = arguments
        self.import_ns += time.perf_counter_ns() - begin_ns

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build the engine, timed; import before that what was not imported."""
        self.count_calls(request)
        if request.get("sample_host") is True:
            os.environ.pop("PYTHONPROFILEIMPORTTIME", None)  # what children import is not ours
            plain = beside("call_counter", "calls").plain
            self.watchers["host_samples"] = beside("host_sampler", "calls").HostSampler(plain)
        torch, vllm, engine_args, llm_engine = self.import_engine()
        begin_ns = time.perf_counter_ns()
        try:
            self.engine = llm_engine.from_engine_args(self.configured or arguments_of(engine_args, request))
        except (Exception, SystemExit) as error:
            raise RequestError("engine-start-failed", describe(error)) from error
        ready_ns = time.perf_counter_ns()
        if self.frozen and gc.get_freeze_count() <= self.frozen:
            gc.unfreeze()  # an engine that freezes nothing collects among all objects, as its users' do
        return {
            "import_ns": self.import_ns,
            "engine_ns": ready_ns - begin_ns,
            "versions": beside("vllm_versions").versions(str(vllm.__version__), str(torch.__version__)),
            "vocabulary": int(self.engine.model_config.get_vocab_size()),
            **self.memory.kept_bytes(self.engine, call_ranks),
            "kv_token_capacity": self.memory.kv_token_capacity(self.engine),
        }

    def iterate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one batch to completion and report every return of ``step()``, between two probes if asked to."""
        if self.engine is None:
            raise RequestError("engine-failed", "iterate before start")
        # Run the garbage collector now, so that it does not run inside the timed iteration.
        gc.collect()
        self.iterations += 1
        try:
            counter = self.watchers.get("host_calls")
            process = counter and self.memory.process_figures(counter.plain)
            step = self.engine.step
            for watcher in filter(None, (self.ranges, *self.watchers.values())):
                step = watcher.around(step)
            probed = self.engine if request.get("probe") is True else None
            before = probed and self.read_probe(probed)
            counted = self.system and self.system.read()
            answer: dict[str, Any] = self.batch.run_batch(self.engine, step, request, f"{self.iterations}-")
            if process:
                process["spent"] = self.system.since(counted)
            after = probed and self.read_probe(probed)
            if self.watchers:
                begin = self.batch.decode_begins([row for _, row in answer["deliveries"]])
                reports = {name: watcher.report(begin) for name, watcher in self.watchers.items()}
                answer |= {"decode_begins": begin, **reports}
            if process:
                answer["process"] = process
            gc.collect()
            memory = self.read_memory(self.engine)
        except (Exception, SystemExit) as error:
            raise RequestError("engine-failed", describe(error)) from error
        return {**answer, "probe_ns": [before, after] if before and after else None, "memory": memory or None}

    def profile(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put ranges around steps and layers, or leave that off; open or close a profiler's window around them."""
        if self.engine is None or {request.get("on"), request.get("window")} - {True, False}:
            raise RequestError("engine-failed", f"profile: {'before start' if self.engine is None else request}")
        try:
            if request["on"]:
                self.ranges = self.marks.Ranges(request.get("ranges"))
                self.marks.mark_ranks(self.engine, call_ranks, request.get("ranges"), on=True)
                self.awaited = request.get("ranges") == "nvtx"
                if request["window"]:
                    self.engine.start_profile()
            else:
                if request["window"]:
                    self.engine.stop_profile()
                self.marks.mark_ranks(self.engine, call_ranks, request.get("ranges"), on=False)
                self.ranges = None
        except (Exception, SystemExit) as error:
            raise RequestError("evidence-missing", describe(error)) from error
        return {}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Shut the engine down, and tell of its module path, which until now it may have used; twice is fine.

        vLLM's shutdown looks for garbage twice, nine tenths of the second that it takes, and this process ends anyway.
        """
        if self.engine is None:
            return {}
        engine, self.engine = self.engine, None
        try:
            used = beside("vllm_path").path_used(engine, request["path"], call_ranks) if "path" in request else []
            vars(gc)["collect"] = lambda *_, **__: 0
            engine.engine_core.shutdown()
        except Exception as error:
            raise RequestError("engine-failed", describe(error)) from error
        return {"used": used}


def arguments_of(engine_args: Any, request: dict[str, Any]) -> Any:
    """The engine's arguments."""
    # Prompts are token ids, so no tokenizer; dummy weights come from a fixed seed and are the same every time.
    arguments = {"model": request["model"], "skip_tokenizer_init": True, **request["engine_args"]}
    if request.get("revision"):
        arguments["revision"] = request["revision"]
    if request["dummy"]:
        arguments["load_format"] = "dummy"
    return engine_args(**arguments)


def made_before(arguments: Any, usage: Any, made: Any) -> Callable[..., Any]:
    """What arguments answer vLLM, which asks them for its configuration when it builds the engine.

    What was made, as long as that is asked for and no argument has changed since; else what they would have answered.
    """
    make, fields = arguments.create_engine_config, copy.deepcopy(vars(arguments))

    def answer(*given: Any, **named: Any) -> Any:
        now = {name: value for name, value in vars(arguments).items() if name != "create_engine_config"}
        return made if (given, named, now) == ((usage,), {}, fields) else make(*given, **named)

    return answer


def beside(name: str, room: str = "capture") -> Any:
    """The module of that name in a folder beside this file's, which are not searched for modules, see the end."""
    file = Path(__file__).parents[1] / room / f"{name}.py"
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    module = types.ModuleType(name)
    loader.exec_module(module)
    return module


def call_ranks(engine: Any, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function returns in each rank, called with vLLM's worker there; nothing where ranks are out of reach."""
    core = getattr(engine.engine_core, "engine_core", None)
    call = getattr(getattr(core, "model_executor", None), "collective_rpc", None)
    return [] if call is None else list(call(function, args=arguments))


def describe(error: BaseException) -> str:
    """``Type: message`` of an error, and the whole of it in the engine's log."""
    import traceback

    traceback.print_exception(type(error), error, error.__traceback__)
    sys.stderr.flush()
    return f"{type(error).__name__}: {error}"


def serve(requests: IO[str], answers: IO[str]) -> bool:
    """Answer requests until told to stop or until the other end closes; tell whether a program waits for the exit."""
    session = WorkerLoop()
    for line in requests:
        try:
            request = json.loads(line)
        except ValueError:
            request = {}
        if not isinstance(request, dict):
            request = {}
        try:
            answer = {"ok": True, **session.answer(request)}
        except RequestError as error:
            answer = {"ok": False, "code": error.code, "error": str(error)}
        answers.write(json.dumps({"v": PROTOCOL, "id": request.get("id"), **answer}) + "\n")
        answers.flush()
        if request.get("op") == "stop":
            return session.awaited
    session.stop({})
    return session.awaited


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however that ends.

    A parent that was gone before this ran shows as the end of the request descriptor.
    """
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        raise SystemExit("the process that started this worker is gone")


def main(argv: list[str]) -> int:
    """``vllm_worker.py REQUEST_FD ANSWER_FD``."""
    request_fd, answer_fd = int(argv[1]), int(argv[2])
    # At once: whatever the engine starts must not hold the protocol open.
    os.set_inheritable(request_fd, False)
    os.set_inheritable(answer_fd, False)
    die_with_parent()
    with os.fdopen(request_fd, encoding="utf-8") as requests, os.fdopen(answer_fd, "w", encoding="utf-8") as answers:
        try:
            awaited = serve(requests, answers)
        except KeyboardInterrupt:
            return 130
    sys.stdout.flush()
    sys.stderr.flush()
    if awaited:  # nsys and ncu take what they have at exit; torch's profiler has written all when its window closes
        return 0
    # The engine is down. Unloading torch takes another 2 s of a 10 s trial and does nothing for it.
    os._exit(0)


# Spawned tensor-parallel workers import this file again, under another name.
if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    # Python 3.10 knows neither -P nor PYTHONSAFEPATH: perfgate's own modules must not shadow the subject's.
    sys.path[:] = [entry for entry in sys.path if not entry or str(Path(entry).resolve()) != here]
    sys.exit(main(sys.argv))

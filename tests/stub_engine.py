"""A stand-in for vllm and torch that a worker can import: an engine without a model, faulty on request.

``STUB_MODE`` names the fault; without one it behaves. It leaves ``environment.json``, ``priority.json``,
``arguments.json``, ``configured``, ``dump`` and ``shut-down`` in the working directory for tests to look at.
"""

from __future__ import annotations

import venv
from pathlib import Path

VLLM = '''
"""A stand-in for vllm: an engine without a model, whose faults STUB_MODE names."""
import gc, json, os, signal, subprocess, sys, threading, time, zlib
MODE = os.environ["STUB_MODE"]
__version__ = "9.9.stub"
if MODE == "import fails":
    raise ImportError("libcudart.so.99: cannot open shared object file")
if MODE == "imports more":
    import xmlrpc.client, xml.etree.ElementTree
if MODE == "import locks" and "/parked-" in os.getcwd():
    import fcntl
    held = open("../lock", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
if MODE == "import starts a program" and "/parked-" in os.getcwd():
    subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
if MODE.startswith("import ") and MODE.endswith(("waits", "locks")) and "/parked-" in os.getcwd():
    open("imports-wait", "w").close()
    while not os.path.exists("../imports-may-end"):
        time.sleep(0.01)
if MODE == "import locks" and "/parked-" in os.getcwd():
    held.close()
if MODE == "import dies":
    os.kill(os.getpid(), signal.SIGSEGV)
with open("environment.json", "w") as stream:
    json.dump(dict(os.environ), stream)
with open("priority.json", "w") as stream:
    json.dump([os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/oom_score_adj").read()], stream)

BLOCK = bytes(1 << 16)
KEPT = []

def look_up(number):
    return number

def counted():
    return hasattr(sys, "monitoring") and any(map(sys.monitoring.get_tool, range(6)))

class Plain:
    def __init__(self, **fields):
        self.__dict__.update(fields)

class SamplingParams(Plain): pass
class TokensPrompt(Plain): pass

class EngineArgs:
    def __init__(self, **arguments):
        with open("arguments.json", "w") as stream:
            json.dump(arguments, stream)
        self.sizes = [4]
        if MODE == "arguments fail":
            raise TypeError("unexpected keyword argument 'max_num_seq'")

    def create_engine_config(self, usage):
        with open("configured", "a") as stream:
            print(usage, file=stream)
        if MODE == "configuration fails":
            raise ValueError("max_num_batched_tokens is too small")
        if MODE == "configuration exits":
            sys.exit("max_num_batched_tokens is too small")
        if MODE == "configuration takes long":
            until = time.process_time() + 0.3
            while time.process_time() < until:
                pass
        return Plain(usage=usage, dump=os.path.abspath("dump") if MODE == "configuration names its folder" else "")

    def __setattr__(self, name, value):
        if MODE == "arguments are frozen" and name != "sizes":
            raise AttributeError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)

def answer_descriptor():
    return int(sys.argv[2])

class LLMEngine:
    @classmethod
    def from_engine_args(cls, arguments, usage_context="of an engine"):
        if MODE == "arguments change":
            arguments.sizes.append(8)
        if MODE == "usage changes":
            usage_context = "of another"
        return cls(arguments.create_engine_config(usage_context))

    def __init__(self, config):
        with open("dump", "w") as stream:
            stream.write(config.dump)
        print("loading weights")
        if MODE == "start fails":
            raise RuntimeError("No available memory for the cache blocks")
        if MODE == "start exits":
            sys.exit("engine core failed")
        if MODE == "start dies":
            os._exit(3)
        if MODE == "start hangs":
            time.sleep(600)
        self.running = {}
        memory = 4096 if MODE != "no memory" else None
        worker = Plain(worker=Plain(model_runner=Plain(model_memory_usage=memory)))
        executor = Plain() if MODE == "no ranks" else Plain(
            collective_rpc=lambda function, args=(): [function(worker, *args), function(worker, *args)])
        scheduler = Plain(requests={})
        self.engine_core = Plain(
            engine_core=Plain(scheduler=scheduler, model_executor=executor), shutdown=self.shutdown)
        self.scheduler = scheduler
        size = {} if MODE != "own capacity" else {"kv_cache_size_tokens": 777}
        self.vllm_config = Plain(
            cache_config=Plain(num_gpu_blocks=10, block_size=16, **size), compilation_config=Plain(mode=3))
        if MODE == "freezes its heap":
            self.loaded = [[] for _ in range(1000)]
            gc.freeze()
        self.model_config = Plain(get_vocab_size=lambda: 100)

    def add_request(self, name, prompt, params):
        assert all(16 <= token < 100 for token in prompt.prompt_token_ids)
        inner = name + "-suffix"
        self.running[name] = [inner, 0, params]
        counter = {} if MODE == "silent scheduler" else {"num_preemptions": 0}
        self.scheduler.requests[inner] = Plain(**counter)
        self.steps = 0
        return inner

    def has_unfinished_requests(self):
        return bool(self.running)

    def schedule(self):
        if MODE == "a loop":
            left = 5000
            while left:
                left -= 1
        if MODE == "Python calls":
            for number in range(1000):
                look_up(number)
        if MODE == "keeps lists":
            KEPT.extend([] for _ in range(100))
        if MODE == "C calls":
            for _ in range(20):
                zlib.crc32(BLOCK)
        if MODE == "refactored":
            for number in range(30):
                look_up(number)
        if MODE == "a thread":
            thread = threading.Thread(target=look_up, args=(1,))
            thread.start()
            thread.join()
        if MODE == "refuses counters" and (sys.gettrace() or sys.getprofile() or counted()):
            raise RuntimeError("somebody counts")

    def step(self):
        self.steps += 1
        self.schedule()
        time.sleep(0.001)
        print("step", self.steps)
        if self.steps == 1:
            return []
        if self.steps == 3:
            self.misbehave()
        outputs = []
        for place, (name, request) in enumerate(list(self.running.items())):
            inner, done, params = request
            count = 2 if MODE == "two tokens" and done + 2 <= params.max_tokens else 1
            tokens = [done + place + n for n in range(count)]
            request[1] = done = done + count
            last = done >= params.max_tokens - (MODE == "short outputs")
            reason = ("abort" if MODE == "request aborted" else "length") if last else None
            outputs.append(Plain(request_id=name, outputs=[Plain(token_ids=tokens, finish_reason=reason)]))
            if last:
                del self.running[name], self.scheduler.requests[inner]
        return outputs

    def misbehave(self):
        if MODE == "step fails":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if MODE == "step exits":
            sys.exit("fatal")
        if MODE == "step dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if MODE == "step dies, child stays":
            if os.fork() == 0:  # unlike anything started properly, it holds the descriptors
                time.sleep(600)
            os._exit(4)
        if MODE == "step hangs":
            time.sleep(600)
        if MODE == "garbage":
            os.write(answer_descriptor(), b"rubbish\\n")
        if MODE == "other answer":
            os.write(answer_descriptor(), b'{"v": 1, "id": 99, "ok": true}\\n')
        if MODE == "other code":
            os.write(answer_descriptor(), b'{"v": 1, "id": 3, "ok": false, "code": "bad-mood", "error": ""}\\n')
        if MODE == "preempts":
            for request in self.scheduler.requests.values():
                request.num_preemptions += 1

    def start_profile(self):
        if MODE == "no profiler":
            raise RuntimeError("Profiling is not enabled.")

    def stop_profile(self):
        pass

    def shutdown(self):
        if MODE == "stop fails":
            raise RuntimeError("cannot stop")
        if MODE == "leaves a child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        garbage = []
        garbage.append(garbage)
        del garbage
        with open("shut-down", "w") as stream:
            frozen = gc.get_freeze_count() > 0
            json.dump({"collects": gc.isenabled(), "frozen": frozen, "collected": gc.collect() > 0}, stream)

if MODE == "no usage":
    LLMEngine.from_engine_args = classmethod(lambda cls, arguments: cls(arguments.create_engine_config("of none")))
'''


TORCH = """
import contextlib, os, sys, types
__version__ = '8.8.stub'
profiler = types.SimpleNamespace(record_function=lambda name: contextlib.nullcontext())

def initialized():
    if os.environ.get("STUB_MODE") == "probe fails":
        raise RuntimeError("CUDA error: operation not permitted")
    ahead = "/parked-" in os.getcwd()
    if ahead and os.environ.get("STUB_MODE") == "import answers rubbish":
        return os.write(int(sys.argv[2]), b"rubbish\\n")
    if ahead and os.environ.get("STUB_MODE") == "import answers the future":
        os.write(int(sys.argv[2]), b'{"v": 1, "id": 1, "ok": true, "end_ns": 9000000000000000000, "cuda": false}\\n')
    return os.environ.get("STUB_MODE") == "touches a GPU"

cuda = types.SimpleNamespace(is_initialized=initialized)
"""


def bare_python(folder: Path) -> str:
    """The interpreter of a new environment without packages, so that there is little to look at before each trial."""
    venv.create(folder, symlinks=True, with_pip=False)
    return str(folder / "bin" / "python")


def write_stub(folder: Path) -> None:
    """Write the stand-in packages into a new folder for the module path."""
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(VLLM)
    (folder / "vllm" / "sampling_params.py").write_text("class RequestOutputKind:\n    DELTA = 1\n")
    (folder / "torch.py").write_text(TORCH)


TRACE = Path(__file__).parent / "fixtures" / "cpu-tiny.torch-2.13.json.gz"
"""Seven decode steps."""
LEAVES_TWO_TRACES = f"""
import pathlib, shutil

def leave(self):
    with open("arguments.json") as stream:
        folder = pathlib.Path(json.load(stream)["profiler_config"]["torch_profiler_dir"])
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        shutil.copy({str(TRACE)!r}, folder / f"rank{{rank}}.pt.trace.json.gz")

LLMEngine.stop_profile = leave
"""
"""What the profiler of two ranks writes when its window closes."""


def leave_two_traces(folder: Path) -> None:
    """Have the stand-in in a folder leave a trace of each of two ranks."""
    engine = folder / "vllm" / "__init__.py"
    engine.write_text(f"{engine.read_text()}\n{LEAVES_TWO_TRACES}")

"""Stands in for the root-owned helper: locks the fake GPUs whatever their permission, and writes down its arguments.

``clocks_helper.py STATUS FILE lock|reset UUID ...``: with a STATUS other than 0 it refuses. With
``after:STATUS`` it ends so when it has locked, by a signal if that is negative; it resets then as ever.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from fake_nvml import STATE, FakeMachine

status, file, verb, uuid, *values = sys.argv[1:]
with Path(file).open("a", encoding="utf-8") as stream:
    stream.write(json.dumps([verb, uuid, *values]) + "\n")
if os.getsid(0) != os.getpid():
    sys.exit("Ctrl-C in the terminal would end this half way: give it a session of its own")
after = int(status.removeprefix("after:")) if status.startswith("after:") and verb == "lock" else 0
if not status.startswith("after:") and status != "0":
    sys.stderr.write("no rule for you\n")
    sys.exit(int(status))
machine = FakeMachine(Path(os.environ[STATE]))
gpu = machine.gpu([one["uuid"] for one in machine.state["gpus"]].index(uuid))
gpu.lock(*([int(value) for value in values] if verb == "lock" else [None]))
if after < 0:
    os.kill(os.getpid(), -after)
sys.exit(after)

"""Holds the clocks of fake GPUs until something ends it: ``clock_holder.py UUID...`` prints ``ready`` once it does."""

from __future__ import annotations

import sys
import time

from perfgate.machine.clocks import ClockGuard
from perfgate.machine.nvml import Nvml

with Nvml() as nvml, ClockGuard(nvml, "held-by-a-test") as guard:
    guard.apply(sys.argv[1:], *(1500, 2201))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    time.sleep(600)

"""Holds the clocks of fake GPUs until something ends it: ``clock_holder.py UUID...`` prints ``ready`` once it does."""

from __future__ import annotations

import sys
import time

from perfgate.capture.clocks import ClockGuard
from perfgate.capture.gpu import Nvml
from perfgate.scenario import Clocks

with Nvml() as nvml, ClockGuard(nvml, "held-by-a-test") as guard:
    guard.apply(sys.argv[1:], Clocks(mode="lock", sm_mhz=1500, memory_mhz=2201))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    time.sleep(600)

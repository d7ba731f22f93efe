"""What kernels do in a decode step: traced and counted trials, envelopes, conditions of counters, and their reports."""

from __future__ import annotations

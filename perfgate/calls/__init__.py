"""What the host runs in a step, counted: as a trial keeps it, what it costs, and how two builds differ."""

from __future__ import annotations

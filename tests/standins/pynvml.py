"""Stands in for nvidia-ml-py in a process of its own: ``PYTHONPATH=tests/standins``, and see tests/fake_nvml.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from fake_nvml import *  # noqa: F403

"""Statistics: arrays in, results out. Nothing here knows of trials, kernels or files."""

from perfgate.stats.estimate import *  # noqa: F403 (the arithmetic of every rule is named stats.NAME)
from perfgate.stats.sequential import *  # noqa: F403
from perfgate.stats.signs import *  # noqa: F403

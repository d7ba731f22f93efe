"""A performance-regression gate for vLLM decode: two builds in interleaved pairs, judged with declared error rates.

The command line is ``perfgate`` (``python -m perfgate``); :mod:`perfgate.gate` is the Python interface. Nothing is
imported here, so that ``perfgate --help`` stays fast and no module of the package imports another through this one.
"""

__version__ = "0.2.0"

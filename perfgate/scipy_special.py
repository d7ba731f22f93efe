"""``scipy.special``, imported when a function of it is first called: it takes 0.3 s, and a list of runs needs none."""

from typing import Any


def __getattr__(name: str) -> Any:
    from scipy import special  # noqa: PLC0415 (see above)

    globals()[name] = function = getattr(special, name)
    return function

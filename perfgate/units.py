"""Units and quantities: how a value is written, and how one that a user wrote is read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

NS_PER_S = 1e9

Unit = Literal["s", "tok/s", "B", "tok", "J/tok", "ratio", "count", "inst", "req/s"]

UNIT_SCALE: dict[str, tuple[Unit, float]] = {
    "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "µs": ("s", 1e-6), "ns": ("s", 1e-9), "min": ("s", 60.0),
    "tok/s": ("tok/s", 1.0), "tokens/s": ("tok/s", 1.0),
    "B": ("B", 1.0), "KiB": ("B", 2.0**10), "MiB": ("B", 2.0**20), "GiB": ("B", 2.0**30),
    "kB": ("B", 1e3), "MB": ("B", 1e6), "GB": ("B", 1e9),
    "tok": ("tok", 1.0), "tokens": ("tok", 1.0),
    "J/tok": ("J/tok", 1.0), "mJ/tok": ("J/tok", 1e-3), "count": ("count", 1.0), "inst": ("inst", 1.0),
    "req/s": ("req/s", 1.0), "requests/s": ("req/s", 1.0),
    "%": ("ratio", 0.01), "ratio": ("ratio", 1.0),
}  # fmt: skip
"""Unit as people write it: (base unit, factor to it)."""

LARGEST_PERCENTAGE = 10.0
"""As a ratio. A margin beyond it would never block."""


def parse_percent(value: Any) -> float:
    """``"0.5%"`` to 0.005; numbers are refused, because 0.5 could mean either."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", value) if isinstance(value, str) else None
    parsed = float(Decimal(match[1]).scaleb(-2)) if match else math.inf
    if parsed > LARGEST_PERCENTAGE:
        raise ValueError('expected a percentage from 0% to 1000% with its % sign, like "0.5%"')
    return parsed


def format_percent(value: float) -> str:
    """0.005 to ``"0.5%"``, the shortest text that reads back as the same number."""
    return f"{plain_digits(Decimal(repr(value)).scaleb(2))}%"


def plain_digits(value: Decimal) -> str:
    """All digits, no exponent, no trailing zeros."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_quantity(value: Any) -> tuple[float, str]:
    """``"1ms"`` to (0.001, "s"): the value in its base unit, and that unit."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ/%]+)\s*", value) if isinstance(value, str) else None
    unit, scale = UNIT_SCALE.get(match[2], ("", 1.0)) if match else ("", 1.0)
    amount = float(match[1]) * scale if match else math.inf
    if not unit or not math.isfinite(amount):
        raise ValueError('expected a number with its unit, like "1ms"')
    return amount, unit


def format_value(value: float, unit: Unit) -> str:
    """A value for people, four significant digits with a unit that suits its size: ``5.357 ms``, ``60.71 %``."""
    for suffix in {"s": ("s", "ms", "us"), "B": ("GiB", "MiB", "KiB")}.get(unit, ()):
        scale = UNIT_SCALE[suffix][1]
        if _reaches(value, scale) or suffix == "us":
            return f"{_four_digits(value / scale)} {suffix}"
    if unit == "ratio":
        return f"{_four_digits(value * 100)} %"
    if unit in ("B", "tok", "count", "inst") and value % 1 == 0:
        return f"{value:.0f} {unit}"  # things that are counted have no decimals
    return f"{_four_digits(value)} {unit}"


def gib(size: int) -> str:
    """Bytes in gibibytes with one decimal, ``0.6 GiB``: how memory and disks are spoken of."""
    return f"{size / 2**30:.1f} GiB"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """``1 visit``, ``2 visits``."""
    return f"{count} {noun}{'' if count == 1 else ending}"


def listed(names: Sequence[str], most: int) -> str:
    """The first few names, and how many more there are: ``a, b and 3 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def format_si(value: float, unit: str = "", digits: str = "#.4g") -> str:
    """A value in powers of 1000, as NVIDIA's tools show bytes and rates: ``52.71 MB``, ``1.361 M``.

    Args:
        value: In the base unit.
        unit: Written after the prefix; empty for a bare number.
        digits: The format of a value that has a prefix; ``.4g`` drops trailing zeros.
    """
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:{digits}} {prefix}{unit}".rstrip()
    return f"{value:.4g} {unit}".rstrip()


def format_ns(nanoseconds: float) -> str:
    """A duration from nanoseconds: ``5.357 ms``."""
    return format_value(float(nanoseconds) / NS_PER_S, "s")


def format_mean(value: float) -> str:
    """A mean of whole numbers: ``4``, ``4.33`` where it is none, and ``10700``, whose fraction would say nothing."""
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def percent(ratio: float) -> str:
    """A ratio as a percentage with three significant digits, and all digits before the point."""
    shown = ratio * 100 + 0.0  # adding it takes the sign from a zero
    return f"{shown:.3g} %" if ratio < 10 else f"{shown:.0f} %"  # noqa: PLR2004 (1000 %)


def bounded_percent(slowdown: float, must_catch: float) -> str:
    """A slowdown that could be seen: from 100 % on, if it is twice what must be caught too, its size tells nothing."""
    largest = max(1.0, 2 * must_catch)
    return percent(slowdown) if slowdown <= largest else f"above {percent(largest)}"


def signed_us(seconds: float, decimals: int = 2) -> str:
    """A difference in microseconds with its sign: ``+79.70 us``; one that is shown as zero has a plus."""
    shown = f"{seconds * 1e6:+.{decimals}f}"
    return f"{shown.replace('-', '+') if float(shown) == 0 else shown} us"


def signed_percent(ratio: float | None, decimals: int = 2) -> str:
    """A change as a percentage with its sign; ``decimals`` of them below 10 %, one from there on."""
    if ratio is None:
        return "-"
    shown = f"{ratio * 100:+.{decimals if abs(ratio) < 0.1 else 1}f} %"  # noqa: PLR2004 (10 %)
    return shown.replace("-", "+") if float(shown.removesuffix(" %")) == 0 else shown


def _reaches(value: float, scale: float) -> bool:
    """Whether ``value`` is shown as at least one ``scale``: 999.99 ms is shown as 1.000 s, never as 1000 ms."""
    return float(f"{abs(value) / scale:.4g}") >= 1


def _four_digits(value: float) -> str:
    digits = f"{value:#.4g}".rstrip(".")  # '#' keeps trailing zeros: 5.300 ms says more than 5.3 ms
    if "e" in digits:
        return f"{value:.0f}"
    return digits if value else "0"

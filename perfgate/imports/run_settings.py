"""What a run of another load driver was asked for: what its tool is known to write, and every other setting.

A tool writes more from release to release, users add words of their own (``vllm bench serve --metadata``), and SGLang
writes all arguments of its server. So what is not known to be a figure, an identifier or a place is a setting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perfgate.imports.load_tools import ABSENT, Content, Format, at
from perfgate.machine.json_text import JsonError

# Keys at the top of a result that were counted or timed
_MEASURED: Final = re.compile(
    r"(?:mean|median|avg|std|stddev|p\d[\d.]*|total|peak|probe|spec_decode|diffusion)_\w+|max_(?:concurrent|output)_\w+|"
    r"\w*(?:_ms|_us|_ns|_per_s|_per_sec|_per_second|throughput|goodput|duration|elapsed\w*|latency|latencies|_times?)|"
    r"completed|failed|errored|concurrency|rtfx|accept_length|accept_rate|acceptance_\w+"
)
# Of these, what shows that something was asked for: speculative decoding, and limits of what counts as good
_OPTIONAL: Final = re.compile(r"(?:spec_decode_)?acceptance_\w+|accept_\w+|\w*goodput")
# Builds, identifiers, times of day and places: they may differ
_NAMES: Final = re.compile(
    r"(?:\w+_)?(?:version|commit|sha|sha256|hash|build|build_\w+|branch|id_?|uuid|label|labels|tag|tags|comment|notes?|"
    r"date|timestamp|(?:start|end|begin|created|test)_time|host|hostname|ports?|urls?|addr|address|pid|dir|directory|"
    r"folder|filename|output_path|api_key|run_name)|type_"
)
LONGEST_PATH: Final = 1000
_NUMBER: Final = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


@dataclass(frozen=True)
class Settings:
    """What a run was asked for."""

    asked: Mapping[str, Any]  # by path: what the tool is known to write, and every other setting without a fraction
    fractions: Mapping[str, float]  # other numbers with a fraction, which may be settings or figures
    optional: frozenset[str]  # which figures there are that show that something was asked for

    def at(self, path: str) -> Any:
        """The value at a path; :data:`perfgate.imports.load_tools.ABSENT` where nothing does."""
        return self.asked.get(path, self.fractions.get(path, ABSENT))


def settings_of(tool: Format, content: Content) -> Settings:
    """What a run was asked for; numbers that are written as text are numbers."""
    asked = dict(tool.defaults)
    for root in tool.asked:
        value = at(content, root)
        if value is not ABSENT:
            asked |= {path: leaf for path, leaf in leaves(root, value) if not tool.unasked.fullmatch(path)}
    beside = {path: value for path, value in _beside(tool, content) if path not in asked}
    asked |= {path: value for path, value in beside.items() if type(value) is not float}
    optional = {key for key, value in content.items() if _OPTIONAL.fullmatch(key) and value is not None}
    return Settings(
        asked={path: _plain(value) for path, value in asked.items()},
        fractions={path: value for path, value in beside.items() if type(value) is float},
        optional=frozenset(optional),
    )


def _beside(tool: Format, content: Content) -> Iterator[tuple[str, Any]]:
    """Every scalar that the tool is not known to write, but figures and names; a table with a unit is a figure."""
    roots = {root for root in tool.asked if root}

    def is_left_out(path: str, value: Any) -> bool:
        top = "." not in path and "[" not in path
        table = isinstance(value, dict) and "unit" in value
        named = _NAMES.fullmatch(re.split(r"[.\]]", path)[-1]) or (top and _MEASURED.fullmatch(path))
        return bool(path in roots or table or named or tool.unasked.fullmatch(path) or path in tool.whole)

    figures = [figure.path for figure in tool.figures]
    for path, value in leaves("", content, lists=False, left_out=is_left_out):
        scalar = not isinstance(value, list | dict)
        if scalar and path and not any(re.fullmatch(figure, path) for figure in figures):
            yield path, value


def _plain(value: Any) -> Any:
    """The value, and a number where that is what a text is: the same number is written in both ways."""
    if value in ("inf", "Infinity", math.inf):
        return "inf"
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = json.loads(value) if not re.match(r"-?0\d", value) else value
        return number if str(number) == value else value
    return value


def leaves(
    root: str, value: Any, *, lists: bool = True, left_out: Callable[[str, Any], bool] = lambda _path, _value: False
) -> Iterator[tuple[str, Any]]:
    """Every value below one that holds no others, with its path; without recursion, which a file could exhaust.

    ``left_out`` says of a path and its value whether it is left out, with all below it.

    Raises:
        JsonError: A path is longer than any tool's: patterns are searched in it, whose time may grow with the square.
    """
    waiting = [(root, value)]
    while waiting:
        path, value = waiting.pop()
        if len(path) > LONGEST_PATH:
            raise JsonError(f"holds a key of more than {LONGEST_PATH} characters, which begins with {path[:60]!a}")
        if left_out(path, value):
            continue
        if isinstance(value, dict) and value:
            waiting += [(f"{path}.{key}".lstrip("."), below) for key, below in reversed(value.items())]
        elif isinstance(value, list) and value and lists:
            waiting += [(f"{path}[{number}]", below) for number, below in enumerate(value)]
        else:
            yield path, value

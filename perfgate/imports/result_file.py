"""A file that another load driver wrote, as runs: what was asked for, what came of it, and figures in base units.

Anybody may have written such a file. Sizes are bounded, every number is checked, and what does not fit is refused with
its place in the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfgate.errors import RecordError
from perfgate.imports.contradictions import contradictions
from perfgate.imports.load_tools import ABSENT, FORMATS, Content, Format, at
from perfgate.imports.run_settings import Settings, leaves, settings_of
from perfgate.machine.json_text import JsonError, Size, parse_documents

RESULT: Final = Size(64, 4_000_000)  # `vllm bench serve --save-detailed` keeps every gap between tokens
MOST_RUNS: Final = 256
MOST_SHOWN: Final = 60  # characters of a value that are shown

Result = dict[str, float]  # by the name of a metric its value in base units

_OURS: Final = re.compile(rb'"format"\s*:\s*"perfgate-')
_STREAMED: Final = ("ttft", "itl", "tpot")
_OF_TOKENS: Final = ("itl", "tpot")
BUNDLED: Final = 0.5  # of TPOT. Where half of the gaps are shorter than this, tokens were read together with others.
SEVERAL: Final = 1.5  # of TPOT. Where gaps are longer in the mean, what arrives is chunks of several tokens.


@dataclass(frozen=True)
class LoadRun:
    """One run of a load driver."""

    where: str  # the file, and the line where it holds several results
    path: str  # the run in it
    tool: Format  # what wrote it
    content: Content  # as it was written
    settings: Settings  # what was asked for
    figures: Result  # in base units
    # How many requests were asked for, were answered, failed, and were cut off at the end, as far as told
    requests: Mapping[str, int]
    tokens: Mapping[str, float]  # tokens a request in the mean, of prompts and of answers
    streamed: bool = True  # whether answers came token by token
    left_out: tuple[str, ...] = ()  # which figures are not used, and why
    contradictions: tuple[str, ...] = ()  # which figures cannot all be right

    @property
    def asked(self) -> Mapping[str, Any]:
        """What was asked for, by path."""
        return self.settings.asked

    @property
    def ended_early(self) -> str:
        """What says that the run did not end by itself; empty where nothing does."""
        signs = (f"{path} is {told_of(at(self.content, path))}" for path, whole in self.tool.whole.items()
                 if at(self.content, path) not in (ABSENT, None, whole))  # fmt: skip
        return ", ".join(signs)

    @property
    def counted(self) -> set[str]:
        """Of which requests and tokens the file says how many there were."""
        requests = {f"requests {what}" for what in self.requests}
        return requests | {f"{of} tokens" for of in self.tokens}

    @property
    def untold(self) -> list[str]:
        """What no file of this kind, or this one, says of the load."""
        return [
            what
            for what, paths in self.tool.tells.items()
            if all(at(self.content, path) in (ABSENT, None) for path in paths)
        ]


def told_of(value: Any) -> str:
    """A value of a file in a few characters, all of them printable."""
    text = value if isinstance(value, str) else json.dumps(value)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def is_result(file: Path) -> bool:
    """Whether a file could be another tool's: it is one, and does not say that it is perfgate's."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return _OURS.search(stream.read(RESULT.mib << 20)) is None


def read_runs(file: Path) -> list[LoadRun]:
    """The runs in a file: one JSON text, or several after another, as JSON Lines and ``--append-result`` have them.

    Raises:
        RecordError: It cannot be read, is of no tool or of two, holds the same run twice, or a figure that is none.
    """
    try:
        with file.open("rb") as stream:
            documents = parse_documents(stream.read((RESULT.mib << 20) + 1), RESULT)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=str(file)) from error
    except json.JSONDecodeError as error:
        raise RecordError(f"invalid JSON: {error.msg}", where=f"{file}:{error.lineno}:{error.colno}") from error
    except JsonError as error:
        raise RecordError(str(error), where=str(file)) from error
    runs: list[LoadRun] = []
    for line, document in documents:
        where = f"{file}:{line}" if len(documents) > 1 else str(file)
        for path, entry, tool in _results(document, where):
            if runs and tool is not runs[0].tool:
                text = f"{tool.name}, and {runs[0].tool.name} before it: one file is one tool's"
                raise RecordError(_placed(path, text), where=where)
            for below, run in tool.runs(entry):
                try:
                    runs.append(_run(tool, run, where, f"{path}{below}"))
                except JsonError as error:
                    raise RecordError(_placed(f"{path}{below}", str(error)), where=where) from error
    if not 0 < len(runs) <= MOST_RUNS:
        raise RecordError(f"holds more than {MOST_RUNS} runs" if runs else "holds no run", where=str(file))
    _refuse_copies(runs)
    return runs


def _results(document: Any, where: str) -> Iterator[tuple[str, Any, Format]]:
    """The results in a JSON text, with their paths and tools: that of llama-bench is a list of them."""
    listed = isinstance(document, list)
    for number, entry in enumerate(document if listed else [document]):
        path = f"[{number}]" if listed else ""
        yield path, entry, _tool(entry, where, path)


def _placed(path: str, text: str) -> str:
    return f"{path}: {text}" if path else text


def _tool(entry: Any, where: str, path: str) -> Format:
    """Whose result it is, by fields that only one tool writes."""
    content = entry if isinstance(entry, dict) else {}
    fitting = [tool for tool in FORMATS if tool.fits(content)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(tool.name for tool in FORMATS)
    if fitting:
        both = " and ".join(tool.name for tool in fitting)
        text = f"has all fields of {both}, so nobody can tell whose result it is"
    else:
        nearest = min(FORMATS, key=lambda tool: len(tool.lacks(content)) / len(tool.marks))
        lacking = ", ".join(nearest.lacks(content)) or f"none of {', '.join(nearest.none_of)}"
        looked = f"of {nearest.name} it lacks {lacking}"
        if len(nearest.lacks(content)) >= len(nearest.marks):
            looked = "looked for: " + "; ".join(f"{', '.join(tool.marks[:3])} ({tool.name})" for tool in FORMATS)
        text = f"not a result of a load driver that perfgate reads; {looked}"
    raise RecordError(_placed(path, text), where=where, remedy=f"Read are results of {names}.")


def _refuse_copies(runs: list[LoadRun]) -> None:
    """Repeats differ in something, if only in the time; what is the same throughout is the same run again."""
    for number, run in enumerate(runs):
        for earlier in runs[:number]:
            if run.asked == earlier.asked and run.content == earlier.content:
                text = f"is the same run as {earlier.where} {earlier.path}".rstrip()
                raise RecordError(_placed(run.path, text), where=run.where, remedy="Remove one of the two.")


def _run(tool: Format, run: Any, where: str, path: str) -> LoadRun:
    content = run if isinstance(run, dict) else {}
    lacking = [need for need in tool.needs if at(content, need) in (ABSENT, None)]
    if lacking or not isinstance(run, dict):
        text = f"not a run of {tool.name}: it lacks {', '.join(lacking) or 'everything'}"
        raise RecordError(_placed(path, text), where=where)
    numbers = _Numbers(where, path)
    for place in tool.whole_numbers:
        if at(content, place) is not ABSENT and type(at(content, place)) is not int:
            raise numbers.refuse(place, at(content, place), "a whole number")
        numbers.count(content, (place,))
    requests = {what: numbers.count(content, paths) for what, paths in tool.requests.items()}
    counts = {what: count for what, count in requests.items() if count is not None}
    if tool.name == "aiperf" and "failed" not in counts:
        errors = at(content, "error_summary")
        listed = errors if isinstance(errors, list) else []
        counts["failed"] = sum(numbers.count({"count": at(error, "count")}, ("count",)) or 0 for error in listed)
    tokens = _tokens(tool, content, counts, numbers)
    times, rates, left_out = _figures(tool, content, numbers)
    streamed = _streamed(tool, content, times, tokens)
    left_out += _unusable(times, streamed=streamed)
    named = {_named(of, statistic): value for of, values in times.items() for statistic, value in values.items()}
    return LoadRun(
        where=where, path=path, tool=tool, content=content, settings=settings_of(tool, content), requests=counts,
        tokens=tokens,
        figures={name: value for name, value in named.items() if name} | rates, streamed=streamed,
        left_out=tuple(left_out), contradictions=tuple(contradictions(tool, content, times, tokens)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Numbers:
    """Reads numbers of one run, and refuses what is none with its place."""

    where: str
    path: str

    def refuse(self, path: str, value: Any, expected: str) -> RecordError:
        """The error for a value that is not what it should be."""
        place = f"{self.path}.{path}".lstrip(".")
        return RecordError(f"{place} is {told_of(value)}, expected {expected}", where=self.where)

    def number(self, path: str, value: Any) -> float:
        """A number from zero on; raises RecordError for anything else, true and NaN included."""
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise self.refuse(path, value, "a number from 0 on")
        return float(value)

    def count(self, content: Content, paths: tuple[str, ...]) -> int | None:
        """The first number of requests that is told; raises RecordError for any other number."""
        for path in paths:
            value = at(content, path)
            if value in (ABSENT, None):
                continue
            if not self.number(path, value).is_integer():
                raise self.refuse(path, value, "a whole number")
            return int(value)
        return None


def _tokens(tool: Format, content: Content, requests: Mapping[str, int], numbers: _Numbers) -> dict[str, float]:
    """Tokens a request, of prompts and answers."""
    tokens = {}
    for of, paths in tool.tokens.items():
        path = next((path for path in paths if at(content, path) not in (ABSENT, None)), None)
        if path is None:
            continue
        value = numbers.number(path, at(content, path))
        if tool.mean_tokens:
            tokens[of] = value
        elif requests.get("answered"):
            tokens[of] = value / requests["answered"]
    return tokens


def _figures(
    tool: Format, content: Content, numbers: _Numbers
) -> tuple[dict[str, dict[str, float]], Result, list[str]]:
    """Times by quantity and statistic, and rates, in base units; and which of them are zero."""
    times: dict[str, dict[str, float]] = {}
    rates: Result = {}
    zeros = []
    for path, value in leaves("", content, lists=False):
        for figure in tool.figures:
            matched = re.fullmatch(figure.path, path)
            if matched is None or value is None:
                continue
            of = figure.of if isinstance(figure.of, str) else figure.of(content)
            number = numbers.number(path, value) * _factor(figure.units, content, path, numbers)
            if matched.groups():
                times.setdefault(of, {})[matched[1]] = number
            elif number:
                rates[of] = number
            else:
                zeros.append(f"{path} is 0")
    if not times and not rates and not zeros:
        raise RecordError(_placed(numbers.path, "holds no figure that can be compared"), where=numbers.where)
    return times, rates, zeros


def _factor(units: Mapping[str, float], content: Content, path: str, numbers: _Numbers) -> float:
    if "" in units:
        return units[""]
    beside = f"{path.rpartition('.')[0]}.unit"
    unit = at(content, beside)
    if not isinstance(unit, str) or unit not in units:
        raise numbers.refuse(beside, None if unit is ABSENT else unit, " or ".join(units))
    return units[unit]


def _streamed(
    tool: Format, content: Content, times: Mapping[str, Mapping[str, float]], tokens: Mapping[str, float]
) -> bool:
    """Whether answers came token by token: as the file says, else by times between tokens that are not all zero."""
    said = next((value for path in tool.streamed if type(value := at(content, path)) is bool), None)
    if said is not None:
        return said
    return tokens.get("output", math.inf) <= 1 or all(_middle(times.get(of, {})) != 0 for of in _OF_TOKENS)


def _unusable(times: dict[str, dict[str, float]], *, streamed: bool) -> list[str]:
    """Takes out of the times what is not what its name says; returns why."""
    left_out = []
    if not streamed and (taken := [of.upper() for of in _STREAMED if times.pop(of, None)]):
        left_out.append(f"answers were not streamed, so there is no {', '.join(taken)}")
    if "itl" in times and (why := _no_gaps(times["itl"], _middle(times.get("tpot", {})))):
        left_out.append(f"ITL is not used: {why}")
        del times["itl"]
    for of, values in times.items():
        left_out += [f"{statistic} of {of.upper()} is 0" for statistic, value in values.items() if not value]
        times[of] = {statistic: value for statistic, value in values.items() if value}
    return left_out


def _no_gaps(itl: Mapping[str, float], tpot: float | None) -> str:
    """Why gaps are not those between tokens; empty where they are."""
    if not tpot:
        return "there is no TPOT to hold it against"
    median, mean = _first(itl, "median", "p50"), _first(itl, "mean")
    if median is not None and median < BUNDLED * tpot:
        return f"half of the gaps are below {_ms(median)}, a token takes {_ms(tpot)}: tokens came in bundles"
    if mean is not None and mean > SEVERAL * tpot:
        return f"a gap takes {_ms(mean)} in the mean, a token {_ms(tpot)}: chunks hold several tokens"
    return ""


def _middle(values: Mapping[str, float]) -> float | None:
    """The mean of a quantity, else its median; ``None`` where a file says neither."""
    return _first(values, "mean", "avg", "median", "p50")


def _first(values: Mapping[str, float], *names: str) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _named(time: str, statistic: str) -> str | None:
    """The metric that is this statistic of a time: ``ttft`` and ``p99`` are ``ttft_quantile[p99]``."""
    if statistic in ("median", "p50", "50") and time != "tpot":
        return f"{time}_median"
    if statistic in ("mean", "avg") and time == "tpot":
        return "tpot_mean"
    match = re.fullmatch(r"p?(\d{1,2}(?:\.\d{1,4})?)", statistic)
    return f"{time}_quantile[p{float(match[1]):g}]" if match and float(match[1]) > 0 else None

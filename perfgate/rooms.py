"""Optional rooms: folders beside this file with a ``room.toml`` that says what they bring, by name and where it is.

A room joins by its table alone, so that a folder can be deleted or added and no other file changes. Tables are read
when one is asked for, and what an entry names is imported when it is used: ``perfgate --help`` imports no room. Only
folders of the installed package are rooms; what other packages bring never takes part in a verdict.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, TypeVar

from perfgate.errors import UsageError

FOLDER: Final = Path(__file__).parent
TABLE: Final = "room.toml"
_Entry = TypeVar("_Entry")

_OF_KERNELS = ("host_work_per_step", "host_slack_per_step", "kernel_time_per_step", "kernel_throughput", "dram_bytes",
               "dram_read", "registers", "instructions", "bf16_operations")  # fmt: skip

SHIPPED: Final = {
    "baseline": ("commands.baseline", "commands.profile", "reports.drift", "uses.references"),
    "bisect": ("commands.bisect", "reports.bisect"),
    "calls": ("kinds.called", "kinds.sampled", "metrics.host_calls_per_step"),
    "cluster": (),
    "counters": ("uses.counters",),
    "doctor": ("commands.doctor", "reports.doctor", "schemas.doctor", "uses.preflight"),
    "drill": ("commands.drill", "reports.drill", "reports.replay"),
    "fleet": ("commands.plan", "commands.nightly", "uses.shards"),
    "github": ("commands.github", "formats.github"),
    "history": ("commands.history",),
    "imports": (),
    "kernels": (
        "commands.counters",
        "commands.envelope",
        "commands.kernels",
        "kinds.counted",
        "kinds.traced",
        "reports.answer",
        "reports.counters",
        "reports.joined",
        "reports.kernels",
        "uses.envelope",
        *(f"metrics.{name}" for name in _OF_KERNELS),
    ),
    "load": (
        "drivers.server",
        "metrics.draft_acceptance",
        "metrics.e2e_quantile",
        "metrics.goodput",
        "metrics.itl_quantile",
        "metrics.kv_use",
        "metrics.max_rate",
        "metrics.preemptions",
        "metrics.prefix_hit_share",
        "metrics.queue_time",
        "metrics.request_throughput",
        "metrics.tpot_quantile",
        "metrics.ttft_quantile",
        "uses.server_url",
        "uses.slo",
    ),
    "project": ("uses.config", "uses.builds", "uses.git", "schemas.config"),
    "trace": (),
    "verify": ("commands.verify",),
}
"""What rooms of a whole installation bring that may be asked for by name: where one was removed, errors name it."""


@cache
def tables() -> dict[str, dict[str, dict[str, Any]]]:
    """The table of each room, by the room's name; a room goes with each room that it needs.

    Raises:
        UsageError: A table cannot be read, or says what another says, or lacks what every entry has.
    """
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for file in sorted(FOLDER.glob(f"*/{TABLE}")):
        try:
            tables[file.parent.name] = tomllib.loads(file.read_text(encoding="utf-8"))
            _check(tables[file.parent.name], [table for name, table in tables.items() if name != file.parent.name])
        except ValueError as error:  # no TOML, or no text
            raise UsageError(f"the room {file.parent.name} is broken: {file}: {error}") from error
    while lacking := [name for name, table in tables.items() if {*table.get("needs", ())} - tables.keys()]:
        tables = {name: table for name, table in tables.items() if name not in lacking}
    return tables


def _check(table: dict[str, Any], others: Sequence[dict[str, Any]]) -> None:
    """Refuse a table by which something would be lost without a word.

    Raises:
        ValueError: It is such a table.
    """
    needs = table.get("needs", [])
    if not isinstance(needs, list) or not all(isinstance(name, str) for name in needs):
        raise ValueError("needs: expected a list of names of rooms")
    for kind, brought in table.items():
        if kind == "needs":
            continue
        if not isinstance(brought, dict):
            raise ValueError(f"{kind}: expected entries by name")  # noqa: TRY004 (what is wrong is a value of a file)
        twice = [name for name in brought if kind != "options" and any(name in other.get(kind, {}) for other in others)]
        if twice:
            raise ValueError(f"{kind}.{twice[0]}: another room brings this too")
        if lacking := [name for name, each in brought.items() if kind == "commands" and not {"run", "help"} <= {*each}]:
            raise ValueError(f"{kind}.{lacking[0]}: expected run and help")


def entries(kind: str) -> dict[str, Any]:
    """All entries of a kind (``commands``, ``reports``, ...) by name, over all rooms."""
    return {name: entry for room in tables().values() for name, entry in room.get(kind, {}).items()}


def declared(kind: str, model: Callable[..., _Entry]) -> dict[str, _Entry]:
    """All entries of a kind that have a ``place``, as a dataclass holds them: by name, in the order of their places.

    Raises:
        UsageError: An entry has a key that there is not, or lacks one.
    """
    made: list[tuple[str, Any]] = []
    for name, content in entries(kind).items():
        try:
            made.append((name, model(name=name, **content)))
        except TypeError as error:
            raise UsageError(f"the room of the {kind.removesuffix('s')} {name} is broken: {error}") from error
    return dict(sorted(made, key=lambda named: named[1].place))


def home(kind: str, name: str) -> str:
    """The room of a whole installation that brings an entry; empty where none does."""
    return next((room for room, brought in SHIPPED.items() if f"{kind}.{name}" in brought), "")


def entry(kind: str, name: str) -> Any:
    """An entry.

    Raises:
        UsageError: No room brings it; the room that would is named.
    """
    table = entries(kind)
    if name in table:
        return table[name]
    refuse_removed(kind, name, f"{kind} {name}")
    raise UsageError(f"no room brings {kind} {name!r}; there are {', '.join(sorted(table)) or 'none'}")


def refuse_removed(kind: str, name: str, what: str) -> None:
    """Refuse an entry that is not here because its room was removed; nothing where no room of ours brings it.

    Raises:
        UsageError: It is such an entry; ``what`` says for what it was asked.
    """
    if room := home(kind, name):
        raise missing(room, what)


def missing(room: str, what: str) -> UsageError:
    """The error for what a room would bring that was removed, or that needs a removed room."""
    lacking = _removed(room) or [room]
    names = " and ".join(map(repr, lacking))
    rooms = "rooms" if len(lacking) > 1 else "room"
    remedy = f"Install perfgate whole, or put perfgate/{lacking[0]} back."
    return UsageError(f"{what}: the {rooms} {names} {'are' if len(lacking) > 1 else 'is'} not here", remedy=remedy)


def _removed(room: str) -> list[str]:
    """Which are not here of a room and of those that it needs, and they need."""
    file = FOLDER / room / TABLE
    if not file.is_file():
        return [room]
    needs = tomllib.loads(file.read_text(encoding="utf-8")).get("needs", ())
    return [*dict.fromkeys(name for need in needs for name in _removed(need))]


def bring(place: str) -> Any:
    """What ``module`` or ``module:name`` is, imported.

    Raises:
        UsageError: The room is broken: it names what is not there.
    """
    try:
        return resolve_name(place)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"a room is broken: {place}: {error}") from error


def use(name: str) -> Any:
    """What a room brings for the core to use: a module or a function.

    Raises:
        UsageError: No room brings it; the room that would is named.
    """
    return bring(entry("uses", name))


def offered(name: str) -> Any | None:
    """The same, or ``None`` where it is not here and the core does without."""
    return bring(entries("uses")[name]) if name in entries("uses") else None


def with_options(command: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command of the core the options that rooms bring; in their order each may take the call for itself."""
    brought = [room["options"][command] for room in tables().values() if command in room.get("options", {})]

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for each in sorted(brought, key=lambda each: each["order"], reverse=True):
            function = bring(each["by"])(function)
        return function

    return decorated

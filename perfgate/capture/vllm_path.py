"""What a process of an engine used of the folders that its subject's ``path=`` puts on the module path.

Read once, when a trial is over: nothing is hooked. Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its
path: it imports nothing of perfgate and must run on Python 3.10. What runs in a rank travels there by value, because no
rank can import this file.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib.metadata
import logging
import multiprocessing
import os
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GROUPS = ("vllm.", "torch.backends", "torch_dynamo_backends", "triton.backends")
"""Beginnings of the groups of entry points that an engine loads on its own."""
MOST_NAMES, MOST_OBJECTS, MOST_S = 8, 20_000, 0.2
"""Plugins that are named, and objects and seconds of work after which it is not known whether something changed."""
CONTAINERS = (dict, list, tuple, set, frozenset, types.CellType, types.FunctionType, types.MethodType, staticmethod,
              classmethod, property, functools.partial, type(functools.lru_cache(len)), types.GetSetDescriptorType,
              types.MemberDescriptorType)  # fmt: skip
"""Kinds that hold functions and classes."""
FLAG, MOST, MOST_CHARACTERS = 12, 256, 200
"""Characters of a variable that says yes, no or how many, entries of a table, and characters of a constant."""
SETTINGS = ("get_num_threads", "get_float32_matmul_precision", "are_deterministic_algorithms_enabled",
            "get_default_dtype", "is_grad_enabled")  # fmt: skip
"""Functions of torch that tell what was set."""


def path_used(engine: Any, folders: list[str], call_ranks: Callable[..., list[Any]]) -> list[Any]:
    """What each process of the engine used, see :func:`report`; ``None`` in the place of one that does not tell."""
    answer = report(None, folders)
    try:
        ranks = call_ranks(engine, report, folders) or [None]
    except Exception:  # noqa: BLE001 (a rank that is gone tells nothing, and the others' answers are lost with it)
        ranks = [None]
    return [answer, *(rank for rank in ranks if not isinstance(rank, dict) or rank.get("pid") != os.getpid())]


def report(_worker: Any, folders: list[str]) -> dict[str, Any] | None:
    """What this process used of each folder, in their order; ``None`` where it cannot be told.

    Nothing is raised: vLLM would leave the other ranks' answers unread, and take them for those to its next call.

    Returns:
        ``process``: its name; ``pid``; ``state``: a digest of what vLLM's modules and the variables are, empty where
        that is unknown; ``folders``: of each ``modules`` and ``libraries``: how many were imported or mapped from it;
        ``plugins``: names of its entry points that were loaded; ``apart``: whether nothing else refers to its code.
    """
    try:
        modules, libraries = modules_of(folders), libraries_of(folders)
        held = libraries if all(modules) else held_by_vllm(folders)
        used = [
            {"modules": len(names) or more, "libraries": mapped, "plugins": plugins_of(folder), "apart": False}
            for folder, names, mapped, more in zip(folders, modules, libraries, held)  # noqa: B905 (3.10)
        ]
        name = multiprocessing.current_process().name
    except Exception:  # noqa: BLE001 (whatever a package or module does when it is looked at)
        return None
    state = ""
    try:
        for entry, names in zip(used, modules):  # noqa: B905 (3.10)
            entry["apart"] = bool(names) and not entry["libraries"] and is_apart(names)
        state = state_of_vllm()
    except Exception:  # noqa: BLE001 (as above: what was used is known, and no more)
        for entry in used:
            entry["apart"] = False
    return {"process": name, "pid": os.getpid(), "state": state, "folders": used}


# --- what was used


def modules_of(folders: list[str]) -> list[list[str]]:
    """The names of the modules that were imported from each folder.

    Below a folder may be others of the module path, an environment say: a module belongs to the one that its own name
    begins in, and one that was loaded under another name to the innermost one around it.
    """
    names: list[list[str]] = [[] for _ in folders]
    places, others = places_of(folders), other_places()
    for name, module in [*sys.modules.items()]:
        kept = getattr(module, "__dict__", None)
        if not isinstance(kept, dict):
            continue
        file = kept.get("__file__")
        if isinstance(file, str):
            number = place_of(file, places, others, name)
        else:
            inside = [place_of(f"{folder}{os.sep}", places, others, name) for folder in portions(kept)]
            number = inside[0] if len({*inside}) == 1 else None
        if number is not None:
            names[number].append(name)
    return names


def portions(kept: dict[str, Any]) -> list[str]:
    """The folders of a namespace package; each further one is on the path without anything of it in use."""
    path = kept.get("__path__")
    folders = getattr(path, "_path", path)
    return [folder for folder in folders if isinstance(folder, str)] if isinstance(folders, (list, tuple)) else []


def held_by_vllm(folders: list[str]) -> list[int]:
    """How many files of each folder have functions that vLLM holds, in tables too: no module of them need be left."""
    files: set[str] = set()
    open_ = [entry for name, kept in modules_of_vllm() for key, entry in [*kept.items()] if key[:2] != "__"]
    seen = {id(vars(builtins))}
    for entry in open_:  # it grows
        if id(entry) in seen:
            continue
        seen.add(id(entry))
        if type(entry) is types.FunctionType:
            files.add(entry.__code__.co_filename)
            open_ += [*(entry.__closure__ or ()), *vars(entry).values()]
        elif issubclass(type(entry), type):
            open_ += vars(entry).values()
        elif type(entry) in CONTAINERS:
            open_ += gc.get_referents(entry)
    return count_in(folders, files)


def libraries_of(folders: list[str]) -> list[int]:
    """How many shared objects of each folder this process has mapped."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as stream:
        files = {line[line.index("/") :].rstrip("\n") for line in stream if "/" in line and ".so" in line}
    return count_in(folders, files)


def count_in(folders: list[str], files: set[str]) -> list[int]:
    """How many of some files are of each folder."""
    places, others = places_of(folders), other_places()
    numbers = [place_of(file, places, others, "") for file in files]
    return [numbers.count(number) for number in range(len(folders))]


def plugins_of(folder: str) -> list[str]:
    """The names of the entry points below a folder that an engine loads by itself, and whose modules are there."""
    allowed = os.environ.get("VLLM_PLUGINS")
    named = []
    for package in importlib.metadata.distributions(path=[folder]):
        for entry in package.entry_points:
            chosen = allowed is None or entry.name in allowed.split(",") or not entry.group.startswith("vllm.")
            if chosen and entry.group.startswith(GROUPS) and entry.value.partition(":")[0].strip() in sys.modules:
                named.append(entry.name[:100])
    return sorted({*named})[:MOST_NAMES]


def places_of(folders: list[str]) -> list[tuple[str, int]]:
    """Each folder as it was named, and as it is without links, with its number."""
    both = [(path, n) for n, folder in enumerate(folders) for path in (str(Path(folder)), os.path.realpath(folder))]
    return [(path.rstrip(os.sep) + os.sep, number) for path, number in dict.fromkeys(both)]


def other_places() -> tuple[str, ...]:
    """Places that count for themselves inside a folder: the interpreter, its path, the trial's folder, and caches."""
    parts = [part for value in [*os.environ.values()] for part in value.split(os.pathsep) if part.startswith(os.sep)]
    entries = [sys.prefix, sys.base_prefix, str(Path.cwd()), *sys.path, *parts]
    both = {path for entry in entries if entry for path in (entry, os.path.realpath(entry))}
    return tuple(path.rstrip(os.sep) + os.sep for path in both)


def place_of(file: str, places: list[tuple[str, int]], others: tuple[str, ...], module: str) -> int | None:
    """The number of the folder that a file is of; ``None`` where it is of none."""
    inside = [(len(folder), -number, folder) for folder, number in places if file.startswith(folder)]
    if not inside:
        return None
    stem = module.replace(".", os.sep)
    for _, number, folder in sorted(inside, key=lambda place: -place[1]):
        if stem and file[len(folder) :].startswith((f"{stem}.", f"{stem}{os.sep}")):
            return -number
    if stem and any(
        file[len(folder) :].startswith((f"{stem}.", f"{stem}{os.sep}")) for folder in others if file.startswith(folder)
    ):
        return None
    most, number, _ = max(inside)
    return None if any(len(folder) > most and file.startswith(folder) for folder in others) else -number


# --- whether it does anything


def is_apart(names: list[str]) -> bool:
    """Whether nothing but modules of these names refers to a function or class of theirs; false where in doubt.

    What is counted is all that refers to them, from C too: whatever has more references than lie among what the modules
    hold is known elsewhere, and so is all that it leads to.
    """
    if {"sitecustomize", "usercustomize"} & {*names}:
        return False
    code = Own(names)
    objects: list[Any]
    objects, ids, held = [*code.modules], {id(mod): number for number, mod in enumerate(code.modules)}, [0] * len(names)
    number = 0
    while number < len(objects):  # it grows; a name for what is looked at would be one reference more
        for other in code.leads_to(objects[number]):
            if id(other) not in ids:
                ids[id(other)] = len(objects)
                objects.append(other)
                held.append(0)
            held[ids[id(other)]] += 1
            del other
        number += 1
        if len(objects) > MOST_OBJECTS:
            return False
    code.modules.clear()
    objects.append([])
    once = sys.getrefcount(objects[-1])
    more = [sys.getrefcount(objects[number]) - once - count for number, count in enumerate(held)]
    reached = [number for number, count in enumerate(more) if count > (number < len(names))]  # sys.modules has each
    seen = {*reached}
    while reached:
        number = reached.pop()
        if code.is_code(objects[number]):
            return False
        further = {ids[id(other)] for other in code.leads_to(objects[number])} - seen
        seen |= further
        reached += further
    return True


class Own:
    """Modules of some names, and what is theirs.

    Args:
        names: Of modules that were imported.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = {*names}
        self.modules = [sys.modules[name] for name in names]
        self.places = {id(module) for module in self.modules}
        self.globals = {id(vars(module)) for module in self.modules}

    def is_code(self, referent: Any) -> bool:
        """Whether something is a function or a class of the modules."""
        if type(referent) is types.FunctionType:
            return id(referent.__globals__) in self.globals
        return isinstance(referent, type) and type.__dict__["__module__"].__get__(referent) in self.names

    def leads_to(self, referrer: Any) -> list[Any]:
        """What something refers to that can hold functions or classes, once for each reference.

        Of a function that is not theirs that is less: what it is called with, not all that is in its own module.
        """
        held = gc.get_referents(referrer)
        if type(referrer) is types.FunctionType and not self.is_code(referrer):
            held = [other for other in held if other is not referrer.__globals__]
        return [other for other in held if self.is_looked_into(other)]

    def is_looked_into(self, referent: Any) -> bool:
        """Whether what something refers to may be theirs; what it is told by is its kind, which runs nothing of it."""
        kind = type(referent)
        if kind is dict:
            return referent is not vars(builtins)
        if kind is types.ModuleType:
            return id(referent) in self.places
        return kind in CONTAINERS or self.is_code(referent) or self.is_code(kind)


# --- what else a plugin can change


def state_of_vllm() -> str:
    """A digest of what vLLM's modules and classes hold, of variables and of settings; empty where that takes too long.

    Processes of one build that do the same have the same. A constant that somebody set shows, a registry with one entry
    more, or a function that another one of vLLM's own took the place of. Order does not count.
    """
    begin_s, total = time.thread_time(), 0
    shapes: dict[int, str] = {}
    for name, kept in modules_of_vllm():
        total += sum(zlib.crc32(line.encode(errors="replace")) for line in lines_of_module(name, kept, shapes))
        if time.thread_time() - begin_s > MOST_S:
            return ""
    total += sum(zlib.crc32(line.encode(errors="replace")) for line in lines_of_process())
    return f"{total:016x}"


def modules_of_vllm() -> Iterator[tuple[str, dict[str, Any]]]:
    """The modules of vLLM by name, and what each holds."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "vllm" and isinstance(kept := getattr(module, "__dict__", None), dict):
            yield name, kept


def lines_of_module(name: str, kept: dict[str, Any], shapes: dict[int, str]) -> Iterator[str]:
    """What a module and its classes hold, but for what is where its name says: that is counted, which is far sooner.

    Args:
        name: Of the module.
        kept: What it holds.
        shapes: Shapes by the id of what has them, for the next modules.
    """
    usual, file = 0, kept.get("__file__")
    for key, value in [*kept.items()]:
        if key[:2] == "__" or type(value) is types.ModuleType:
            continue
        if is_at_home(key, value):
            usual += 1
        else:
            if id(value) not in shapes:
                shapes[id(value)] = shape(value)
            yield f"{name}.{key} {shapes[id(value)]}"
        if isinstance(value, type) and value.__module__ == name:
            begin, members = f"{value.__qualname__}.", [*vars(value).items()]
            odd = [(inner, member) for inner, member in members if not is_own_method(begin, inner, member, file)]
            usual += len(members) - len(odd)
            yield from (f"{name} {begin}{inner} {shape(member)}" for inner, member in odd)
    yield f"{name} {usual}"


def is_at_home(key: str, value: Any) -> bool:
    """Whether a name in a module is that of a function or class which its own module has by that name."""
    if not isinstance(value, (types.FunctionType, type)) or value.__qualname__ != key:
        return False
    home = getattr(sys.modules.get(value.__module__), "__dict__", {})
    return home.get(key) is value and (type(value) is not types.FunctionType or value.__code__.co_name == key)


def is_own_method(begin: str, name: str, value: Any, file: object) -> bool:
    """Whether an attribute of a class is the method that its module's file has there, or one that Python keeps."""
    if type(value) is not types.FunctionType:
        return name[:2] == "__" and not isinstance(value, (staticmethod, classmethod, property))
    code = value.__code__
    is_of_the_file = code.co_filename in (file, "<string>")  # as dataclasses write it
    return value.__qualname__ == begin + name and code.co_name == name and is_of_the_file


def shape(value: Any) -> str:
    """What something is, the same in every process: where a function begins, a class, a constant."""
    kind = type(value)
    if kind in CONSTANTS:
        return repr(value)[:MOST_CHARACTERS]
    if kind in SHAPES:
        return SHAPES[kind](value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    kept = getattr(value, "__dict__", None) if kind.__module__.partition(".")[0] == "vllm" else None
    if not isinstance(kept, dict) or isinstance(value, types.ModuleType):
        return f"{kind.__module__}.{kind.__qualname__}"
    entries = ((key, entry) for key, entry in [*kept.items()] if type(entry) is not str)  # which may be drawn anew
    return f"{kind.__qualname__} {sorted(f'{key} {inner_shape(entry)}' for key, entry in entries)}"


def inner_shape(value: Any) -> str:
    """The same of what a table or an object holds, without what that holds in turn."""
    kind = type(value)
    if kind is dict:
        return f"dict {len(value)}"
    if kind in CONSTANTS or kind is types.FunctionType or isinstance(value, type):
        return shape(value)
    return kind.__name__


def entries_of(value: dict[Any, Any]) -> list[str]:
    """What a table has under which names; a large one may be a cache."""
    return [f"{key} {inner_shape(entry)}" for key, entry in [*value.items()] if type(key) is str]


CONSTANTS = frozenset({bool, int, float, str, bytes, type(None)})
SHAPES: dict[type, Callable[[Any], str]] = {
    types.FunctionType: lambda f: f"{f.__code__.co_filename}:{f.__code__.co_firstlineno} {f.__qualname__}",
    staticmethod: lambda value: f"static {shape(value.__func__)}",
    classmethod: lambda value: f"of class {shape(value.__func__)}",
    property: lambda value: f"{shape(value.fget)} {shape(value.fset)}",
    functools.partial: lambda value: f"partial {shape(value.func)} {len(value.args)} {sorted(value.keywords)}",
    **dict.fromkeys((list, tuple), lambda value: f"{len(value)} {[inner_shape(one) for one in value[:MOST]]}"),
    dict: lambda value: f"dict {sorted(entries_of(value)) if len(value) <= MOST else len(value)}",
    **dict.fromkeys((set, frozenset), lambda value: f"{type(value).__name__} {len(value)}"),
}


def lines_of_process() -> Iterator[str]:
    """What can be set beside vLLM and lengthens or shortens a step: variables, torch, the interpreter, the process."""
    for name, value in [*os.environ.items()]:
        if not (name.startswith("PERFGATE") or name.endswith("PORT") or name == "PYTHONPATH"):
            yield f"{name}={value if len(value) <= FLAG and os.sep not in value else ''}"
    yield f"{gc.isenabled()} {gc.get_threshold()} {gc.get_freeze_count() > 0}"  # how many differs between processes
    yield f"{sys.getswitchinterval()} {len(os.sched_getaffinity(0))} {os.getpriority(0, 0)} {logging.root.level}"
    torch: Any = sys.modules.get("torch")
    for name in SETTINGS:
        yield f"{name} {getattr(torch, name, str)()}"
    backends = getattr(torch, "backends", None)
    for backend in (getattr(backends, "cudnn", None), getattr(getattr(backends, "cuda", None), "matmul", None)):
        yield " ".join(str(getattr(backend, key, "")) for key in ("allow_tf32", "benchmark", "deterministic"))
    for name in ("torch._inductor.config", "torch._dynamo.config"):
        entries = vars(sys.modules[name]).get("_config") if name in sys.modules else None
        for key, entry in [*entries.items()] if isinstance(entries, dict) else ():
            yield f"{name}.{key} {inner_shape(getattr(entry, 'user_override', None))}"

"""The house plan: which room may import which, and other rules that a reader can rely on."""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from perfgate.rooms import SHIPPED, TABLE, bring, tables

PACKAGE = Path(__file__).parents[2] / "perfgate"

CORE = (
    "reason_code", "profile_reasons", "reasons", "errors", "units", "models", "rooms", "scipy_special", "stats",
    "machine", "load", "metrics", "scenario", "record", "capture", "judge",
    "report", "run_steps", "gate", "cli",
)  # fmt: skip
"""From the ground up: a room, or a module at the root, imports only from those before it."""
OPTIONAL = (
    "imports", "project", "trace", "counters", "doctor", "kernels", "calls", "baseline", "fleet",
    "cluster", "bisect", "drill", "verify", "github", "history",
)  # fmt: skip
"""Rooms that can be deleted: nothing of the core imports them, and they import only from the core and those before."""
ROOMS = (*CORE, *OPTIONAL, "__main__")

FORBIDDEN_NAMES = {"utils", "util", "helpers", "common", "core", "base", "manager"}
SUBJECT_SIDE = {
    "calls.call_counter",
    "calls.host_sampler",
    "calls.system_counters",
    "capture.vllm_batch",
    "capture.vllm_memory",
    "capture.vllm_path",
    "capture.vllm_probe",
    "capture.vllm_ranges",
    "capture.vllm_server",
    "capture.vllm_versions",
    "capture.vllm_worker",
    "doctor.probe",
}
"""Files that a subject's interpreter runs; they import engines, late, so that it can be timed and may fail."""
LATE_IMPORTS = {
    "record.run_record": {"frame", "iteration_frame"}, "scipy_special": {"__getattr__"},
    "counters.report_file": {"_launches"}, "__main__": {"main"},
}  # fmt: skip
"""Functions that may import, because what they need is slow and rarely wanted."""

FILES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def tree(module: str) -> ast.Module:
    """The source of a module, parsed."""
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def imported_names(node: ast.AST) -> set[str]:
    """The full names that an import statement may bind, ``perfgate.metrics.trial.Trial`` and its module as well."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


@functools.cache
def all_imports(module: str) -> set[str]:
    """Everything a module imports, wherever it does."""
    return set().union(*(imported_names(node) for node in ast.walk(tree(module))))


@functools.cache
def imports(module: str) -> set[str]:
    """The modules of perfgate that a module imports."""
    names = {name.removeprefix("perfgate.") for name in all_imports(module) if name.startswith("perfgate.")}
    return {name for name in names if name in FILES}


@functools.cache
def closure(module: str) -> set[str]:
    """Every module of perfgate that importing ``module`` leads to."""
    found = imports(module)
    return found.union(*(closure(each) for each in found)) if found else found


def room(module: str) -> str:
    """The room of a module; a module at the root is a room of its own."""
    return module.partition(".")[0]


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function of perfgate with its module."""
    for module in FILES:
        yield from ((module, node) for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef))


def test_rooms_import_only_what_is_below_them() -> None:
    """No arrow between rooms runs up."""
    assert {room(module) for module in FILES} - {"__init__"} == {*ROOMS}
    arrows = {(module, target) for module in FILES for target in imports(module) if room(module) != room(target)}
    assert not [(a, b) for a, b in arrows if ROOMS.index(room(b)) >= ROOMS.index(room(a))]


def test_rooms_say_which_others_they_stand_on() -> None:
    """The table of an optional room names the optional rooms that it imports, and no others."""
    for name in OPTIONAL:
        table = tomllib.loads((PACKAGE / name / TABLE).read_text(encoding="utf-8"))
        imported = {room(target) for module in FILES if room(module) == name for target in imports(module)}
        assert {*table.get("needs", ())} == imported & {*OPTIONAL} - {name}, name
    assert {*OPTIONAL} == {*SHIPPED}


def test_what_was_removed_can_be_named() -> None:
    """The list by which an error names a removed room has all that rooms bring and that is asked for by name."""
    asked = ("commands", "reports", "formats", "schemas", "kinds", "metrics", "uses")
    for name, told in SHIPPED.items():
        table = tables()[name]
        brought = {f"{kind}.{entry}" for kind in asked for entry in table.get(kind, {})}
        parts = [bring(kind["parts"]) for kind in table.get("kinds", {}).values() if "parts" in kind]
        assert {*told} == brought | {f"metrics.{metric}" for metrics in parts for metric in metrics}, name


def test_the_drawing_is_of_the_imports() -> None:
    """The drawing of the design has the rooms of the core, and an arrow where no way of two arrows says the same."""
    packages = [name for name in (*CORE, *OPTIONAL) if (PACKAGE / name).is_dir() or name == "gate"]
    below = {
        name: {room(each) for module in FILES if room(module) == name for each in imports(module)} for name in packages
    }
    ways = {name: {*packages} & below[name] - {name} for name in packages}
    lines = []
    for name in reversed([name for name in packages if name in CORE]):
        further = {each for near in ways[name] for each in reached(near, ways)}
        lines += [f"    {name} --> {each}" for each in packages if each in ways[name] - further]
    assert "\n".join(lines) in (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8"), "\n".join(lines)


def reached(name: str, ways: Mapping[str, set[str]]) -> set[str]:
    """Every room that a room leads to."""
    return ways[name].union(*(reached(each, ways) for each in ways[name]))


def places(value: object) -> Iterator[str]:
    """The modules that a table names, without ``perfgate.``."""
    if isinstance(value, dict):
        yield from (place for each in value.values() for place in places(each))
    elif isinstance(value, str) and value.startswith("perfgate."):
        yield value.removeprefix("perfgate.").partition(":")[0]


def test_tables_name_what_their_room_may_import() -> None:
    """What a room brings is in it, in one that it needs, or in the core: deleting another takes nothing of it away."""
    for name, table in tables().items():
        for place in places(table):
            assert place in FILES, f"{name}: {place}"
            assert room(place) in {name, *table.get("needs", ()), *CORE}, f"{name}: {place}"


def test_no_imports_run_in_a_circle() -> None:
    """Within a room too, a module imports none that leads back to it."""
    graphlib.TopologicalSorter({module: imports(module) - {module} for module in FILES}).prepare()


def test_names_of_modules_say_something() -> None:
    """No file has a name that could mean anything."""
    assert not {*(file.stem for file in FILES.values()), *ROOMS} & FORBIDDEN_NAMES


def test_every_room_says_what_it_is_for() -> None:
    """The first file of a room has a docstring."""
    for module in FILES:
        assert ast.get_docstring(tree(module)), module


def test_tests_mirror_the_rooms() -> None:
    """A folder of tests is called like a room, but for those of the whole."""
    folders = {file.parent.name for file in Path(__file__).parents[1].rglob("test_*.py")}
    assert folders - {*ROOMS} <= {"tests", "house", "end_to_end", "extending", "frozen", "research"}


def test_capture_and_judge_never_import_each_other() -> None:
    """The record is all that passes between them, at whatever distance."""
    for module in FILES:
        reached = {room(each) for each in closure(module)}
        assert room(module) != "capture" or "judge" not in reached, module
        assert room(module) != "capture" or "stats" not in {room(each) for each in imports(module)}, module
        assert room(module) not in ("judge", "report") or "capture" not in reached, module


def test_what_the_subject_runs_imports_nothing_of_perfgate() -> None:
    """The subject's interpreter runs these files: nothing of perfgate is there, and nothing imports them here."""
    allowed = {*sys.stdlib_module_names, "vllm", "torch", "nvtx", "numpy", "PIL"}
    for alone in SUBJECT_SIDE:
        assert {name.partition(".")[0] for name in all_imports(alone)} <= allowed
        assert not [module for module in FILES if alone in imports(module)]


def test_perfgate_imports_no_engine() -> None:
    """Engines run in processes of their own; perfgate's has neither vllm nor torch."""
    for module in {*FILES} - SUBJECT_SIDE:
        assert not {name.partition(".")[0] for name in all_imports(module)} & {"vllm", "torch", "nvtx"}, module


def test_imports_are_at_the_top() -> None:
    """No function imports, but for the few named above; commands do, so that --help is fast."""
    for module, function in functions():
        late = [node for node in ast.walk(function) if imported_names(node)]
        free = (
            room(module) == "cli"
            or "command" in module
            or module == "baseline.run_options"
            or module in SUBJECT_SIDE
            or function.name in LATE_IMPORTS.get(module, set())
        )
        assert free or not late, f"{module}.{function.name}"


def test_files_and_functions_are_short() -> None:
    """No file has more than 400 lines, no function more than 60."""
    assert not [module for module, file in FILES.items() if len(file.read_text(encoding="utf-8").splitlines()) > 400]
    assert not [
        f"{module}.{function.name}"
        for module, function in functions()
        if (function.end_lineno or 0) - function.lineno + 1 > 60
    ]

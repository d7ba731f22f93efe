"""The house plan: which module may import which (docs/design.md), and other rules that a reader can rely on."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "perfgate"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("github", "github.final"),
    (
        "__init__",
        "errors",
        "capture",
        "capture.cgroup",
        "capture.limits",
        "capture.supervisor",
        "jsontext",
        "outlet",
        "streams",
    ),
    ("capture.forked", "durable"),
    ("environment", "stats", "trials", "reasons", "document", "telemetry", "roles", "kernels", "counters", "hardware"),
    ("metrics", "shape"),
    ("fields", "engine_arguments", "findings", "steps", "layers", "breakdown", "quantisation", "prediction"),
    ("looks", "pattern", "selection", "transformer"),
    ("expectation", "margins", "attribution", "difference", "roofline", "counted"),
    ("counting",),
    ("scenario", "table", "join", "config", "repository"),
    ("subject", "plan", "floor"),
    ("record", "lock", "capture.trace", "capture.export"),
    ("price", "sweep", "manifest", "capture.nsys", "capture.torchprof"),
    ("outcome", "capture.collector", "capture.pace", "capture.worker", "capture.probe", "capture.tracefile"),
    ("capture.process", "capture.enginelog", "capture.gpu", "capture.lease", "capture.scrub", "capture.ncu"),
    ("capture.clock_helper", "capture.counterfile", "build"),
    ("envelope", "counter_checks", "dropped", "folders", "runs"),
    ("cautions", "setting"),
    ("capture.timeline", "capture.sampler", "capture.clocks", "capture.profilers"),
    ("capture.engine", "gpu_checks", "baseline"),
    ("capture.workload", "capture.steady", "capture.locate", "capture.starts", "store"),
    ("capture.traced", "capture.counted"),
    ("capture.fake",),
    ("capture.session", "preflight"),
    ("rule",),
    ("judge",),
    ("against",),
    ("comparison",),
    ("report.counted",),
    ("report.lines", "report.attribution"),
    ("promotion", "report.setting"),
    ("report.text", "report.markdown", "report.price", "report.pages", "report.scenario_page", "report.junit"),
    ("report.github",),
    ("report.findings", "report.kernels", "report.counters", "report.baseline", "report.runs"),
    ("report.join",),
    ("report",),
    ("gate", "progress", "doctor"),
    ("nightly", "github.api", "github.job", "github.verdict", "github.templates"),
    ("github.artifact", "verification", "github.policy", "github.proposal", "starter"),
    ("github.comment",),
    ("cli_github", "cli_init"),
    ("cli_completion",),
    ("cli_subjects",),
    ("cli_report",),
    ("cli_machine", "cli_kernels", "cli_baseline", "cli_check", "cli_verify"),
    ("cli_nightly",),
    ("cli",),
    ("__main__",),
)
"""Floors from the ground up: a module imports only from lower ones. A package without code stands on the ground."""

FLOOR = {module: number for number, floor in enumerate(FLOORS) for module in floor}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "common", "core", "base", "manager"}
MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 60
SUBJECT_SIDE = {"capture.worker", "capture.probe"}
"""Files that a subject's interpreter runs; they import engines, late, so that it can be timed and may fail."""
LATE_IMPORTS = {"record": {"frame", "iteration_frame"}, "capture.counterfile": {"_package"}, "__main__": {"main"}}
"""Functions that may import, because what they need is slow and rarely wanted."""

FILES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
COMMANDS = {name for name in FILES if name.startswith("cli")}
"""Their bodies import, so that --help is fast."""
TREES = {module: ast.parse(file.read_text(encoding="utf-8")) for module, file in FILES.items()}


def imported_names(node: ast.AST) -> set[str]:
    """The full names that an import statement may bind, ``perfgate.record.Trial`` as well as ``perfgate.record``."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


@functools.cache
def all_imports(module: str) -> set[str]:
    """Everything a module imports, wherever it does."""
    return set().union(*(imported_names(node) for node in ast.walk(TREES[module])))


def roots(module: str) -> set[str]:
    """The packages that a module imports from."""
    return {name.partition(".")[0] for name in all_imports(module)}


def functions(module: str) -> list[ast.FunctionDef]:
    """Every function of a module."""
    return [node for node in ast.walk(TREES[module]) if isinstance(node, ast.FunctionDef)]


def rooms(module: str) -> set[str]:
    """The modules of perfgate that a module imports."""
    names = {name.removeprefix("perfgate.") for name in all_imports(module) if name.startswith("perfgate.")}
    return {name for name in names if name in FILES}


def test_modules_import_only_lower_floors() -> None:
    """The plan lists every module, and what it imports stands below it, so that there is no circle."""
    assert not {*FILES} - {*FLOOR}, "a module stands on no floor: put it into the table above and into docs/design.md"
    upward = [(module, room) for module in FILES for room in rooms(module) if FLOOR[room] >= FLOOR[module]]
    assert not upward, "what a module imports does not stand below it"


def test_the_plan_lists_what_exists() -> None:
    """The plan has no module that is gone."""
    assert {*FLOOR} <= {*FILES}


def test_capture_and_judge_never_import_each_other() -> None:
    """The record is all that passes between them, at whatever distance."""
    reached = {module: closure(module) for module in FILES}
    for module in FILES:
        if module.startswith("capture"):
            assert not reached[module] & {"judge", "outcome"}, module
            assert "stats" not in rooms(module), module
        if module in ("judge", "outcome") or module.startswith("report"):
            assert not {room for room in reached[module] if room.startswith("capture")}, module


@functools.cache
def closure(module: str) -> set[str]:
    """Every module of perfgate that importing ``module`` leads to."""
    found = rooms(module)
    return found.union(*(closure(room) for room in found)) if found else found


def test_what_the_subject_runs_stands_alone() -> None:
    """The subject's interpreter runs these files: nothing of perfgate is there, and nothing imports them here."""
    allowed = {*sys.stdlib_module_names, "vllm", "torch", "nvtx"}
    strange = {alone: {root for root in roots(alone) if root not in allowed} for alone in SUBJECT_SIDE}
    assert strange == {alone: set() for alone in SUBJECT_SIDE}
    assert not [module for module in FILES if rooms(module) & SUBJECT_SIDE]


def test_perfgate_imports_no_engine() -> None:
    """Engines run in processes of their own; perfgate's has neither vllm nor torch."""
    engines = {module for module in FILES if roots(module) & {"vllm", "torch", "nvtx"}}
    assert engines <= SUBJECT_SIDE


def test_imports_stand_at_the_top() -> None:
    """No function imports, but for the few that the design names; commands of cli.py may, so that --help is fast."""
    late = {
        (module, function.name)
        for module in {*FILES} - {*COMMANDS, *SUBJECT_SIDE}
        for function in functions(module)
        if any(imported_names(node) for node in ast.walk(function))
    }
    assert late <= {(module, name) for module, names in LATE_IMPORTS.items() for name in names}


def test_files_are_short_and_named_by_what_they_own() -> None:
    """No file has more than 500 lines or a name that could mean anything."""
    lines = {module: len(file.read_text(encoding="utf-8").splitlines()) for module, file in FILES.items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES} == {}
    assert [module for module in FILES if set(module.split(".")) & FORBIDDEN_NAMES] == []


def test_functions_are_short() -> None:
    """No function has more than 60 lines."""
    lines = {
        f"{module}.{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for module in FILES
        for function in functions(module)
    }
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FUNCTION} == {}

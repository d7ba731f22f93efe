"""The house plan: which module may import which (docs/design.md), and other rules that a reader can rely on."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "perfgate"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("github", "github.final"),
    ("__init__", "errors", "capture", "capture.limits", "capture.supervisor", "jsontext", "outlet", "streams"),
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


def rooms(module: str) -> set[str]:
    """The modules of perfgate that a module imports."""
    names = {name.removeprefix("perfgate.") for name in all_imports(module) if name.startswith("perfgate.")}
    return {name for name in names if name in FILES}


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_only_lower_floors(module: str) -> None:
    """The plan lists every module, and what it imports stands below it, so that there is no circle."""
    assert module in FLOOR, f"{module} stands on no floor: put it into the table above and into docs/design.md"
    for room in rooms(module):
        assert FLOOR[room] < FLOOR[module], f"{module} imports {room}, which does not stand below it"


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


@pytest.mark.parametrize("alone", sorted(SUBJECT_SIDE))
def test_what_the_subject_runs_stands_alone(alone: str) -> None:
    """The subject's interpreter runs these files: nothing of perfgate is there, and nothing imports them here."""
    allowed = {"vllm", "torch", "nvtx"}
    roots = {name.partition(".")[0] for name in all_imports(alone)}
    assert roots <= set(sys.stdlib_module_names) | allowed
    assert not [module for module in FILES if alone in rooms(module)]


@pytest.mark.parametrize("module", FILES)
def test_perfgate_imports_no_engine(module: str) -> None:
    """Engines run in processes of their own; perfgate's has neither vllm nor torch."""
    roots = {name.partition(".")[0] for name in all_imports(module)}
    assert module in SUBJECT_SIDE or not roots & {"vllm", "torch", "nvtx"}


@pytest.mark.parametrize("module", [module for module in FILES if module not in {*COMMANDS, *SUBJECT_SIDE}])
def test_imports_stand_at_the_top(module: str) -> None:
    """No function imports, but for the few that the design names; commands of cli.py may, so that --help is fast."""
    for function in (node for node in ast.walk(TREES[module]) if isinstance(node, ast.FunctionDef)):
        late = [node for node in ast.walk(function) if imported_names(node)]
        assert not late or function.name in LATE_IMPORTS.get(module, set()), f"{module}.{function.name}"


@pytest.mark.parametrize("module", FILES)
def test_files_are_short_and_named_by_what_they_own(module: str) -> None:
    """No file has more than 500 lines or a name that could mean anything."""
    assert len(FILES[module].read_text(encoding="utf-8").splitlines()) <= 500
    assert not set(module.split(".")) & FORBIDDEN_NAMES


@pytest.mark.parametrize("module", FILES)
def test_functions_are_short(module: str) -> None:
    """No function has more than 60 lines."""
    for function in (node for node in ast.walk(TREES[module]) if isinstance(node, ast.FunctionDef)):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= 60, f"{module}.{function.name} has {length} lines"

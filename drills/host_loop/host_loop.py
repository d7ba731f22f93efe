"""Plant: the scheduler's own function counts down in every step: a loop without a call, in a function that was there.

A profiler of calls sees no new function and not one call more. ``PERFGATE_PLANT_LOOPS=N`` counts from N (default
400000). With ``PERFGATE_PLANT_LOOP_IN=prefill`` a function counts that looks for the cached blocks of a new request, so
once for each request, when it is prefilled. vLLM calls :func:`register` through the entry point; an error in it ends
the engine, while one at import would only be logged.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import os
import textwrap
from types import FunctionType
from typing import Any

MARK = "_perfgate_host_loop"
LOOPS = "PERFGATE_PLANT_LOOPS"
WHERE = "PERFGATE_PLANT_LOOP_IN"
FUNCTIONS = {
    "step": ("vllm.v1.core.sched.scheduler", "Scheduler", "schedule"),
    "prefill": ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "get_computed_blocks"),
}


def register() -> None:
    """Put the loop into one of :data:`FUNCTIONS`; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, it cannot be compiled again, or a variable has another value.
    """
    where = os.environ.get(WHERE, "step")
    if where not in FUNCTIONS:
        raise RuntimeError(f"host_loop: {WHERE}={where!r}, expected one of {', '.join(FUNCTIONS)}")
    module, owner, name = FUNCTIONS[where]
    try:
        patched = getattr(importlib.import_module(module), owner)
        function = getattr(patched, name)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"host_loop: this vLLM has no {owner}.{name} to patch") from error
    if getattr(function, MARK, False):
        return
    loops = os.environ.get(LOOPS, "400000")
    if not loops.isdecimal() or int(loops) < 1:
        raise RuntimeError(f"host_loop: {LOOPS}={loops!r}, expected a number from 1")
    with_loop = recompiled(function, int(loops))
    setattr(with_loop, MARK, True)
    setattr(patched, name, with_loop)


def recompiled(function: Any, loops: int) -> Any:
    """The function, compiled from its source with a loop in front of its body.

    Raises:
        RuntimeError: It is decorated, is a closure, or its source is not there.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError) as error:
        raise RuntimeError(f"host_loop: no source of {function.__qualname__}") from error
    (defined,) = tree.body
    if not isinstance(defined, ast.FunctionDef) or defined.decorator_list or function.__closure__:
        raise RuntimeError(f"host_loop: {function.__qualname__} is decorated or a closure and cannot be compiled again")
    loop = ast.parse(f"_perfgate_left = {loops}\nwhile _perfgate_left:\n    _perfgate_left -= 1").body
    after_docstring = int(ast.get_docstring(defined) is not None)
    defined.body[after_docstring:after_docstring] = loop
    ast.increment_lineno(ast.fix_missing_locations(tree), first - 1)
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    module = compile(tree, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    (body,) = [constant for constant in module.co_consts if getattr(constant, "co_name", "") == defined.name]
    made = FunctionType(body, function.__globals__, function.__name__, function.__defaults__)
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__annotations__, made.__doc__, made.__module__ = (
        function.__annotations__,
        function.__doc__,
        function.__module__,
    )
    return made

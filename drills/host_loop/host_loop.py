"""Plant: the scheduler's own function counts down in every step: a loop without a call, in a function that was there.

A profiler of calls sees no new function and not one call more. ``PERFGATE_PLANT_LOOPS=N`` counts from N (default
400000). vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at import would
only be logged.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import os
import textwrap
from types import FunctionType
from typing import Any

MARK = "_perfgate_host_loop"
LOOPS = "PERFGATE_PLANT_LOOPS"


def register() -> None:
    """Put the loop into ``Scheduler.schedule``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, it cannot be compiled again, or ``PERFGATE_PLANT_LOOPS`` is no
            number from 1.
    """
    try:
        from vllm.v1.core.sched.scheduler import Scheduler

        schedule = Scheduler.schedule
    except (ImportError, AttributeError) as error:
        raise RuntimeError("host_loop: this vLLM has no Scheduler.schedule to patch") from error
    if getattr(schedule, MARK, False):
        return
    loops = os.environ.get(LOOPS, "400000")
    if not loops.isdecimal() or int(loops) < 1:
        raise RuntimeError(f"host_loop: {LOOPS}={loops!r}, expected a number from 1")
    with_loop = recompiled(schedule, int(loops))
    setattr(with_loop, MARK, True)
    Scheduler.schedule = with_loop


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

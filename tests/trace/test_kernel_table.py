"""Whatever is traced, nothing is lost and nothing counted twice: kernel time in is kernel time out."""

from __future__ import annotations

import csv
import io
import random
import tempfile
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import GenericAlias
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_builder import VERSIONS, ExportBuilder

from perfgate.kernels.kernel_report import kernels_csv
from perfgate.trace.breakdown import figures
from perfgate.trace.kernel_table import NONE, Trace, scalar_type
from perfgate.trace.nsys import read_nsys
from perfgate.trace.selection import by_kernel, by_role, by_step_and_kernel, select
from perfgate.trace.trace_file import read_trace

NAMES = (
    "rms_norm_kernel", "nvjet_a", "nvjet_b", "reshape_and_cache_flash_kernel", "void flash::fwd<(int)4>(T1)",
    "act_and_mul_kernel", "ncclDevKernel_AllReduce_Sum", "void thing_without_role<(int)1>(T1)",
)  # fmt: skip
STEP_NS, GAP_NS = 100_000, 10_000
Owner = tuple[int, int | None]


@dataclass
class World:
    """A made-up capture and what must come out of it.

    Args:
        builder: Its rows.
        launches: Kernels by (process id, step number or ``None``, name).
        times: Their time likewise.
        graphs: Kernels from graphs by (process id, step number).
    """

    builder: ExportBuilder
    seed: int
    launches: Counter[tuple[Owner, str]] = field(default_factory=Counter)
    times: Counter[tuple[Owner, str]] = field(default_factory=Counter)
    graphs: Counter[Owner] = field(default_factory=Counter)

    def saw(self, owner: Owner, name: str, duration: int, *, graph: bool = False) -> None:
        """Count a kernel."""
        self.launches[owner, name] += 1
        self.times[owner, name] += duration
        self.graphs[owner] += graph


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Processes with steps of eager kernels and graphs, on devices, before, in and after the steps.

    Each kernel has a stream of its own, because on one stream they could not run at one time.
    """
    world = World(ExportBuilder(draw(st.sampled_from(VERSIONS))), draw(st.integers(0, 2**16)))
    builder = world.builder
    kernel = st.tuples(st.sampled_from(NAMES), st.integers(0, 90_000), st.integers(1, 60_000))
    for pid in range(100, 100 + draw(st.integers(1, 3))):
        where: dict[str, Any] = {"pid": pid, "device": draw(st.integers(0, 3))}
        steps = draw(st.integers(0, 4))
        first = draw(st.integers(0, 50))
        for n in range(steps):
            begin = n * (STEP_NS + GAP_NS)
            builder.span(f"perfgate.step.{first + n}", begin, begin + STEP_NS, pid=pid, registered=draw(st.booleans()))
            owner = (pid, first + n)
            for name, at, duration in draw(st.lists(kernel, max_size=6)):
                start = begin + at + draw(st.integers(0, 10**6))
                builder.launch(name, begin + at, start, start + duration, **where)
                world.saw(owner, name, duration)
            for nodes in draw(st.lists(st.lists(kernel, min_size=1, max_size=12), max_size=2)):
                launched = begin + draw(st.integers(0, STEP_NS))
                placed = [(name, launched + at, launched + at + duration) for name, at, duration in nodes]
                builder.graph(launched, placed, **where)
                for name, _, duration in nodes:
                    world.saw(owner, name, duration, graph=True)
        # After the last step, or in no traced call. A process with steps launches something: steps of a process that
        # launches nothing are those of another one's kernels.
        idle = steps > 0 and not any(owner[0] == pid for owner, _ in world.launches)
        for name, at, duration in draw(st.lists(kernel, min_size=int(idle), max_size=3)):
            start = steps * (STEP_NS + GAP_NS) + at
            if idle or draw(st.booleans()):
                builder.launch(name, start, start + 5, start + 5 + duration, **where)
            else:
                builder.kernel(name, start, start + duration, draw(st.sampled_from([None, 10**6])), **where)
            world.saw((pid, None), name, duration)
    if not world.launches:
        builder.launch(NAMES[0], 10**9, 10**9, 10**9 + 1, pid=100)
        world.saw((100, None), NAMES[0], 1)
    for stream, row in enumerate(builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"], start=1):
        row["streamId"] = stream
    return world


def read(world: World) -> Trace:
    """The table of a world whose rows were shuffled."""
    shuffle = random.Random(world.seed)  # noqa: S311 (an order, no secret)
    with tempfile.TemporaryDirectory() as folder:
        return read_nsys(world.builder.write(Path(folder) / "export.sqlite", shuffle))


@settings(max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_conservation(world: World) -> None:
    """Every kernel comes out once, in its process, step and name; roles, layers and places only divide the time."""
    trace = read(world)
    kernels = trace.kernels

    launches: Counter[tuple[Owner, str]] = Counter()
    times: Counter[tuple[Owner, str]] = Counter()
    for row in range(len(kernels)):
        step = int(kernels.step[row])
        number = int(trace.steps.index[step]) if step != NONE else None
        key = ((trace.processes[kernels.process[row]], number), trace.names.demangled[kernels.name[row]])
        launches[key] += 1
        times[key] += int(kernels.duration_ns[row])
    assert launches == world.launches
    assert times == world.times
    assert (np.diff(kernels.start_ns) >= 0).all()

    found = figures(trace)
    inside = kernels.take(kernels.step != NONE)
    assert found.kernel_ns.sum() == found.role_ns.sum() == inside.duration_ns.sum()
    assert found.launches.sum() == found.role_launches.sum() == len(inside)
    assert found.graph_launches.sum() == sum(world.graphs.values())
    assert (found.busy_ns >= 0).all()
    assert (found.busy_ns <= found.span_ns).all()
    assert (found.idle_ns >= 0).all()
    assert (found.hidden_ns <= found.communication_ns).all()
    assert (found.communication_ns <= found.busy_ns).all()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_selections_add_up(world: World) -> None:
    """Sums over roles, over kernels, over steps and over the lines of the CSV are the selection's kernel time."""
    trace = read(world)
    selections = [select(trace)]
    ran = sorted({int(trace.steps.index[step]) for step in set(trace.kernels.step.tolist()) if step != NONE})
    selections += [select(trace, step) for step in ran]
    for selection in selections:
        rows = trace.kernels.take(selection.rows)
        total, count = int(rows.duration_ns.sum()), len(rows)
        for sums in (by_role(selection), by_kernel(selection), by_step_and_kernel(selection)):
            assert (sum(one.time_ns for one in sums), sum(one.launches for one in sums)) == (total, count)
        lines = list(csv.DictReader(io.StringIO(kernels_csv(selection))))
        assert sum(int(line["time_ns"]) for line in lines) == total
        layers = sorted(set(rows.layer[rows.layer != NONE].tolist()))
        step = int(trace.steps.index[rows.step[0]]) if selection is not selections[0] else None
        parts = [select(trace, step, layer) for layer in layers]
        outside = int(rows.duration_ns[rows.layer == NONE].sum())
        assert sum(int(trace.kernels.duration_ns[part.rows].sum()) for part in parts) + outside == total


def test_sums_take_little_memory() -> None:
    """A sum over kernels copies the columns that it needs and no more: five million kernels stay below a gibibyte."""
    selection = select(read_trace(Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-decode.sqlite.gz"))
    tracemalloc.start()
    by_kernel(selection)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / len(selection.rows) < 50


def test_column_types_are_read_from_either_spelling() -> None:
    """Column types come out of ``NDArray`` as older numpy spells it out, and as an alias of one argument."""
    spelled_out = GenericAlias(np.ndarray, (Any, GenericAlias(np.dtype, (np.int16,))))
    assert [scalar_type(hint) for hint in (spelled_out, GenericAlias(list, (np.int16,)))] == [np.int16, np.int16]

"""How the launches of a kernel scatter, against Python's own statistics."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import ExportBuilder

from perfgate.trace.selection import kernel_spreads, select

LAUNCHES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10_000)), min_size=1, max_size=20)


@given(LAUNCHES)
def test_spreads_are_those_of_statistics(launches: list[tuple[str, int]]) -> None:
    """Least, median, most, mean and standard deviation of each kernel; one launch alone has no deviation."""
    builder, times = ExportBuilder(), defaultdict[str, list[int]](list)
    for number, (name, length) in enumerate(launches):
        builder.launch(name, 20_000 * number, 20_000 * number + 5000, 20_000 * number + 5000 + length)
        times[name].append(length)
    trace = builder.read()
    found = kernel_spreads(select(trace))
    assert [one.time_ns for one in found] == sorted(map(sum, times.values()), reverse=True)
    assert len(found) == len(times)
    for one in found:
        own = times[trace.names.short[one.name]]
        assert (one.launches, one.least_ns, one.most_ns) == (len(own), min(own), max(own))
        assert (one.median_ns, one.time_ns) == (statistics.median(own), sum(own))
        assert math.isclose(one.mean_ns, statistics.fmean(own))
        assert (one.sd_ns is None) == (len(own) == 1)
        assert one.sd_ns is None or math.isclose(one.sd_ns, statistics.stdev(own), abs_tol=1e-6)

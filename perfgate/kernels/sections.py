"""What reports show of traced and counted trials: causes, ranks and counters, with charts on the run's page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import CellOutcome
from perfgate.kernels.causes import attribution_section, counters_section
from perfgate.kernels.counter_charts import roof_plane, roofline
from perfgate.kernels.kernel_evidence import envelope_section, kernels_section
from perfgate.kernels.rank_lines import ranks_section
from perfgate.kernels.step_charts import layer_chart, layers_chart, step_bars, waterfall
from perfgate.report.document import Section, charted

SHARED_TIMES = "Launches of one kernel share the mean of their times, wherever they are."


def of_traced(cell: CellOutcome) -> Iterator[Section]:
    """Where the time went, and what each rank does."""
    if cell.attribution:
        yield attribution_section(cell.attribution)
    if ranks := cell.fact("ranks"):
        yield ranks_section(ranks)


def of_counted(cell: CellOutcome) -> Iterator[Section]:
    """The counters of kernels."""
    if cell.counters and cell.counters.rows:
        yield counters_section(cell.counters)


def traced_on_page(cell: CellOutcome, evidence: Evidence | None) -> Iterator[Section | None]:
    """The same as on the report, with charts."""
    if (change := cell.attribution) is not None:
        yield replace(attribution_section(change), lead="where the time went", chart=waterfall(change))
        yield charted(step_bars(change))
        if evidence is not None and evidence.paired and evidence.sides:
            yield charted(layers_chart(evidence, change), SHARED_TIMES)
    if ranks := cell.fact("ranks"):
        yield replace(ranks_section(ranks), lead="rank by rank")


def traced_evidence(cell: CellOutcome, evidence: Evidence) -> Iterator[Section | None]:
    """Layer by layer and kernel by kernel what the traces of pairs hold."""
    if cell.attribution is not None:
        yield charted(layer_chart(evidence, cell.attribution), SHARED_TIMES, folded=True)
    yield envelope_section(evidence)
    yield kernels_section(evidence, cell)


def counted_evidence(_: CellOutcome, evidence: Evidence) -> Iterator[Section | None]:
    """How far kernels are from their roofs."""
    yield charted(roofline(evidence), folded=True)


def counted_on_page(cell: CellOutcome, _: Evidence | None) -> Iterator[Section]:
    """The counters of kernels beside the plane of roofs."""
    if cell.counters is not None and cell.counters.rows:
        chart = roof_plane(cell.counters)
        yield replace(counters_section(cell.counters), lead="counters of kernels", chart=chart, folded=True)

"""Two results of one load driver side by side: only where the same was asked for, and nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfgate.errors import NotComparableError, RecordError
from perfgate.imports.load_tools import ABSENT, OWN_METRICS
from perfgate.imports.result_file import LoadRun, is_result, read_runs, told_of
from perfgate.judge.cell_verdict import judge_cells
from perfgate.judge.outcome import CellOutcome, Outcome
from perfgate.judge.rule import both_sides
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.catalogue import find_metric
from perfgate.metrics.sides import SIDES, Side
from perfgate.models import Note
from perfgate.scenario.plan import Plan
from perfgate.units import plural

NEGLIGIBLE: Final = 0.01  # one in a hundred, as for requests that a server of our own drops: docs/load.md
MOST_NAMED: Final = 8
# What a run is asked, as a key or a kind, that ends by the clock: how many requests it has depends on the server
TIMED: Final = ("benchmark_duration", "duration", "max_seconds", "max_duration", "measurement_interval", "interval")

Sides = Mapping[Side, Sequence[LoadRun]]


def compare_files(base: str, head: Path, _: Callable[[str], str]) -> Outcome | None:
    """:func:`compare_results`, as one of the comparisons of ``perfgate compare``."""
    return compare_results(Path(base), head)


def compare_results(base: Path, head: Path) -> Outcome | None:
    """Compare what another load driver measured, run by run; advisory, because no number of runs apart is a pair.

    Runs of one file that were asked for the same are repeats: their geometric mean is shown, and how far they differ.

    Returns:
        Figures side by side where the same was asked for, and why not where it was not; ``None`` where both are
        perfgate's own files, or no files.

    Raises:
        RecordError: One of them is not such a result, or a figure is not a number.
        NotComparableError: ``different-cells``: they are of two tools.
    """
    if not any(map(is_result, (base, head))):
        return None
    for file in (base, head):
        if not file.is_file():
            raise RecordError("not a file", where=str(file))
    files: dict[Side, Path] = dict(zip(SIDES, (base, head), strict=True))
    runs = {side: read_runs(file) for side, file in files.items()}
    tools = [read[0].tool.name for read in runs.values()]
    if len({*tools}) > 1:
        text = f"{base} is of {tools[0]}, {head} of {tools[1]}"
        raise NotComparableError(text, code="different-cells", remedy="Measure both sides by one tool.")
    digests = " ".join(sha256_hex(file.read_bytes()) for file in (base, head))
    cells = tuple(_cell(names, sides, digests, files) for names, sides in _matched(runs))
    text = f"each side is a run of {tools[0]}, and how far such runs differ by themselves is not known"
    compared = any(cell.verdict == "advisory" for cell in cells)
    reasons = (Note(code="advisory-unpaired", text=text),) if compared else ()
    return judge_cells(f"{base} {head}", Plan(cells=(), seed=0), cells, reasons, "inconclusive")


# --- which runs belong together


@dataclass(frozen=True)
class _Group:
    """Runs of one file that were asked for the same."""

    runs: list[LoadRun]
    name: str
    label: tuple[Any, ...]

    @property
    def asked(self) -> Mapping[str, Any]:
        """What that was."""
        return self.runs[0].asked


def _groups(runs: Iterable[LoadRun]) -> list[_Group]:
    """The runs of a file by what was asked for, with names that tell them apart."""
    grouped: list[list[LoadRun]] = []
    for run in runs:
        same = next((group for group in grouped if group[0].asked == run.asked), None)
        if same is None:
            grouped.append([run])
        else:
            same.append(run)
    labels = [_label(group[0]) for group in grouped]
    return [
        _Group(group, ", ".join([group[0].tool.name, *label, *_apart(group[0], grouped, labels, label)]), tuple(label))
        for group, label in zip(grouped, labels, strict=True)
    ]


def _label(run: LoadRun) -> list[str]:
    """The load of a run in words: so many a second, at once, of tokens."""
    values = ((words, run.asked.get(path)) for path, words in run.tool.label.items())
    shown = ((words, f"{value:g}" if type(value) is float else told_of(value)) for words, value in values
             if value not in (None, 0, "inf"))  # fmt: skip
    return [words.format(value) for words, value in shown]


def _apart(run: LoadRun, grouped: Sequence[list[LoadRun]], labels: list[list[str]], label: list[str]) -> list[str]:
    """What else tells a run from others of the file that have its label."""
    alike = [group[0].asked for group, other in zip(grouped, labels, strict=True) if other == label]
    varying = [path for path in run.asked if any(other.get(path, ABSENT) != run.asked[path] for other in alike)]
    return [f"{path} {told_of(run.asked[path])}" for path in varying[:MOST_NAMED]]


def _matched(runs: Mapping[Side, list[LoadRun]]) -> Iterator[tuple[dict[Side, str], dict[Side, list[LoadRun]]]]:
    """What was asked for of both sides, then what differs from one run of the other side, then what is in one alone."""
    left: dict[Side, list[_Group]] = {side: _groups(read) for side, read in runs.items()}
    bases, heads = (left[side] for side in SIDES)
    ways: tuple[Callable[[_Group, _Group], bool], ...] = (
        lambda b, h: b.asked == h.asked,
        lambda b, h: next(_differing(b.runs[0], h.runs[0]), None) is None,  # nothing differs that both files say
        lambda b, h: b.label == h.label or (len(bases), len(heads)) == (1, 1),
    )
    for fits in ways:
        for base in [*bases]:
            fitting = [head for head in heads if fits(base, head)]
            if len(fitting) == 1 and sum(fits(other, fitting[0]) for other in bases) == 1:
                (head,) = fitting
                bases.remove(base)
                heads.remove(head)
                yield {"base": base.name, "head": head.name}, {"base": base.runs, "head": head.runs}
    for side in SIDES:
        yield from (({side: group.name}, {side: group.runs}) for group in left[side])


def _differing(base: LoadRun, head: LoadRun) -> Iterator[str]:
    """The paths of what was asked for otherwise."""
    for path in dict.fromkeys((*base.asked, *head.asked)):
        here, there = (run.settings.at(path) for run in (base, head))
        must_say = base.tool.only_set and path.startswith(base.tool.asked)
        if here != there and (must_say or ABSENT not in (here, there)):
            yield path


# --- what two of them show


def _cell(names: Mapping[Side, str], sides: Sides, digests: str, files: Mapping[Side, Path]) -> CellOutcome:
    name = " and ".join(dict.fromkeys(names.values()))
    reasons = [*_not_comparable(sides, files)]
    figures = {side: _figures(runs) for side, runs in sides.items()}
    shared = [metric for metric in figures["base"] if metric in figures["head"]] if not reasons else []
    if not reasons and not shared:
        reasons = [Note(code="different-cells", text="no figure is on both sides")]
    cautions = [] if reasons else [*_cautions(sides, figures)]
    return CellOutcome(
        name=name, cell_id="", record=digests, verdict="not-comparable" if reasons else "advisory", pairs=0,
        next_look=None, versions={}, gates=(), reasons=tuple(reasons), cautions=tuple(cautions),
        ungated=tuple(
            both_sides(OWN_METRICS.get(metric) or find_metric(metric), figures["base"][metric], figures["head"][metric])
            for metric in shared
        ),
    )  # fmt: skip


def _figures(runs: Sequence[LoadRun]) -> dict[str, list[float]]:
    """The figures that every repeat has."""
    return {name: [run.figures[name] for run in runs] for name in runs[0].figures
            if all(name in run.figures for run in runs)}  # fmt: skip


def _not_comparable(sides: Sides, files: Mapping[Side, Path]) -> Iterator[Note]:
    """Why runs must not be held against each other; nothing where they may."""
    if len(sides) < len(SIDES):
        (side,) = sides
        other = next(files[other] for other in SIDES if other != side)
        yield Note(code="different-cells", text=f"only in {files[side]}: {other} holds no such run")
        return
    base, head = (sides[side] for side in SIDES)
    differ = []
    for path in _differing(base[0], head[0]):
        settings = (run.settings.at(path) for run in (base[0], head[0]))
        shown = ("not set" if value is ABSENT else told_of(value) for value in settings)
        differ.append(f"{path.removeprefix('report.')} {' and '.join(shown)}")
    if differ:
        yield Note(code="different-cells", text=f"asked for otherwise: {_some(differ)}")
    every = [*base, *head]
    yield from _losses(sides, every)
    for of in dict.fromkeys(key for run in every for key in run.tokens):
        values = [run.tokens[of] for run in every if of in run.tokens]
        if max(values) > min(values) * (1 + NEGLIGIBLE):
            yield Note(code="different-cells", text=f"{of} tokens a request: {_both(sides, of)}")
    if len({run.streamed for run in every}) > 1:
        yield Note(
            code="different-cells",
            text="answers were streamed in one run and not in another, which has no TTFT, TPOT or ITL",
        )
    for run in every:
        if run.contradictions:
            place = f"{run.where} {run.path}".rstrip()
            text = f"{place} contradicts itself: {_some(run.contradictions)}"
            yield Note(code="not-recorded", text=text)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_NAMED
    return "; ".join([*texts[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _both(sides: Sides, of: str) -> str:
    return " and ".join(", ".join(f"{run.tokens[of]:.6g}" for run in runs if of in run.tokens) or "untold"
                        for runs in sides.values())  # fmt: skip


def _losses(sides: Sides, every: Sequence[LoadRun]) -> Iterator[Note]:
    """Requests that failed, were cut off or were never answered: the times are those of the rest."""
    shares = [_lost(run) for run in every]
    unanswered = [round(_lost(run) * _sent(run)) - run.requests.get("cut off", 0) for run in every]
    failed = [max(run.requests.get("failed", 0), count) for run, count in zip(every, unanswered, strict=True)]
    for run in every:
        if early := run.ended_early:
            yield Note(code="request-failed", text=f"{run.where}: {early}")
    many = any(count > 1 and count > NEGLIGIBLE * _sent(run) for count, run in zip(failed, every, strict=True))
    if many or max(shares) - min(shares) > NEGLIGIBLE or any(run.requests.get("answered") == 0 for run in every):
        yield Note(code="request-failed", text=_told_losses(sides))
        return
    answered = [count for run in every if (count := run.requests.get("answered")) is not None]
    by_clock = any(
        (path.rpartition(".")[2] in TIMED and value) or value in TIMED
        for run in every
        for path, value in run.asked.items()
    )
    if answered and max(answered) > min(answered) * (1 + NEGLIGIBLE) and not by_clock:
        counts = " and ".join(", ".join(str(run.requests.get("answered")) for run in runs) for runs in sides.values())
        text = f"{counts} requests were answered, and no file says that as many were asked for"
        yield Note(code="different-cells", text=text)


def _sent(run: LoadRun) -> int:
    """How many requests there were."""
    counted = sum(run.requests.get(what, 0) for what in ("answered", "failed", "cut off"))
    return max(run.requests.get("asked", 0), counted)


def _lost(run: LoadRun) -> float:
    """The share of its requests that was not answered."""
    sent = _sent(run)
    return 1 - run.requests.get("answered", sent) / sent if sent else 0.0


def _told_losses(sides: Sides) -> str:
    lines = []
    for side, runs in sides.items():
        losses = []
        for run in runs:
            lost = _sent(run) - run.requests.get("answered", _sent(run))
            kinds = [f"{count} {what}" for what in ("failed", "cut off") if (count := run.requests.get(what, 0))]
            how = f" ({', '.join(kinds)})" if kinds else ""
            losses.append(f"lost {lost} of {plural(_sent(run), 'request')}{how}")
        lines.append(f"{side} {', '.join(losses)}")
    return "; ".join(lines)


def _cautions(sides: Sides, figures: Mapping[Side, Mapping[str, list[float]]]) -> Iterator[Note]:
    """What a reader should know of figures that are shown."""
    every = [run for runs in sides.values() for run in runs]
    yield from (Note(code="not-recorded", text=text) for text in _missing(sides, figures))
    base, head = (sides[side][0].settings.fractions for side in SIDES)
    if apart := [f"{path} {base[path]:g} and {head[path]:g}" for path in base
                 if base[path] != head.get(path, base[path])]:  # fmt: skip
        text = f"{_some(apart)}: whether that was asked for or measured is not known"
        yield Note(code="different-cells", text=text)
    if any(map(_lost, every)):
        yield Note(code="request-failed", text=_told_losses(sides))
    for of in dict.fromkeys(key for run in every for key in run.tokens):
        if len({run.tokens.get(of) for run in every}) > 1:
            yield Note(code="different-cells", text=f"{of} tokens a request: {_both(sides, of)}")
    for side, runs in sides.items():
        if len(runs) > 1:
            spreads = ((max(values) / min(values) - 1, name) for name, values in figures[side].items())
            spread, name = max(spreads, default=(0.0, ""))
            widest = f"; {name} differs most among them, by {spread * 100:.3g} %" if spread else ""
            text = f"{plural(len(runs), 'run')} of the {side}, of which the geometric mean is shown{widest}"
            yield Note(code="advisory-unpaired", text=text)


def _missing(sides: Sides, figures: Mapping[Side, Mapping[str, list[float]]]) -> Iterator[str]:
    """Figures that are not used or in one file alone, and what was asked for as far as a file does not say it."""
    for side, runs in sides.items():
        yield from dict.fromkeys(f"{side}: {text}" for run in runs for text in run.left_out)
    for side, other in (SIDES, SIDES[::-1]):
        if alone := [name for name in figures[side] if name not in figures[other]]:
            yield f"only the {side} has {_some(alone)}"
        here, there = (sides[label][0].settings for label in (side, other))
        if unsaid := [path for path in (*here.asked, *here.fractions) if there.at(path) is ABSENT]:
            paths = [path.removeprefix("report.") for path in unsaid]
            yield f"only the {side} says {_some(paths)}, so nothing was held against it"
        if more := sides[side][0].settings.optional - sides[other][0].settings.optional:
            yield f"only the {side} tells {', '.join(sorted(more))}: what it takes was not asked for on both sides"
        if uncounted := sides[side][0].counted - sides[other][0].counted:
            yield f"only the {side} says how many {', '.join(sorted(uncounted))} there were"
    base, head = (sides[side][0].untold for side in SIDES)
    if untold := [what for what in base if what in head]:
        yield f"neither file says the {', the '.join(untold)}"

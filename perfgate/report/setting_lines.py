"""What the figures are of, and what to run next, as plain strings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from perfgate.judge.cell_facts import Setting, SubjectSetting
from perfgate.judge.outcome import CellOutcome, Outcome
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import KINDS
from perfgate.stats.sequential import FURTHER_LOOK_PAIRS


def cell_setting(cell: CellOutcome) -> str:
    """Model, batch, tokens or load, and the scenario of a cell in one line; empty for figures from elsewhere."""
    setting = cell.setting
    if setting is None:
        return ""
    if setting.load:
        return f"{setting.model}, {setting.load}, {setting.scenario}"
    shown = f" and {setting.images}" if setting.images else ""
    tokens = f"{setting.input_tokens} + {setting.output_tokens} tokens{shown}"
    chosen = f"; {setting.iterations}" if setting.iterations else ""
    return f"{setting.model}, batch {setting.batch}, {tokens}, {setting.scenario}{chosen}"


def run_setting(outcome: Outcome) -> list[str]:
    """The run, its subjects and its machine by name; each is one for all cells, or several with a semicolon."""
    settings = [cell.setting for cell in outcome.cells if cell.setting is not None]
    if not settings:
        return []
    begun = min(setting.begun_utc for setting in settings)
    when = f", begun {begun[:16].replace('T', ' ')} UTC" if begun else ""
    subjects: dict[str, list[str]] = {}
    for side, cell, setting in ((side, cell, cell.setting) for side in SIDES for cell in outcome.cells):
        if setting is not None and side in setting.subjects:
            label = cell.head if cell.head and side == "head" else side
            subjects.setdefault(label, []).append(_subject(setting.subjects[side]))
    machines = [machine for setting in settings for machine in setting.machines]
    facts = [*subjects.items(), ("machine", machines), ("run", [f"{outcome.run}{when}"])]
    return [f"{name}: {'; '.join(dict.fromkeys(texts))}" for name, texts in facts if texts]


def next_steps(outcome: Outcome) -> list[str]:
    """Commands that tell more, for what is not a pass: quoted, so that a shell takes each word as it is."""
    cells = [(cell, cell.setting) for cell in outcome.cells if cell.setting and cell.setting.run == outcome.run]
    codes = {note.code for note in outcome.reasons}
    if "running-server" in codes:
        steps = []
    elif "quick-run" in codes:
        steps = [_run(setting, outcome) for _, setting in cells if len(setting.subjects) > 1]
    else:
        steps = [step for cell, setting in cells if not cell.baseline for step in _cause(cell, setting, outcome)]
        steps += _more_pairs(outcome.run, [cell for cell, _ in cells if not cell.baseline])
    return [*dict.fromkeys(steps)]


def same_again(outcome: Outcome, seed: int | None) -> Iterator[str]:
    """Commands that measure the same again, in the same order where the seed is known, check it and judge it again."""
    cells = [(cell, cell.setting) for cell in outcome.cells if cell.setting and cell.setting.run == outcome.run]
    order = [] if seed is None else [f"--seed {seed}"]
    yield from dict.fromkeys(
        " ".join([_run(setting, outcome), *(["--against baseline"] if cell.baseline else order)])
        for cell, setting in cells
    )
    if cells:
        yield f"perfgate verify {shlex.quote(outcome.run)}"
        yield f"perfgate judge {shlex.quote(outcome.run)}"


def _run(setting: Setting, outcome: Outcome) -> str:
    """The command that measures a scenario of a run, with all heads that it had."""
    heads = {
        cell.head: cell.setting.subjects["head"].words or setting.subjects["base"].words[:1]
        for cell in outcome.cells
        if cell.head and cell.setting and "head" in cell.setting.subjects
    }
    if not heads:
        return _command("perfgate run", setting)
    named = [f"--head {shlex.quote(f'{name}:{word}')}" for name, words in heads.items() for word in words]
    return " ".join([_command("perfgate run", setting, "base"), *named])


def counts_tell(cell: CellOutcome) -> bool:
    """Whether counting the host's calls would name a cause that a trace would not: on a CPU, where none was counted."""
    return not (cell.gpus or any(cell.pairs_of(name) for name, kind in TRIAL_KINDS.items() if kind.checks))


def _cause(cell: CellOutcome, setting: Setting, outcome: Outcome) -> Iterator[str]:
    """What made a step longer, where no trace of this run tells already: which calls on a CPU, else which kernels."""
    if cell.traced_pairs or not any(gate.verdict == "regressed" for gate in cell.gates):
        return
    if counts_tell(cell):
        yield f"{_run(setting, outcome)} --profile-only{'' if setting.load else ' --host-profile'}"
        return
    if not setting.envelope:
        yield _command("perfgate envelope learn", setting, "base")
    yield _command("perfgate envelope check", setting)


def _more_pairs(run: str, cells: Sequence[CellOutcome]) -> list[str]:
    undecided = [cell for cell in cells if cell.verdict == "inconclusive"]
    used_up = [cell for cell in undecided if all(cell.next_look_at(kind) is None for kind in KINDS)]
    more = f" --more {FURTHER_LOOK_PAIRS}" if used_up else ""
    return [f"perfgate run --resume {shlex.quote(run)}{more}"] if undecided else []


def _command(command: str, setting: Setting, *sides: Side) -> str:
    # A head that is the same as the base needs one word of it: a base alone would be measured alone.
    same = setting.subjects["base"].words[:1] if "base" in setting.subjects else ()
    options = [
        f"--{side} {shlex.quote(word)}"
        for side, subject in setting.subjects.items()
        if not sides or side in sides
        for word in subject.words or same
    ]
    return " ".join([command, shlex.quote(setting.scenario), *options])


def _subject(subject: SubjectSetting) -> str:
    named = " ".join(subject.words) or "the same as base"
    title = f' "{subject.title}"' if subject.title else ""
    files = f", files {subject.files}" if subject.files else ""
    return f"{named} ({subject.ref}: {subject.revision}{title}){files}" if subject.ref else f"{named}{files}"

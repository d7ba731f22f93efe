"""A stored baseline: what one cell took on one class of machines, visit by visit, as a lineage that only grows.

A baseline is a list of entries, one a promotion. Each carries the digest of the one before it, so that an entry that is
changed, dropped or put elsewhere is found (:func:`problems`). An entry adds the visits of one run: values restart by
restart, the record they come from only by its digest. ``first`` and ``changed`` entries say what was measured and
where, and begin an epoch: visits before it no longer count; ``equivalent`` ones add their visits to it.

Format history: ``perfgate-baseline/1`` (0.1.0): the first. Fields may be added; one at its default is left out, so that
older entries keep their digests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from annotated_types import MinLen

from perfgate.baseline.occupations import Occupation, occupations
from perfgate.baseline.stored_visit import BaselineVisit, Build, visits_of
from perfgate.counters.step_counters import CountedStep
from perfgate.errors import RecordError
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.fingerprint import Machine, anonymous, machine_class
from perfgate.machine.json_text import BASELINE
from perfgate.machine.versioned_json import parse_content, validated
from perfgate.metrics.sides import Side
from perfgate.models import Frozen
from perfgate.record.identity import Measured
from perfgate.record.run_record import Record, record_digest
from perfgate.trace.decode_step import DecodeSteps

FORMAT: Final = "perfgate-baseline/1"
NO_CARD = "-"
"""A card that no visit was made on."""
Change = Literal["first", "equivalent", "changed"]


class Entry(Frozen):
    """One promotion.

    Args:
        kind: ``first``, ``equivalent`` to what was there, or ``changed``.
        parent: Digest of the entry before it; empty for the first.
        record: Digest of the record that its values come from.
        commit: Commit of the repository that it was promoted in; empty outside of one.
        author: Who promoted it.
        time_utc: When, ISO 8601 in UTC.
        reason: Why.
        build: What was measured.
        visits: What it adds, in order of time; one, unless the run was resumed in another visit.
        cell: What the visits from here on measured; only of ``first`` and ``changed``.
        machine: Where, without what names a host or a device; only of ``first`` and ``changed``.
        decode: What a decode step ran in the first traced trial; only of ``first`` and ``changed``, and ``None`` where
            nothing was traced.
        counted: What the first counted trial counted; of the same entries.
        salt: What cards are hashed with from here on, so that two files do not tell of a common device; only where none
            was before.
        digest: Of all the rest.
    """

    kind: Change
    parent: str
    record: str
    commit: str
    author: str
    time_utc: str
    reason: str
    build: Build
    visits: Annotated[tuple[BaselineVisit, ...], MinLen(1)]
    cell: Measured | None = None
    machine: Machine | None = None
    decode: DecodeSteps | None = None
    counted: CountedStep | None = None
    salt: str = ""
    digest: str = ""

    def sealed(self) -> Entry:
        """With its digest."""
        return self.model_copy(update={"digest": _digest(self.content)})

    @property
    def content(self) -> dict[str, Any]:
        """As it is in the file."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Baseline(Frozen):
    """A lineage; it has at least one entry, and each fits the one before it."""

    entries: tuple[Entry, ...]

    @property
    def tip(self) -> str:
        """The digest of the newest entry, which identifies all."""
        return self.entries[-1].digest

    @cached_property
    def epoch(self) -> tuple[Entry, ...]:
        """The entries whose visits count: from the last that began anew."""
        begun = max(n for n, entry in enumerate(self.entries) if entry.cell is not None)
        return self.entries[begun:]

    @property
    def visits(self) -> tuple[BaselineVisit, ...]:
        """The visits of the epoch."""
        return tuple(visit for entry in self.epoch for visit in entry.visits)

    @cached_property
    def occupations(self) -> tuple[Occupation, ...]:
        """The observations that they make."""
        return occupations(entry.visits for entry in self.epoch)

    @property
    def cards(self) -> tuple[str, ...]:
        """Where a head may be: the cards of visits, or no known one where visits to GPUs name none."""
        cards = (occupation.card for occupation in self.occupations)
        return tuple(dict.fromkeys(card for card in cards if card or not self.machine.gpus)) or (NO_CARD,)

    @property
    def salt(self) -> str:
        """What cards are hashed with; empty before the first visit with a card was added."""
        return next((entry.salt for entry in self.entries if entry.salt), "")

    @property
    def build(self) -> Build:
        """The build that was promoted last."""
        return self.entries[-1].build

    @property
    def cell(self) -> Measured:
        """What is measured."""
        cell = self.epoch[0].cell
        assert cell is not None  # noqa: S101 (an epoch begins with one)
        return cell

    @property
    def machine(self) -> Machine:
        """Where."""
        machine = self.epoch[0].machine
        assert machine is not None  # noqa: S101 (an epoch begins with one)
        return machine

    @property
    def machine_class(self) -> str:
        """The machines it speaks for."""
        return machine_class(self.machine, str(self.cell.clocks["mode"]))

    @property
    def newest_anchor(self) -> Build | None:
        """What was measured beside the newest of its visits that has an anchor."""
        return next((visit.anchor.build for visit in reversed(self.visits) if visit.anchor), None)

    def values(self, metric: str) -> list[tuple[float, ...]]:
        """The restarts of each occupation that carries a metric."""
        return [values for occupation in self.occupations if (values := occupation.values(metric))]

    @property
    def text(self) -> str:
        """The file: sorted keys, an indented line a field, so that a diff shows what a promotion adds."""
        content = {"format": FORMAT, "entries": [entry.content for entry in self.entries], "tip": self.tip}
        return f"{_layout(content)}\n"


def draft(record: Record, side: Side, salt: str = "", *, anchored: bool = False) -> Entry:
    """What the record's measurements of one side are as an entry that begins an epoch; who and why is still open.

    Without the baseline's ``salt`` the cards of its visits are unknown. ``anchored``: whether its base is an anchor.

    Raises:
        RecordError: No valid trial of that side has a value.
    """
    visits = tuple(visits_of(record, side, salt, anchored=anchored))
    if not visits:
        raise RecordError(f"holds no valid trial of {side}", where=record.cell.name)
    return Entry(
        kind="first",
        parent="",
        record=record_digest(record),
        commit="",
        author="",
        time_utc="",
        reason="",
        build=Build.of(record, side),
        visits=visits,
        cell=Measured.of(record.cell),
        machine=anonymous(record.visits[0].machine),
        decode=next((t.decode.without_columns() for t in record.judged_trials(side, "traced") if t.decode), None),
        counted=next((trial.counted for trial in record.judged_trials(side, "counted") if trial.counted), None),
        salt=salt if any(visit.card for visit in visits) else "",
    )


def parse(text: str, where: str) -> Baseline:
    """Read a baseline and verify its lineage.

    Raises:
        RecordError: It is none, is of a newer format, or its lineage is broken (``baseline-broken``).
    """
    content = _load(text, where)
    faults = list(problems(content))
    if faults:
        raise RecordError("\n".join(faults), where=where, code="baseline-broken")
    return Baseline(entries=tuple(validated(Entry, entry, where) for entry in content["entries"]))


def _load(text: str, where: str) -> dict[str, Any]:
    if any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines()):
        raise RecordError(
            "holds git's conflict markers: two promotions were made at once",
            where=where,
            remedy="Keep the side that is in the main branch (git checkout --ours or --theirs FILE), then promote your "
            "own run again: its entry then follows theirs.",
            code="baseline-broken",
        )
    content = parse_content(text, FORMAT, where, BASELINE)
    entries = content.get("entries")
    if not (isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries)):
        raise RecordError("not a baseline: expected a list of entries", where=where)
    return content


def problems(content: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a lineage as read, entry by entry; nothing where each is as written and in its place."""
    before = ""
    for number, entry in enumerate(content["entries"], 1):
        name = f"entry {number} ({entry.get('kind')}, {entry.get('time_utc')}, {entry.get('author')})"
        if entry.get("digest") != _digest(entry):
            yield f"{name} was changed after it was written: its content does not fit its digest"
        if entry.get("parent") != before:
            yield (f"{name} does not follow the entries before it: one of them was changed, dropped, added or put "
                   "elsewhere")  # fmt: skip
        says = {entry.get(what) is not None for what in ("cell", "machine")}
        if says != {entry.get("kind") != "equivalent"} or (entry.get("kind") == "first") != (number == 1):
            yield f"{name} has no place here: only the first entry is first, and only a changed one begins anew"
        before = str(entry.get("digest"))
    if content.get("tip") != before:
        yield f"the newest entry is not the last that was written ({str(content.get('tip'))[:12]}): one was dropped"


def _digest(entry: dict[str, Any]) -> str:
    """Of everything in an entry but its digest; empty for text that has no bytes (half of a surrogate pair)."""
    try:
        return sha256_hex(canonical_json({key: value for key, value in entry.items() if key != "digest"}))
    except UnicodeEncodeError:
        return ""


def _layout(value: Any, indent: str = "") -> str:
    """Canonical JSON for people: sorted keys, a line a field, a list of plain values on one line."""
    deeper = f"{indent} "
    if isinstance(value, dict) and value:
        fields = (f"{deeper}{json.dumps(key)}: {_layout(value[key], deeper)}" for key in sorted(value))
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(f"{deeper}{_layout(item, deeper)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)

"""The baseline's file: what it says, that it comes back as it was, and that nothing in its lineage can be touched."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hand_made import MACHINE, cell, trial
from hypothesis import given
from hypothesis import strategies as st
from stored import alone, lineage, visit

from perfgate.baseline.lineage import Baseline, draft, parse, problems
from perfgate.baseline.stored_visit import outputs
from perfgate.errors import RecordError
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.fingerprint import Gpu, machine_class
from perfgate.record.identity import Measured
from perfgate.scenario.subject import Subject

FOUR = lineage([[0.0, 0.001], [0.01, 0.011], [0.02, 0.021], [-0.01, -0.011]])
H200 = Gpu(name="NVIDIA H200", uuid="GPU-secret", memory_bytes=150_000_000_000, vbios="1.2", numa_node=1)


def test_it_comes_back_as_it_was() -> None:
    """Reading what was written gives the same baseline, and writing that the same text."""
    again = parse(FOUR.text, "b.json")

    assert again == FOUR
    assert again.text == FOUR.text
    assert len(again.visits) == 4


def test_the_file_can_be_read_by_people() -> None:
    """Keys are sorted, a field has a line, a metric's restarts are one line, and one entry more adds lines only."""
    lines = FOUR.text.splitlines()
    longer = lineage([[0.0, 0.001], [0.01, 0.011], [0.02, 0.021], [-0.01, -0.011], [0.0, 0.002]]).text.splitlines()

    (first, *_) = [line for line in lines if "itl_median" in line]
    assert first.strip() == '"itl_median": [0.005, 0.005005003],'
    taken_out = [line for line in lines if line not in longer]
    assert [line.strip()[:5] for line in taken_out] == ['"tip"']
    assert max(map(len, lines)) < 120


def test_nothing_in_it_names_a_host_or_a_device() -> None:
    """Host, boot, kernel, UUID, firmware and the machine's paths stay out of a file that is committed."""
    machine = MACHINE.model_copy(update={"host": "secret", "boot_id": "secret", "kernel": "secret", "gpus": (H200,)})
    where = visit(1).model_copy(update={"machine": machine})
    subject = Subject(python="/secret/bin/python", path=("/secret/plugin",), env={"TOKEN": "secret"})

    entry = draft(alone([0.0], visits=(where,), subjects={"head": subject}), "head")

    text = Baseline(entries=(entry.sealed(),)).text
    assert "secret" not in text
    assert (entry.build.path, entry.build.env) == (("plugin",), ("TOKEN",))
    assert not entry.build.same(entry.build)


def test_a_resumed_run_adds_the_visits_that_it_had() -> None:
    """Restarts are given to the visit that they were taken in, warm-up and failed ones to none."""
    trials = [trial(n, n or None, "head", visit=n // 3) for n in range(6)]

    entry = draft(alone([], trials=tuple(trials), visits=(visit(1), visit(2))), "head")

    assert [len(one.values["itl_median"]) for one in entry.visits] == [2, 3]
    assert [one.t0_utc[:10] for one in entry.visits] == ["2026-01-01", "2026-01-02"]


def test_nothing_valid_makes_no_baseline() -> None:
    """A side without a valid trial is no entry."""
    with pytest.raises(RecordError, match="no valid trial of head"):
        draft(alone([]), "head")


def test_tokens_that_differ_between_restarts_have_no_digest() -> None:
    """A digest stands for what every restart generated."""
    same, other = trial(0, 0, "head"), trial(1, 1, "head")
    changed = other.iterations[0].model_copy(update={"tokens_digest": "others"})

    assert outputs([same, other]) == outputs([same]) != ""
    assert outputs([same, other.model_copy(update={"iterations": (changed,)})]) == ""


def test_a_changed_promotion_begins_anew() -> None:
    """Only the visits from the newest change on count, whatever lies before it."""
    entry = draft(alone([0.1]), "head").model_copy(update={"kind": "changed", "parent": FOUR.tip}).sealed()

    anew = parse(Baseline(entries=(*FOUR.entries, entry)).text, "b.json")

    assert len(anew.entries) == 5
    assert len(anew.visits) == 1


# --- classes of machines and cells


def test_machine_class() -> None:
    """It names GPU, number and clock mode, and its digits change with identity and with nothing else."""
    gpu = MACHINE.model_copy(update={"gpus": (H200,), "driver": "580"})
    same = MACHINE.model_copy(
        update={"gpus": (H200.model_copy(update={"uuid": "GPU-other"}),), "driver": "580", "host": "other"}
    )

    assert machine_class(gpu, "lock").startswith("nvidia-h200-x1-lock-")
    assert machine_class(MACHINE, "observe").startswith("cpu-x2-observe-")
    assert machine_class(gpu, "lock") == machine_class(same, "lock")
    assert machine_class(gpu, "lock") != machine_class(gpu.model_copy(update={"driver": "581"}), "lock")


def test_differences_of_cells_are_named() -> None:
    """Each field that differs is told with both values; descriptions are no difference."""
    one = Measured.of(cell("one"))
    other = one.model_copy(
        update={"cell_id": "other", "workload": {**one.workload, "batch": 16}, "clocks": {"mode": "lock"}}
    )

    assert one.differences(other) == ("workload.batch: 1 against 16", 'clocks.mode: "observe" against "lock"')
    assert one.differences(one.model_copy(update={"name": "renamed"})) == ()


# --- tampering

Entries = list[dict[str, Any]]


def change(entries: Entries, n: int) -> None:
    """A value is made better."""
    entries[n]["visits"][0]["values"]["itl_median"][0] *= 0.9


def reseal(entries: Entries, n: int) -> None:
    """A change that has its digest recomputed."""
    change(entries, n)
    entries[n]["digest"] = FOUR.entries[0].model_validate(entries[n]).sealed().digest


def swap(entries: Entries, n: int) -> None:
    """It changes places with the one after it, or before the last."""
    m = n + 1 if n + 1 < len(entries) else n - 1
    entries[n], entries[m] = entries[m], entries[n]


def double(entries: Entries, n: int) -> None:
    """It stands there twice."""
    entries.insert(n, copy.deepcopy(entries[n]))


HOW: list[Callable[[Entries, int], Any]] = [change, reseal, list.pop, swap, double]


@given(n=st.integers(0, 3), how=st.sampled_from(HOW))
def test_tampering_is_found_and_named(n: int, how: Callable[[Entries, int], Any]) -> None:
    """Whatever is done to whichever entry, the lineage does not verify, and an entry from there on is named."""
    content = json.loads(FOUR.text)
    how(content["entries"], n)

    found = list(problems(content))

    assert found
    place = min(int(words.split()[1]) if words.startswith("entry ") else 4 for words in found)
    assert place in (n, n + 1, n + 2)
    with pytest.raises(RecordError, match=r"entry|newest") as caught:
        parse(json.dumps(content), "b.json")
    assert caught.value.code == "baseline-broken"


@given(data=st.data())
def test_no_field_can_be_touched(data: st.DataObject) -> None:
    """Any leaf of the file that is changed is noticed: nothing stands outside the chain."""
    content = json.loads(FOUR.text)
    place, key = data.draw(st.sampled_from(list(leaves(content))))
    place[key] = data.draw(st.sampled_from(["other", 7, None, [1.0]]).filter(lambda value: value != place[key]))

    with pytest.raises(RecordError):
        parse(json.dumps(content), "b.json")


def leaves(tree: Any) -> Any:
    """Every container and key of a plain value."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list) and value:
            yield from leaves(value)
        else:
            yield tree, key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "invalid JSON"),
        ("[]", "not a perfgate-baseline: expected a JSON object"),
        ('{"format": "perfgate-baseline/2"}', "perfgate-baseline/2"),
        ('{"format": "perfgate-baseline/1", "entries": []}', "expected a list of entries"),
        ('{"format": "perfgate-baseline/1", "entries": [NaN]}', "it holds NaN"),
        ('{"format": "perfgate-baseline/1", "entries": [{"visits": 1e999}]}', "it holds 1e999, larger than any number"),
        ("<<<<<<< HEAD\n", "two promotions were made at once"),
    ],
)
def test_what_is_no_baseline(text: str, words: str) -> None:
    """Each kind of wrong file is an error with its own words."""
    with pytest.raises(RecordError, match=words):
        parse(text, "b.json")


@pytest.mark.parametrize(("n", "field"), [(0, "cell"), (0, "machine"), (1, "cell"), (1, "machine")])
def test_an_epoch_says_what_and_where(n: int, field: str) -> None:
    """An entry that begins an epoch has both cell and machine, one within it none, whatever its digest says."""
    content = json.loads(FOUR.text)
    wrong = {field: None} if n == 0 else {field: content["entries"][0][field]}
    entry = {**content["entries"][n], **wrong}
    entry["digest"] = sha256_hex(canonical_json({key: value for key, value in entry.items() if key != "digest"}))
    lineage_of_it = {**content, "entries": [*content["entries"][:n], entry], "tip": entry["digest"]}

    with pytest.raises(RecordError, match=rf"entry {n + 1} .* has no place here"):
        parse(json.dumps(lineage_of_it), "b.json")


@given(text=st.text())
def test_any_text(text: str) -> None:
    """No text crashes the reader."""
    with pytest.raises(RecordError):
        parse(text, "b.json")

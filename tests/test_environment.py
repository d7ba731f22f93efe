"""What of a machine decides whether two measurements may be compared."""

from __future__ import annotations

from typing import Any

import pytest

from perfgate.environment import Machine, comparable, read_machine

MACHINE = Machine(
    architecture="x86_64", cpu="EPYC", cores=32, gpus=("H200",), driver="580.1", host="a", boot_id="1", kernel="6.1",
    memory_bytes=2**37,
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("architecture", "aarch64", "architecture: 'x86_64' against 'aarch64'"),
        ("cpu", "Xeon", "cpu: 'EPYC' against 'Xeon'"),
        ("cores", 2, "cores: 32 against 2"),
        ("gpus", (), "gpus: ('H200',) against ()"),
        ("driver", "590", "driver: '580.1' against '590'"),
    ],
)
def test_machines_that_differ_in_identity_are_not_comparable(field: str, value: Any, words: str) -> None:
    """The difference is said in words, with both values."""
    assert comparable(MACHINE, MACHINE.model_copy(update={field: value})) == (words,)


def test_what_is_only_observed_does_not_forbid_a_comparison() -> None:
    """Another host of the same kind, booted again, with another kernel, may be compared."""
    other = MACHINE.model_copy(update={"host": "b", "boot_id": "2", "kernel": "6.2", "memory_bytes": 2**38})
    assert comparable(MACHINE, other) == ()


def test_this_machine_is_comparable_with_itself() -> None:
    """Reading the machine twice gives the same, filled in, and survives JSON."""
    machine = read_machine(gpus=("H200",), driver="580")
    assert comparable(machine, read_machine(gpus=("H200",), driver="580")) == ()
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
    assert machine.cpu
    assert Machine.model_validate_json(machine.model_dump_json()) == machine

"""What of a machine decides whether two measurements may be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfgate.machine.fingerprint import Gpu, Machine, comparable, machine_class, read_machine, usable_cores

H200 = Gpu(
    name="H200", uuid="GPU-1", memory_bytes=2**37, ecc=True, mig=False, pcie_generation=5, pcie_width=16,
    power_limit_mw=700_000, vbios="96.00", persistence=True, numa_node=0,
)  # fmt: skip
MACHINE = Machine(
    architecture="x86_64", cpu="EPYC", cores=32, governor="performance", gpus=(H200,), driver="580.1", cuda="13.0",
    host="a", boot_id="1", kernel="6.1", memory_bytes=2**37, container="docker",
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("architecture", "aarch64", "architecture: 'x86_64' against 'aarch64'"),
        ("cpu", "Xeon", "cpu: 'EPYC' against 'Xeon'"),
        ("cores", 2, "cores: 32 against 2"),
        ("governor", "powersave", "governor: 'performance' against 'powersave'"),
        ("gpus", (), "gpus: H200 against none"),
        ("gpus", (H200, H200), "gpus: H200 against H200, H200"),
        ("driver", "590", "driver: '580.1' against '590'"),
        ("memory_bytes", 2**38, f"memory_bytes: {2**37} against {2**38}, more than 5 % apart"),
        ("GPU 0 name", "H100", "GPU 0 name: 'H200' against 'H100'"),
        ("GPU 0 memory_bytes", 2**36, f"GPU 0 memory_bytes: {2**37} against {2**36}"),
        ("GPU 0 ecc", False, "GPU 0 ecc: True against False"),
        ("GPU 0 mig", True, "GPU 0 mig: False against True"),
        ("GPU 0 pcie_generation", 4, "GPU 0 pcie_generation: 5 against 4"),
        ("GPU 0 pcie_width", 8, "GPU 0 pcie_width: 16 against 8"),
        ("GPU 0 power_limit_mw", 500_000, "GPU 0 power_limit_mw: 700000 against 500000, more than 1 % apart"),
        ("GPU 0 power_limit_mw", None, "GPU 0 power_limit_mw: 700000 against None, more than 1 % apart"),
    ],
)
def test_machines_that_differ_in_identity_are_not_comparable(field: str, value: Any, words: str) -> None:
    """The difference is said in words, with both values, and a GPU is named by its number."""
    of_gpu = field.removeprefix("GPU 0 ")
    changes = {field: value} if of_gpu == field else {"gpus": (H200.model_copy(update={of_gpu: value}),)}
    assert comparable(MACHINE, MACHINE.model_copy(update=changes)) == (words,)


def test_what_is_only_observed_or_tolerated_does_not_forbid_a_comparison() -> None:
    """Another host of the same kind, booted again, with another kernel and another card, may be compared."""
    card = {"uuid": "GPU-2", "vbios": "96.01", "persistence": False, "numa_node": None, "power_limit_mw": 695_000}
    other = MACHINE.model_copy(
        update={
            "host": "b", "boot_id": "2", "kernel": "6.2", "container": "", "cuda": "13.1",
            "memory_bytes": round(0.96 * 2**37), "gpus": (H200.model_copy(update=card),),
        }
    )  # fmt: skip
    assert comparable(MACHINE, other) == ()


@pytest.mark.parametrize(
    ("field", "usual", "other"),
    [
        ("usable_cores", 32, 8), ("smt", "on", "off"), ("boost", "on", "off"), ("virtual", "none", "QEMU"),
        ("confidential", "none", "tdx"),
    ],
)  # fmt: skip
def test_what_only_newer_versions_tell(field: str, usual: Any, other: Any) -> None:
    """Machines that tell it must agree; what is untold, as in an older record, or usual makes no class of its own."""
    first, second = (MACHINE.model_copy(update={field: value}) for value in (usual, other))

    assert comparable(first, second) == (f"{field}: {usual!r} against {other!r}",)
    assert comparable(first, MACHINE) == comparable(MACHINE, second) == ()
    assert field not in MACHINE.model_dump(mode="json")
    classes = [machine_class(machine, "observe") for machine in (MACHINE, first, second)]
    assert classes[0] == classes[1] != classes[2]


def test_a_gpu_that_computes_confidentially_is_another_class() -> None:
    """Encryption of what goes to it makes decode several times as long, whatever else is alike."""
    open_gpu, hidden = (H200.model_copy(update={"confidential": value}) for value in (False, True))
    machines = [MACHINE.model_copy(update={"gpus": (gpu,)}) for gpu in (open_gpu, hidden)]

    assert comparable(*machines) == ("GPU 0 confidential: False against True",)
    assert len({machine_class(machine, "observe") for machine in machines}) == 2
    assert machine_class(machines[0], "observe") == machine_class(MACHINE, "observe")


def test_cores_are_those_that_programs_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup's quota counts, and never leaves less than one core."""
    monkeypatch.setattr("perfgate.machine.fingerprint.CGROUPS", tmp_path)
    many = usable_cores()

    for quota, cores in (("max 100000", many), ("100000 100000", 1), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(quota)
        assert usable_cores() == cores


@pytest.mark.parametrize(
    ("flags", "virtual", "confidential"),
    [("fpu hypervisor", "unknown hypervisor", "none"), ("fpu", "none", "none"), ("hypervisor tdx_guest", None, "tdx")],
)
def test_a_guest_knows_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, virtual: str | None, confidential: str
) -> None:
    """By the flags of its processor; who made it, by the name that the firmware gives."""
    (tmp_path / "cpuinfo").write_text(f"model name\t: EPYC\nflags\t\t: {flags}\n")
    monkeypatch.setattr("perfgate.machine.fingerprint.CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("perfgate.machine.fingerprint.VENDOR", tmp_path / "nowhere")

    machine = read_machine()

    assert virtual is None or machine.virtual == virtual
    assert (machine.cpu, machine.confidential) == ("EPYC", confidential)


def test_this_machine_is_comparable_with_itself() -> None:
    """Reading the machine twice gives the same, filled in, and survives JSON."""
    machine = read_machine(gpus=(H200,), driver="580")
    assert comparable(machine, read_machine(gpus=(H200,), driver="580")) == ()
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
    assert machine.cpu
    assert Machine.model_validate_json(machine.model_dump_json()) == machine

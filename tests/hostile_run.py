"""A run in which every name is an attack on the page that shows it."""

from __future__ import annotations

from decode_steps import decode, traces
from hand_made import MACHINE, cell, failed, run, spread, trials

from perfgate.judge.cell_verdict import judge
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import Artifact, Trial
from perfgate.record.run_record import Record, Visit
from perfgate.report.run_page import MeasuredRun
from perfgate.scenario.subject import Subject

HOSTILE = """</title></style><script>alert(1)</script><img src=x onerror=alert(1)> "' {{ 7*7 }} \u202e"""


def hostile() -> MeasuredRun:
    """Names of run, cell, scenario, machine, builds, versions, files and kernels, and a log, are :data:`HOSTILE`.

    The head's kernel is slower, and has another name.
    """
    measured = cell().model_copy(update={"name": HOSTILE, "cell_id": HOSTILE, "source": HOSTILE, "scenario": HOSTILE})
    same, slower = (
        ("attention", HOSTILE[::-1], 2000),
        [("gemm", name, 5000) for name in (HOSTILE, "javascript:alert(1)")],
    )
    taken: list[Trial] = [*trials(spread(0.01, 0.0002, 6))]
    taken += traces([decode([("gemm", "a", 4000), same])], [decode([*slower, same])], len(taken))
    files = ("javascript:alert(1)", f"trials/013/{HOSTILE}.json.gz")
    taken[-2:] = [
        trial.model_copy(update={"traces": (Artifact(path=file, sha256="0" * 64),), "versions": {"vllm": HOSTILE}})
        for trial, file in zip(taken[-2:], files, strict=True)
    ]
    taken.append(failed(len(taken), 6, "head", text=f"died\n{HOSTILE}"))
    subjects = {side: Subject(python=f"/{side}/{HOSTILE}", env={"A": HOSTILE}, args={"a": HOSTILE}) for side in SIDES}
    visit = Visit(machine=MACHINE.model_copy(update={"cpu": HOSTILE}), t0_utc="2026-01-01T00:00:00+00:00")
    record = Record(cell=measured, subjects=subjects, seed=0, visits=(visit,), trials=tuple(taken))
    manifest = run([measured]).model_copy(update={"name": HOSTILE, "subjects": subjects})
    return MeasuredRun(judge(manifest, {HOSTILE: record}), manifest, {HOSTILE: record})

"""The last job of a workflow: red unless every job that it needs ended well and gave a verdict.

A job that a condition skipped counts as success where a branch is protected, and a workflow that never ran reports
nothing; so the required check is this one, which asks for results instead of waiting for failures.

Imports nothing of perfgate and nothing that is not in the standard library: a hosted runner starts this very file.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NEEDS = "PERFGATE_NEEDS"  # the variable that holds `${{ toJSON(needs) }}`
GOOD = ("pass", "improved")
OPEN = ("inconclusive", "advisory")


def problems(needs: Any) -> list[str]:
    """Why the check must not be green, a sentence each; empty where every job ended well and gave a verdict.

    A verdict that decides nothing is good enough where its own job was told so and is green.
    """
    if not isinstance(needs, dict) or not needs:
        return ["no job is needed, so there is nothing to go by: name the measuring jobs under needs:"]
    lines = []
    for name, job in needs.items():
        result = job.get("result") if isinstance(job, dict) else None
        outputs = job.get("outputs") if isinstance(job, dict) else None
        verdict = outputs.get("verdict") if isinstance(outputs, dict) else None
        if result != "success":
            lines.append(f"job {name} ended as {result or 'nothing'}" + (f" with verdict {verdict}" if verdict else ""))
        elif not verdict:
            lines.append(f"job {name} gave no verdict: no data is never a pass")
        elif verdict not in GOOD + OPEN:
            lines.append(f"job {name} is green but its verdict is {verdict}")
    return lines


def main() -> int:
    """Print what is wrong as errors of the job; 0 where nothing is, 2 where the results cannot be read, else 10."""
    try:
        needs = json.loads(os.environ.get(NEEDS, ""))
    except ValueError as error:
        sys.stdout.write(f"::error title=perfgate::{NEEDS} holds no JSON: {_data(str(error))}\n")
        return 2
    lines = problems(needs)
    sys.stdout.write("".join(f"::error title=perfgate::{_data(text)}\n" for text in lines))
    if not lines:
        sys.stdout.write("every job that is needed ended well and gave a verdict\n")
    return 10 if lines else 0


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


if __name__ == "__main__":
    sys.exit(main())

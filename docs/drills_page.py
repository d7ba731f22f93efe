"""Writes docs/drills.md, the page of the catalogue, from the plants' own files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from perfgate.drill.plants import Expected, Family, Plant, load_catalogue

CATALOGUE = Path(__file__).parents[1] / "drills"

_HEAD = """# Drills

Plants are regressions put in on purpose, to show that the gate catches them. This page is written from the
`plant.yaml` of each by `make docs`.

A plant is a folder in `drills/`. Most are vLLM plugins that patch the engine when it starts, and end it with an error
where what they patch is missing; the others set engine arguments or an environment variable. Each says what the gate
must say of it: the metric that must block, and what the report must name as the cause. A metric that a scenario does
not gate cannot block. The dial sets a plant's size; each device has its own, the default first.
"""
_RECREATED = """## What is re-created

Regressions that happened, by mechanism. Their sizes are not re-created: the dial sets the size.

| issue | plant | mechanism |
|---|---|---|
"""


def render_drills_page() -> str:
    """The page as Markdown."""
    plants = load_catalogue(CATALOGUE)
    families = "\n".join(_family(family, [p for p in plants if p.family == family]) for family in get_args(Family))
    rows = sorted((one.issue, plant.name, one.mechanism) for plant in plants for one in plant.recreates)
    return f"{_HEAD}\n{families}\n{_RECREATED}{''.join(_row(issue, f'`{name}`', said) for issue, name, said in rows)}"


def _family(family: str, plants: Iterable[Plant]) -> str:
    lines = [
        f"## {family}\n\n",
        "| plant | what it does | sizes | must block | cause named |\n",
        "|---|---|---|---|---|\n",
    ]
    for plant in plants:
        causes = ", ".join(f"{device}: `{text}`" for device, text in plant.expect.cause.items())
        lines.append(_row(f"`{plant.name}`", plant.what, _sizes(plant), _expected(plant.expect), causes))
    return "".join(lines)


def _sizes(plant: Plant) -> str:
    """Where it runs and how large it can be."""
    gpus = f" (takes {plant.gpus})" if plant.gpus > 1 else ""
    where = ", ".join(
        f"{device}{gpus}: {', '.join(f'`{size}`' for size in plant.sizes(device))}" if plant.dial else f"{device}{gpus}"
        for device in plant.runs_on
    )
    return f"{where} ({plant.dial.unit})" if plant.dial else where


def _expected(expect: Expected) -> str:
    if expect.verdict == "regressed":
        return f"`{expect.metric}`"
    return f"nothing: {expect.verdict} with `{expect.caution or expect.reason}`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    print(render_drills_page(), end="")

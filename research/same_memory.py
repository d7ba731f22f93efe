"""What memory differs by between starts of one build: by it margins of memory gates are chosen (docs/memory.md).

``python research/same_memory.py RUN...`` reads run folders of a build against itself, and prints for each metric of
memory the standard deviation and the largest of the pairs' log ratios, and how many runs had the caution
``memory-grows``.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from perfgate.judge.memory_growth import growth_cautions
from perfgate.load.served import OF_WORKERS
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.sides import SIDES
from perfgate.record.run_record import read_records, read_run


def main(folders: Sequence[str]) -> None:
    """Print the table."""
    ratios: dict[str, list[float]] = defaultdict(list)
    told = runs = 0
    for folder in map(Path, folders):
        for record in read_records(folder, read_run(folder)):
            sides = {side: [t.memory for t in record.judged_trials(side) if t.memory] for side in SIDES}
            if not all(sides.values()):
                continue
            runs += 1
            told += any(True for _ in growth_cautions(sides))
            for name in sorted(OF_WORKERS):
                values = [[METRICS[name].summarise(trial) for trial in pair] for pair in record.pairs()]
                ratios[name] += [math.log(head / base) for base, head in values if base and head]
    print(f"{runs} runs, memory-grows in {told}\n\n| metric | pairs | sd | largest |\n|---|---|---|---|")
    for name, found in ratios.items():
        if len(found) > 1:
            figures = (statistics.stdev(found), max(map(abs, found)))
            print(f"| `{name}` | {len(found)} | {' | '.join(f'{100 * figure:.2f} %' for figure in figures)} |")


if __name__ == "__main__":
    main(sys.argv[1:])

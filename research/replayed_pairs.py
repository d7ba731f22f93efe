"""Try the rule, and those of other gates, on recorded pairs of an H200: writes docs/drills-replay.txt.

``python research/replayed_pairs.py`` takes some four minutes on one core; the same seed and numpy give the same page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from perfgate.drill.recordings import read_recordings
from perfgate.drill.replay import Declared
from perfgate.drill.replay_document import replay_document, replay_report
from perfgate.report.markdown import to_markdown
from perfgate.scenario.declaration import load

ROOT = Path(__file__).parents[1]
SEED = 20261122
DRAWS = 2000
QUIET = ("h200-llama-8b-iterations.csv",)
STATES = ("h200-llama-8b-two-states.csv", "h200-x4-states.csv")
PARTS = (
    ("llama-8b-decode", QUIET, "A GPU in one state"),
    ("llama-8b-decode-tight", QUIET, "The same pairs, margins of 0.02 and 0.15 %"),
    ("llama-8b-decode", STATES, "GPUs that change their state"),
    ("llama-8b-decode-tight", STATES, "The same, margins of 0.02 and 0.15 %"),
)
HEAD = """# Replayed pairs

Written by `research/replayed_pairs.py` (seed {seed}, {draws:,} draws a row); do not edit. The pairs are those in
`tests/fixtures`, measured on H200s ([measurements](measurements.md)). `perfgate drill SCENARIO --replay RECORDINGS`
does the same with any run folder.

A draw is a run that might have been. It takes the pairs of one visit in random order, each once, and those of further
visits where they do not suffice for the last look. The sides of each pair are swapped with probability one half, so
that no build is slower, whatever restarts are like. Where the two builds differed, the head is divided by the median of
the pairs' ratios first. Then the head is made slower by a known size, and the rule that judges runs decides look by
look. Iterations are never resampled: a trial is what repeats.

Bounds are exact (Clopper and Pearson), one-sided at 95 %, and of the draws alone: they say what the rule makes of these
pairs, not what other visits would be like.

"""


FOOT = """## Reading it

- On a GPU in one state no build that is not slower is blocked, and nearly every one that must be caught is. Between
  `ignorable` and `must_catch` nothing is declared: most runs pass at six pairs before a later look could block, so the
  promise is 0.
- The promised share is a lower bound: the chances to pass before are added up, and only the best look counts.
- Where a GPU changes its state the declared rates hold too. What is lost are decisions: pairs of different states leave
  a run undecided, even of a slowdown far beyond `must_catch`. Most pairs are quiet there and a few are 3 % apart, so
  more is blocked than normal pairs of that spread would allow.
- Tests of single iterations block one build again and again: they take the difference between two restarts for one
  between builds. One value a restart (benchstat) needs twenty starts, blocks one build at the rate of its test and most
  of what `llama-8b-decode` calls ignorable, and sees little where a GPU changes its state, because it does not pair.
- Thresholds of one percent and more miss half a percent nearly always. Against stored runs they block unchanged builds
  where the state differs from the stored one.
"""


def page(draws: int = DRAWS) -> str:
    """The page as Markdown."""
    text = HEAD.format(seed=SEED, draws=draws)
    for scenario, files, title in PARTS:
        recordings = [one for file in files for one in read_recordings(ROOT / "tests" / "fixtures" / file)]
        declared = Declared.of(load(ROOT / "scenarios" / f"{scenario}.yaml"))
        report = replay_report(recordings, declared, draws=draws, seed=SEED)
        text += f"## {title}\n\n{to_markdown(replay_document(report))}\n"
        print(title, *report.broken, sep="\n  ", flush=True)
    return text + FOOT


def main() -> None:
    """Replay and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws a row")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where the page goes")
    words = parser.parse_args()
    (words.folder / "drills-replay.txt").write_text(page(words.draws), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Colours of a report on a terminal: those of its verdicts, and of the words before a reason or a caution."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from perfgate.cli.outlet import Outlet, harmless

_END = r"(?: \([^()]*\))?(?: !)?$"
STYLES = {
    rf"(?<=\S  )(?:REGRESSED|internal-error){_END}|^(?:REGRESSED|INTERNAL ERROR)(?=:)": "bold red",
    rf"(?<=\S  )(?:inconclusive|advisory|not-measured|not-comparable){_END}": "yellow",
    "^(?:INCONCLUSIVE|ADVISORY|NOT MEASURED|NOT COMPARABLE|MEASURED ONE SIDE)(?=:)": "bold yellow",
    rf"(?<=\S  )(?:pass|improved){_END}": "green",
    "^PASS(?:, [A-Z]+)?(?=:)": "bold green",
    "^  (?:reason|caution)(?= )": "bold",
}
"""Verdicts at the end of a row, which two blanks part from the column before, and at the beginning of the last line."""


def styled(text: str, styles: Mapping[str, str] = STYLES) -> Text:
    """Text with these styles where the patterns match."""
    words = Text(text)
    for pattern, style in styles.items():
        words.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    return words


def echo_coloured(text: str, outlet: Outlet) -> None:
    """Print a report in colours.

    Raises:
        OSError: It could not be written.
    """
    console = Console(
        force_terminal=True, color_system="standard", highlight=False, markup=False, emoji=False, soft_wrap=True
    )
    with console.capture() as drawn:
        console.print(styled(harmless(text)), end="")
    drawing = outlet.for_drawing()
    drawing.write(drawn.get())
    drawing.flush()

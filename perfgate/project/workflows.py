"""The workflows that a repository gets from us, ready to be written down."""

from __future__ import annotations

import re
from importlib.resources import files

from perfgate.errors import UsageError

FOLDER = ".github/workflows"
_PLACEHOLDER = re.compile(r"OWNER/perfgate((?:/[\w./-]+)?)@0{40} # version")
_LABELS = "[self-hosted, linux, gpu]"
_SCENARIOS = "scenarios/*.yaml"


def workflows(action: str, version: str, labels: tuple[str, ...] = (), scenarios: str = "") -> dict[str, str]:
    """The text of every workflow, by its path from the repository's root.

    Args:
        action: The repository of the action with the commit to take, ``owner/perfgate@<40 hexadecimal digits>``; empty
            where it is not known yet: the placeholders stay, and jobs fail at once.
        version: The version that this commit is, for the comment beside it.
        labels: Labels of the measuring runner; the last one also orders its jobs. By default self-hosted, linux, gpu.
        scenarios: Pattern of the scenario files; ``scenarios/*.yaml`` by default.

    Raises:
        UsageError: The action is pinned to no commit, or a label or the pattern cannot appear in a workflow.
    """
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", action)
    if action and found is None:
        raise UsageError(
            f"{action}: expected OWNER/perfgate@COMMIT with the commit's 40 hexadecimal digits",
            remedy="A tag can be moved: git ls-remote URL refs/tags/VERSION says which commit it is now.",
        )
    for word in (*labels, scenarios, version):
        if not re.fullmatch(r"[\w./*?+-]*", word):
            raise UsageError(f"{word!r} is not allowed in a workflow: letters, digits and ./*?+- only")
    written = {}
    for template in sorted(files("perfgate").joinpath("templates", "github").iterdir(), key=lambda one: one.name):
        text = template.read_text(encoding="utf-8")
        if found:
            text = _PLACEHOLDER.sub(rf"{found[1]}\g<1>@{found[2]} # {version}", text)
        if labels:
            text = text.replace(_LABELS, f"[{', '.join(labels)}]")
            text = text.replace("group: perfgate-gpu\n", f"group: perfgate-{labels[-1]}\n")
        written[f"{FOLDER}/{template.name}"] = text.replace(_SCENARIOS, f'"{scenarios}"' if scenarios else _SCENARIOS)
    return written

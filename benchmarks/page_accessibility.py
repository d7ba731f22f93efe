"""Hold the page of recorded runs against axe-core's rules, in light and dark: page_accessibility.py AXE_MIN_JS.

axe-core comes from npm (`npm install axe-core`, then node_modules/axe-core/axe.min.js). The page's own policy allows no
script, so a copy without it is checked, every part unfolded.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from recorded_runs import recorded_together  # noqa: E402 (fixtures and their reader belong to the tests)

from perfgate.report.html import run_html  # noqa: E402

SCHEMES = {"light": [], "dark": ["--blink-settings=preferredColorScheme=0"]}
RUN = """axe.run().then(found => {
  const pre = document.createElement("pre");
  pre.id = "axe";
  pre.textContent = JSON.stringify(found.violations.map(one => [one.impact, one.id, one.nodes.map(node => node.html)]));
  document.body.replaceChildren(pre);
})"""


def violations(browser: str, page: Path, scheme: str) -> list[list[object]]:
    """What axe-core finds: impact, rule and the elements.

    Raises:
        CalledProcessError: The browser failed.
        ValueError: The check did not end.
    """
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}",
               *SCHEMES[scheme], "--virtual-time-budget=60000", "--dump-dom", page.as_uri()]  # fmt: skip
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    found = re.search(r'(?s)<pre id="axe">(.*?)</pre>', shown)
    if found is None:
        raise ValueError("axe-core did not end")
    listed: list[list[object]] = json.loads(unescape(found[1]))
    return listed


def main(axe: Path) -> int:
    """Print what is found; 1 where anything is."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("no Chromium here: apt install chromium")
        return 1
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", run_html(recorded_together()))
    text = text.replace("<details", "<details open")
    scripts = f"<script>{axe.read_text(encoding='utf-8')}</script><script>{RUN}</script></body>"
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        page.write_text(text.replace("</body>", scripts), encoding="utf-8")
        found = {scheme: violations(browser, page, scheme) for scheme in SCHEMES}
    for scheme, listed in found.items():
        print(f"{scheme}: {len(listed)} violations", *listed, sep="\n  ")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Pictures of pages for the docs, from recorded runs in a headless Chromium: `make screenshots`.

Each shows what a reviewer sees first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from recorded_runs import recorded  # noqa: E402 (fixtures and their reader belong to the tests)

from perfgate.report.html import run_html  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PICTURES = {"pass": (840, 700, "light"), "regressed": (840, 1265, "light"), "states": (840, 1190, "dark")}
"""Width, height and colour scheme of each, by the recorded run."""
LARGEST_BYTES = 150_000


def take(browser: str, name: str, scratch: Path) -> Path:
    """One picture.

    Raises:
        CalledProcessError: The browser failed.
    """
    page, image = scratch / f"{name}.html", IMAGES / f"page-{name}.png"
    page.write_text(run_html(recorded(name)), encoding="utf-8")
    width, height, scheme = PICTURES[name]
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *dark,
               f"--user-data-dir={scratch / 'profile'}", f"--window-size={width},{height}",
               f"--screenshot={image}", page.as_uri()]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return image


def main() -> int:
    """Write all pictures; 1 where there is no browser, or one is too large for a page of docs."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("no Chromium here: apt install chromium")
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        images = [take(browser, name, Path(scratch)) for name in PICTURES]
    for image in images:
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size} bytes")
    return int(any(image.stat().st_size > LARGEST_BYTES for image in images))


if __name__ == "__main__":
    sys.exit(main())

"""Pictures of pages for the docs, from recorded runs in a headless Chromium: `make screenshots`.

Each shows what a reviewer sees first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import generated_year  # noqa: E402 (with the tests, like fixtures and their reader)
from browser import CHROMIUM, Scheme, opened, started  # noqa: E402 (with the tests, like fixtures and their reader)
from recorded_runs import recorded  # noqa: E402

from perfgate.history.history_page import INDEX, site  # noqa: E402
from perfgate.history.points import points_of_baseline  # noqa: E402
from perfgate.history.series import all_series  # noqa: E402
from perfgate.report.html import run_html  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PICTURES: dict[str, tuple[int, int, Scheme]] = {
    "pass": (840, 700, "light"), "regressed": (840, 1760, "light"), "states": (840, 1250, "dark"),
}  # fmt: skip
"""Width, height and colours of each, by the recorded run."""
LARGEST_BYTES = 200_000


def take(browser: Browser, name: str, scratch: Path) -> Path:
    """One picture."""
    page, image = scratch / f"{name}.html", IMAGES / f"page-{name}.png"
    page.write_text(run_html(recorded(name)), encoding="utf-8")
    width, height, scheme = PICTURES[name]
    with opened(browser, page, width=width, height=height, scheme=scheme) as shown:
        shown.page.screenshot(path=image)
    return image


def take_history(browser: Browser, scratch: Path) -> Path:
    """The page of a generated year with two changes and a drift."""
    points = points_of_baseline(generated_year.heads())
    pages = site(all_series(points, ("itl_median",)), ())
    image = IMAGES / "page-history.png"
    page = scratch / next(name for name in pages if name != INDEX)
    page.write_text(pages[page.name], encoding="utf-8")
    with opened(browser, page, width=840, height=1240) as shown:
        shown.page.screenshot(path=image)
    return image


def main() -> int:
    """Write all pictures; 1 where there is no browser, or one is too large for a page of docs."""
    if CHROMIUM is None:
        print("no Chromium here: apt install chromium")
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, started() as browser:
        images = [take(browser, name, Path(scratch)) for name in PICTURES]
        images.append(take_history(browser, Path(scratch)))
    for image in images:
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size} bytes")
    return int(any(image.stat().st_size > LARGEST_BYTES for image in images))


if __name__ == "__main__":
    sys.exit(main())

"""Pictures of pages for the docs, from recorded runs in a headless Chromium: `make screenshots`.

Each shows what a reviewer sees first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, FloatRect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import generated_year  # noqa: E402 (with the tests, like fixtures and their reader)
from browser import CHROMIUM, Scheme, Shown, opened, started  # noqa: E402 (with the tests, like fixtures and their reader)
from recorded_runs import recorded  # noqa: E402

from perfgate.history.history_page import INDEX, site  # noqa: E402
from perfgate.history.points import all_series, points_of_baseline  # noqa: E402
from perfgate.report.html import run_html  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PICTURES: dict[str, tuple[int, Scheme]] = {"pass": (1, "light"), "regressed": (3, "light"), "states": (2, "dark")}
"""By the recorded run: how many of its parts are shown whole, and in which colours."""
WIDTH = 840
"""Of each, in CSS pixels: charts in the page are then about as large as the picture is in a page of docs."""
LARGEST_BYTES = 200_000


def take(browser: Browser, name: str, scratch: Path) -> Path:
    """One picture."""
    page, image = scratch / f"{name}.html", IMAGES / f"page-{name}.png"
    page.write_text(run_html(recorded(name)), encoding="utf-8")
    parts, scheme = PICTURES[name]
    with opened(browser, page, width=WIDTH, scheme=scheme) as shown:
        _picture(shown, parts, image)
    return image


def _picture(shown: Shown, parts: int, image: Path) -> None:
    """The page from its top to the end of so many parts."""
    end = shown.page.locator(".block").nth(parts - 1).bounding_box()
    if end is None:
        raise RuntimeError(f"{image.name}: fewer than {parts} parts are shown")
    whole: FloatRect = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"] + 8}
    shown.page.screenshot(path=image, full_page=True, clip=whole)


def take_history(browser: Browser, scratch: Path) -> Path:
    """The page of a generated year with two changes and a drift."""
    points = points_of_baseline(generated_year.heads())
    pages = site(all_series(points, ("itl_median",)), ())
    image = IMAGES / "page-history.png"
    page = scratch / next(name for name in pages if name != INDEX)
    page.write_text(pages[page.name], encoding="utf-8")
    with opened(browser, page, width=WIDTH) as shown:
        _picture(shown, 2, image)
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

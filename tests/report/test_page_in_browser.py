"""The page of a run in a browser: what is seen, on a desk, a telephone and paper, by keyboard and without scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import NARROW, WIDE, Scheme, opened
from hostile_run import hostile
from playwright.sync_api import Browser
from recorded_runs import RUNS, fp32_logits, recorded

from perfgate.report.html import run_html
from perfgate.report.run_page import MeasuredRun


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that writes the page of a run and says where."""
    folder, made = tmp_path_factory.mktemp("pages"), {"hostile": hostile, "fp32-logits": fp32_logits}

    def written(name: str) -> Path:
        measured: MeasuredRun = made[name]() if name in made else recorded(name)
        file = folder / f"{name}.html"
        file.write_text(run_html(measured), encoding="utf-8")
        return file

    return written


@pytest.mark.parametrize("name", [*RUNS, "fp32-logits", "hostile"])
def test_a_page_shows_its_parts_and_asks_for_nothing(
    name: str, browser: Browser, page: Callable[[str], Path], golden: Callable[[str, str], None]
) -> None:
    """Elements, axes and labels are those stored; nothing but the file is requested, and the console stays empty."""
    file = page(name)
    with opened(browser, file, scripts=False) as shown:
        golden(f"page-{name}.txt", shown.structure())

        assert shown.layout_faults() == []
        assert shown.reported == []
        assert shown.asked == [file.as_uri()]


READERS: dict[str, tuple[int, Scheme]] = {
    "pass": (WIDE, "dark"), "regressed": (WIDE, "light"), "states": (NARROW, "dark"), "hostile": (NARROW, "light"),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_everybody_can_read_it(name: str, browser: Browser, page: Callable[[str], Path]) -> None:
    """Unfolded, axe-core finds nothing serious, no word is cut off, and a telephone scrolls charts, not the page."""
    width, scheme = READERS[name]
    with opened(browser, page(name), width=width, scheme=scheme) as shown:
        shown.unfold()

        assert shown.layout_faults() == []
        assert shown.violations() == []


def test_the_keyboard_opens_every_part(browser: Browser, page: Callable[[str], Path]) -> None:
    """The first key leads past the top, and Enter on a heading unfolds its part, without a script."""
    with opened(browser, page("regressed"), scripts=False) as shown:
        shown.page.keyboard.press("Tab")
        first = shown.page.locator(":focus").inner_text()
        folded = shown.page.locator("details.fold")
        folded.first.locator("summary").focus()
        shown.page.keyboard.press("Enter")

        assert first == "Skip to the report"
        assert folded.first.get_attribute("open") is not None
        assert folded.first.locator("li").first.is_visible()


def test_paper_shows_what_is_folded(browser: Browser, page: Callable[[str], Path]) -> None:
    """Printed, also by who prefers the dark, every part is unfolded, and black on white."""
    with opened(browser, page("regressed"), scheme="dark", scripts=False) as shown:
        shown.page.emulate_media(media="print")
        ink = shown.page.locator("body").evaluate("body => getComputedStyle(body).color")

        assert all(chart.is_visible() for chart in shown.page.locator("svg[role=img]").all())
        assert ink == "rgb(26, 31, 39)"

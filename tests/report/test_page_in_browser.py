"""The page of a run in a browser: on a desk, a telephone and paper, by keyboard, with its script and without."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import NARROW, WIDE, Scheme, opened
from hostile_run import hostile
from playwright.sync_api import Browser
from recorded_runs import FP32_LOGITS, RUNS, recorded

from perfgate.report.html import run_html

pytestmark = pytest.mark.needs("kernels")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that writes the page of a run and says where."""
    folder = tmp_path_factory.mktemp("pages")

    def written(name: str) -> Path:
        measured = hostile() if name == "hostile" else recorded(name)
        file = folder / f"{name}.html"
        file.write_text(run_html(measured), encoding="utf-8")
        return file

    return written


CONTROLS = ".sort, .filter, .place, .reading"  # what the page's script adds


@pytest.mark.parametrize(
    ("name", "scripts"), [*((name, True) for name in (*RUNS, "hostile")), ("regressed", False), ("hostile", False)]
)
def test_a_page_shows_its_parts_and_asks_for_nothing(
    name: str, browser: Browser, page: Callable[[str], Path], golden: Callable[[str, str], None], *, scripts: bool
) -> None:
    """Elements, axes and labels are those stored, with the script and without; nothing is requested or reported."""
    file = page(name)
    with opened(browser, file, scripts=scripts) as shown:
        golden(f"page-{name}.txt", shown.structure())

        assert (shown.page.locator(CONTROLS).count() > 0) == scripts
        assert shown.layout_faults() == []
        assert shown.reported == []
        assert shown.asked == [file.as_uri()]


def test_the_top_of_a_page_is_what_the_docs_say(browser: Browser, page: Callable[[str], Path]) -> None:
    """What got slower, by how much and why: the three sentences of docs/measurements.md, above everything else."""
    written = (Path(__file__).parents[2] / "docs" / "measurements.md").read_text(encoding="utf-8")
    with opened(browser, page(FP32_LOGITS), scripts=False) as shown:
        top = shown.page.locator(".answer li")
        said = [text.replace("\u00a0", " ") for text in top.all_inner_texts()]

        assert len(said) == 3
        assert "".join(f"    {sentence}\n" for sentence in said) in written
        assert all((one.bounding_box() or {"y": 900})["y"] < 450 for one in top.all())


READERS: dict[str, tuple[int, Scheme]] = {
    "pass": (WIDE, "dark"), "regressed": (WIDE, "light"), "states": (NARROW, "dark"), "hostile": (NARROW, "light"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "script"),
    [
        *((name, True) for name in ("regressed", "states", "hostile")),
        *(pytest.param(name, script, marks=pytest.mark.slow) for name, script in (
            ("pass", True), ("regressed", False), ("hostile", False),
        )),
    ],
)  # fmt: skip
def test_everybody_can_read_it(name: str, browser: Browser, page: Callable[[str], Path], *, script: bool) -> None:
    """Unfolded, axe-core finds nothing serious, no word is cut off, and a telephone scrolls charts, not the page."""
    (width, scheme), file = READERS[name], page(name)
    if not script:  # axe-core is one itself, so it needs a browser that runs them
        text = file.read_text(encoding="utf-8")
        file = file.with_name(f"{name}-without.html")
        file.write_text(re.sub("<script>.*</script>", "", text, flags=re.DOTALL), encoding="utf-8")
    with opened(browser, file, width=width, scheme=scheme) as shown:
        shown.unfold()

        assert (shown.page.locator(CONTROLS).count() > 0) == script
        assert shown.layout_faults() == []
        assert shown.violations() == []


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_each_gate_is_in_sight(width: int, browser: Browser, page: Callable[[str], Path]) -> None:
    """On a telephone as on a desk nobody scrolls sideways for a gate's name, interval, change or verdict."""
    with opened(browser, page("regressed"), width=width) as shown:
        shown.unfold()
        charts = [
            one
            for one in shown.page.get_by_role("group", name="Gates against their margins", exact=True).all()
            if one.is_visible()
        ]
        marks = charts[0].locator("text, .interval, path.fill")
        boxes = [box for one in marks.all() if (box := one.bounding_box())]

        assert len(charts) == 1
        assert charts[0].locator("text.name").count() == charts[0].locator("path.fill").count() == 5
        assert charts[0].locator("text.bad-text", has_text="REGRESSED").count() == 2
        assert len(boxes) == marks.count()
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)


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


def test_a_table_is_sorted_and_filtered(browser: Browser, page: Callable[[str], Path]) -> None:
    """A button in a heading sorts by it, down, up and as it was; a box leaves the rows with all of its words."""
    with opened(browser, page("regressed")) as shown:
        shown.unfold()
        table = shown.page.locator("table").filter(has_text="FlashAttnFwdSm90").last
        before = table.locator("tbody th").all_inner_texts()
        head = table.get_by_role("button", name="head us")
        seen = []
        for _ in range(3):
            head.click()
            figures = [float(text) for text in table.locator("td:nth-child(5)").all_inner_texts()]
            seen.append((figures == sorted(figures, reverse=True), figures == sorted(figures)))
        box = shown.page.get_by_role("searchbox", name="kernels with their counters")
        box.press_sequentially("gemm OUT")

        assert seen == [(True, False), (False, True), (False, False)]
        assert table.locator("tbody th").all_inner_texts() == before
        assert [row for row in table.locator("tbody tr").all_inner_texts() if "gemm" in row and "(out)" in row] == [
            row.inner_text() for row in table.locator("tbody tr").all() if row.is_visible()
        ]
        assert shown.page.locator(".filter output").last.inner_text() == "2 of 20 rows"
        assert shown.reported == []


def test_figures_are_sorted_by_what_they_are(browser: Browser, page: Callable[[str], Path]) -> None:
    """Units count, not letters: 980 us is less than 1.2 ms, and what has no figure comes last."""
    with opened(browser, page("pass")) as shown:
        shown.unfold()
        table = shown.page.locator("table").first
        table.evaluate("""table => ["980.0 us", "-", "1.200 ms", "0.3 s", "\u221212 us"].forEach((text, n) =>
            { if (table.tBodies[0].rows[n]) table.tBodies[0].rows[n].cells[1].textContent = text; })""")
        rows = table.locator("tbody tr").count()
        table.get_by_role("button", name="change").click()

        assert rows == 4
        assert table.locator("td:nth-child(2)").all_inner_texts() == ["0.3 s", "1.200 ms", "980.0 us", "-"]


def test_a_mark_tells_its_figures(browser: Browser, page: Callable[[str], Path]) -> None:
    """Below a chart is what the pointer rests on, or the keys have reached, the same as in the chart's own table."""
    with opened(browser, page("regressed")) as shown:
        chart = shown.page.get_by_role("group", name="Pairs in order: itl_median", exact=True)
        line = chart.locator("xpath=following-sibling::p[1]")
        chart.focus()
        said = [line.inner_text()]
        for key in ("ArrowRight", "ArrowRight", "End", "Escape"):
            shown.page.keyboard.press(key)
            said.append(line.inner_text())
        middle = chart.locator("line.link").nth(2).evaluate("line => line.getBoundingClientRect().toJSON()")
        shown.page.mouse.move(middle["x"], middle["y"] + middle["height"] / 2)
        said.append(line.inner_text())

        assert said[0].startswith("Read the marks with the arrow keys")
        assert said[1] == "pair 1: 5.141 ms to 6.890 ms, +34.0 %"
        assert [text.partition(":")[0] for text in said[2:]] == ["pair 2", "pair 6", "", "pair 3"]
        assert chart.locator(".chosen").count() == 6
        assert line.get_attribute("role") == "status"


def test_a_kernel_is_shown_with_its_places(browser: Browser, page: Callable[[str], Path]) -> None:
    """A kernel's row marks its bars and leads to them, and a bar marks the rows of its kernel."""
    with opened(browser, page("regressed")) as shown:
        row = shown.page.locator(".place", has_text="act_and_mul_kernel")
        row.evaluate("row => { row.closest('details').open = true; }")
        row.focus()
        marked = [shown.page.locator(f"{kind}.same").count() for kind in ("rect", "tr")]
        shown.page.keyboard.press("Enter")
        chart = shown.page.locator(":focus")

        assert marked == [2, 3]
        assert chart.get_attribute("aria-label") == "One layer, kernel by kernel"
        assert chart.is_visible()
        assert (
            chart.locator("xpath=following-sibling::p[1]").inner_text()
            == "base, activation, act_and_mul_kernel: 4.0 us"
        )
        assert shown.page.locator("tr.same").count() == 3


def test_no_other_script_runs(browser: Browser, page: Callable[[str], Path], tmp_path: Path) -> None:
    """Even where a name had become markup, the page's policy would refuse its script, its handler and its style."""
    file = tmp_path / "injected.html"
    attack = (
        "<script>document.title = 'ran'</script><p onmouseover=\"document.title = 'ran'\" style=\"color:red\">x</p>"
    )
    file.write_text(page("hostile").read_text(encoding="utf-8").replace("<main", f"{attack}<main"), encoding="utf-8")
    with opened(browser, file) as shown:
        shown.page.get_by_text("x", exact=True).hover()

        assert "ran" not in shown.page.title().split()
        assert len([text for text in shown.reported if "Content Security Policy" in text]) == 3
        assert shown.page.locator(CONTROLS).count() > 0


def test_paper_shows_what_is_folded(browser: Browser, page: Callable[[str], Path]) -> None:
    """Printed, also by who prefers the dark, every part is unfolded, and black on white."""
    with opened(browser, page("regressed"), scheme="dark", scripts=False) as shown:
        shown.page.emulate_media(media="print")
        ink = shown.page.locator("body").evaluate("body => getComputedStyle(body).color")

        assert all(chart.is_visible() for chart in shown.page.locator(".scroll:not(.narrow) > svg").all())
        assert ink == "rgb(26, 31, 39)"

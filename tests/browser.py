"""Pages in a headless Chromium: what they report and ask for, what they show, and what axe-core finds in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDE, NARROW = 1000, 360
"""Widths of a window on a desk and of a small telephone."""
SERIOUS = ("serious", "critical")
"""Impacts of what axe-core finds that a page must not have."""

Scheme = Literal["light", "dark"]

_STRUCTURE = r"""() => {
  const lines = [], said = element => element.textContent.replace(/\s+/g, " ").trim();
  const named = element => (element.getAttribute("aria-labelledby") || "").split(" ")
    .map(id => document.getElementById(id)).filter(Boolean).map(said);
  const chart = svg => {
    const looks = {};
    for (const mark of svg.querySelectorAll("rect, line, path")) {
      const look = mark.tagName + " " + mark.getAttribute("class");
      looks[look] = (looks[look] || 0) + 1;
    }
    const [title, seen] = named(svg);
    lines.push(`chart "${title}" ${svg.getAttribute("viewBox")}`, `  seen: ${seen}`);
    lines.push(`  marks: ${Object.entries(looks).map(([look, count]) => `${count} ${look}`).join(", ")}`);
    for (const kind of ["panel", "axis-title", "tick", "name"]) {
      const words = [...svg.querySelectorAll("text." + kind)].map(said);
      if (words.length) lines.push(`  ${kind}: ${words.join(" | ")}`);
    }
  };
  const table = one => {
    const heads = [...one.querySelectorAll("thead th")].map(said).join(" | ");
    lines.push(`table "${said(one.caption)}": ${heads}; rows: ${one.tBodies[0].rows.length}`);
  };
  const kinds = "h1, h2, h3, .answer li, svg[role=img], table, dt, .notes > li, pre, main a, nav a, form *";
  for (const element of document.querySelectorAll(kinds)) {
    const tag = element.tagName.toLowerCase();
    if (tag === "svg") chart(element);
    else if (tag === "table") table(element);
    else lines.push(`${tag}: ${tag === "li" && element.className ? said(element.firstElementChild) : said(element)}`);
  }
  return lines.join("\n") + "\n";
}"""

_FAULTS = r"""() => {
  const faults = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width)
    faults.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${width}`);
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    for (const mark of svg.querySelectorAll("rect, path.part"))
      if (!mark.getBoundingClientRect().height)
        faults.push(`a ${mark.getAttribute("class")} has no height in "${svg.querySelector("title").textContent}"`);
    const words = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    words.forEach(([text, box], n) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1)
        faults.push(`"${text}" is cut off in "${svg.querySelector("title").textContent}"`);
      for (const [other, beside] of words.slice(n + 1))
        if (Math.min(box.right, beside.right) - Math.max(box.left, beside.left) > 1
            && Math.min(box.bottom, beside.bottom) - Math.max(box.top, beside.top) > 4)
          faults.push(`"${text}" and "${other}" overlap in "${svg.querySelector("title").textContent}"`);
    });
  }
  return faults;
}"""


@dataclass(frozen=True)
class Shown:
    """A page that is open.

    Args:
        page: To look further.
        reported: Messages on the console and errors, each with its kind.
        asked: What was requested, the page's own file first.
    """

    page: Page
    reported: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def unfold(self) -> None:
        """Open every part that is folded."""
        self.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")

    def structure(self) -> str:
        """Headings, charts with axes and labels, tables, notes and commands, a line each, in their order."""
        return str(self.page.evaluate(_STRUCTURE))

    def layout_faults(self) -> list[str]:
        """A page that is wider than its window; words of charts that are cut off or overlap; flat marks."""
        return [str(fault) for fault in self.page.evaluate(_FAULTS)]

    def violations(self) -> list[str]:
        """What axe-core finds that is serious: the rule and the elements."""
        found = Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in found if one["impact"] in SERIOUS]


@contextmanager
def started() -> Iterator[Browser]:
    """The browser, while no other code in this thread uses asyncio."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser,
    file: Path,
    *,
    width: int = WIDE,
    height: int = 900,
    scheme: Scheme = "light",
    scripts: bool = True,
) -> Iterator[Shown]:
    """A file in a window of its own.

    Args:
        browser: From :func:`started`.
        file: The page.
        width: Of the window, in CSS pixels.
        height: Of the window.
        scheme: Which colours its reader prefers.
        scripts: Whether those of the page run.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=scripts
    )
    shown = Shown(context.new_page())
    context.on("console", lambda message: shown.reported.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda error: shown.reported.append(f"error: {error.error}"))
    context.on("request", lambda request: shown.asked.append(request.url))
    shown.page.goto(file.absolute().as_uri())
    yield shown
    context.close()

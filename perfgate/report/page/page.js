"use strict";
// Better with it: tables are sorted and filtered, marks of charts tell their figures in a line below, and a kernel is
// shown together with its places. Whatever a record says stays text: nothing here makes markup of it.
const said = element => element.textContent.replace(/\s+/g, " ").trim();
const make = (tag, look, text = "") => Object.assign(document.createElement(tag), {className: look, textContent: text});
const together = (set, look) => {
  for (const one of document.querySelectorAll(`.${look}`)) one.classList.remove(look);
  for (const one of set) one.classList.add(look);
};

// The figure that a cell begins with, in its unit without a prefix; NaN where it begins with none.
const POWERS = {n: -3, u: -2, m: -1, k: 1, M: 2, G: 3, T: 4};
const figure = text => {
  const found = /^(?:above |below )?([-+]?\d[\d.]*(?:e[-+]?\d+)?)(?: ?([numkMGT])(i?)(?=s|B|Hz|W|J))?/.exec(text.replace("\u2212", "-"));
  return found ? Number(found[1]) * (found[3] ? 1024 : 1000) ** (POWERS[found[2]] || 0) : NaN;
};

const sortable = (table, rows) => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = make("button", "sort", said(head));
    button.type = "button";
    button.addEventListener("click", () => {
      const own = new Map(rows.map(row => [row, said(row.cells[column])]));
      const words = [...own.values()].filter(text => isNaN(figure(text)) && text !== "-"), figures = words.length < rows.length / 2;
      const compare = figures ? (a, b) => figure(a) - figure(b) : (a, b) => a.localeCompare(b, "en", {numeric: true});
      const ways = figures ? ["descending", "ascending", ""] : ["ascending", "descending", ""];
      const way = ways[(ways.indexOf(head.getAttribute("aria-sort") || "") + 1) % ways.length];
      for (const other of heads) other.removeAttribute("aria-sort");
      if (way) head.setAttribute("aria-sort", way);
      const known = rows.filter(row => !figures || !isNaN(figure(own.get(row))));
      if (way) known.sort((a, b) => compare(own.get(a), own.get(b)) * (way === "ascending" ? 1 : -1));
      body.prepend(...(way ? [...known, ...rows.filter(row => !known.includes(row))] : rows));
    });
    head.replaceChildren(button);
  });
};

const filtered = (table, rows) => {
  const box = make("input", ""), count = make("output", ""), line = make("p", "filter"), label = make("label", "", "Filter ");
  box.type = "search";
  box.setAttribute("aria-label", `Filter: ${said(table.caption)}`);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every(word => said(row).toLowerCase().includes(word));
    count.textContent = box.value.trim() ? `${rows.filter(row => !row.hidden).length} of ${rows.length} rows` : "";
  });
  label.append(box);
  line.append(label, " ", count);
  table.parentNode.before(line);
};

for (const table of document.querySelectorAll("table")) {
  // "and 15 more" is no row of its own: it has one cell with words, and stays the last.
  const rows = [...table.tBodies[0].rows].filter(row => row.cells.length < 2 || [...row.cells].slice(1).some(said));
  if (rows.length > 2) sortable(table, rows);
  if (rows.length > 9) filtered(table, rows);
}

const HINT = "Read the marks with the arrow keys, or point at one.";
const tellers = new Map();
const named = mark => mark.dataset.about ? mark.dataset.about.replace(/\s+/g, " ").trim() : "";

// Marks and rows of one part of the page that are of the same kernel, or part of a step.
const showSame = (part, name) => together(
  name ? [...part.querySelectorAll("[data-about]")].filter(mark => named(mark) === name)
    .concat([...part.querySelectorAll("tbody tr")].filter(row => [...row.cells].some(cell => said(cell) === name))) : [], "same");

document.querySelectorAll("svg.chart").forEach(svg => {
  const marks = [...svg.children].filter(mark => mark.querySelector(":scope > title"));
  if (!marks.length) return;
  const told = mark => mark.querySelector("title").textContent, texts = [...new Set(marks.map(told))];
  const frame = svg.parentNode, line = make("p", "reading"), part = svg.closest(".cell");
  let at = -1;
  const tell = text => {
    at = texts.indexOf(text);
    const chosen = marks.filter(mark => told(mark) === text);
    line.textContent = text;
    together(chosen, "chosen");
    showSame(part, chosen.map(named).find(Boolean));
  };
  line.setAttribute("role", "status");
  frame.addEventListener("focus", () => { line.textContent = HINT; });
  frame.after(line);
  for (const mark of marks) {
    tellers.set(mark, () => {
      for (let fold = frame; (fold = fold.parentNode.closest("details"));) fold.open = true;
      frame.focus();
      tell(told(mark));
      mark.scrollIntoView({block: "center", inline: "nearest"});
    });
    mark.addEventListener("pointerenter", () => tell(told(mark)));
  }
  svg.addEventListener("pointerleave", event => event.pointerType === "mouse" && tell(""));
  frame.addEventListener("blur", () => tell(""));
  frame.addEventListener("keydown", event => {
    const next = {ArrowRight: at + 1, ArrowLeft: at < 0 ? texts.length - 1 : at - 1, Home: 0, End: texts.length - 1, Escape: -1}[event.key];
    if (next === undefined || event.target !== frame) return;
    event.preventDefault();
    tell(next < 0 ? "" : texts[Math.min(next, texts.length - 1)]);
    const mark = marks.find(one => at >= 0 && told(one) === texts[at]);
    if (mark) mark.scrollIntoView({block: "nearest", inline: "nearest"});
  });
});

// A kernel's row leads to its place in the charts.
for (const part of document.querySelectorAll(".cell")) {
  const places = new Map();
  for (const mark of [...part.querySelectorAll("[data-about]")].reverse()) places.set(named(mark), mark);
  for (const table of part.querySelectorAll("table")) {
    for (const row of table.tBodies[0].rows) {
      const cell = row.cells[0], name = said(cell), mark = places.get(name);
      if (!mark || table.closest("figure")) continue;
      const button = make("button", "place", name);
      button.type = "button";
      button.title = "Show its place in the charts";
      for (const begin of ["pointerenter", "focus"]) button.addEventListener(begin, () => showSame(part, name));
      for (const end of ["pointerleave", "blur"]) button.addEventListener(end, () => showSame(part, ""));
      button.addEventListener("click", tellers.get(mark));
      cell.replaceChildren(button);
    }
  }
}

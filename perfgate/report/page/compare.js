"use strict";
// Two rows of a table beside each other: the second column is a ratio, and data-spread how far its logarithm varies.
for (const table of document.querySelectorAll("table[data-spread]")) {
  const rows = [...table.tBodies[0].rows], spread = Number(table.dataset.spread), chosen = [];
  const told = document.createElement("p"), figure = table.closest("figure");
  const log = row => Math.log1p(parseFloat(row.cells[1].textContent.replace("\u2212", "-")) / 100);
  const name = row => row.cells[0].textContent.trim();
  const percent = part => `${part < 0 ? "" : "+"}${(part * 100).toFixed(2)} %`;
  told.className = "compared";
  told.setAttribute("role", "status");
  const say = () => {
    if (chosen.length < 2) {
      told.textContent = chosen.length ? `${name(chosen[0])}, and which other?` : "Choose two nights, in the chart or the table, to compare them.";
      return;
    }
    const [first, second] = [...chosen].sort((a, b) => rows.indexOf(b) - rows.indexOf(a));
    const change = log(second) - log(first), reach = 1.96 * Math.SQRT2 * spread;
    const [low, high] = [change - reach, change + reach].map(Math.expm1);
    told.textContent = `${name(first)} to ${name(second)}: ${percent(Math.expm1(change))} (95 %: ${percent(low)} to ${percent(high)})`
      + `${low > 0 || high < 0 ? "" : ", which chance may be"}. ${[first, second].map(row => row.cells[row.cells.length - 1].textContent).join(" to ")}`;
  };
  const choose = row => {
    const at = chosen.indexOf(row);
    if (at >= 0) chosen.splice(at, 1);
    else if (chosen.push(row) > 2) chosen.shift();
    for (const one of rows) one.querySelector("input").checked = chosen.includes(one);
    say();
  };
  for (const row of rows) {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", `compare ${name(row)}`);
    box.addEventListener("change", () => choose(row));
    row.cells[0].prepend(box, " ");
  }
  const named = new Map(rows.map(row => [name(row), row]));
  for (const title of figure.querySelectorAll("path > title")) {
    const row = named.get(title.textContent.slice(0, 16));
    if (row) title.parentNode.addEventListener("click", () => choose(row));
  }
  say();
  figure.querySelector(".scroll").before(told);
}

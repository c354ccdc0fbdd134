// Sorts numbers by size, taking the units of times into account; texts come after numbers, by alphabet.
const units = {s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9};
const value = (text) => {
  const m = /^([-+]?[\d.,]+)\s*(ns|us|ms|s|%)?\*?$/.exec(text);
  return m ? parseFloat(m[1].replaceAll(",", "")) * (units[m[2]] ?? 1) : NaN;
};
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const th = button.parentElement, body = th.closest("table").tBodies[0], i = th.cellIndex;
  const down = th.getAttribute("aria-sort") === "descending";
  for (const other of th.parentElement.children) other.setAttribute("aria-sort", "none");
  th.setAttribute("aria-sort", down ? "ascending" : "descending");
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [a, b].map((r) => r.cells[i].textContent), [p, q] = [value(x), value(y)];
    if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q) || (down ? 1 : -1) * x.localeCompare(y);
    return down ? p - q : q - p;
  });
  body.append(...rows);
};

// Charts: a button hides its series, and below the chart stands what the nearest point says.
for (const figure of document.querySelectorAll("figure:has(output)")) {
  const out = figure.querySelector("output"), all = figure.querySelector(".series button");
  const buttons = [...figure.querySelectorAll(".series [data-series]")];
  const shown = (button) => button.getAttribute("aria-pressed") === "true";
  const show = (button, on) => {
    button.setAttribute("aria-pressed", on);
    for (const part of figure.querySelectorAll("svg [data-series]"))
      if (part.dataset.series === button.dataset.series) part.classList.toggle("off", !on);
  };
  for (const button of figure.querySelectorAll(".series button")) button.onclick = () => {
    const on = !(button === all ? buttons.every(shown) : shown(button));
    for (const one of button === all ? buttons : [button]) show(one, on);
    all.setAttribute("aria-pressed", buttons.every(shown));
  };
  figure.onpointermove = figure.onpointerdown = (event) => {
    if (!event.target.closest("svg")) return;
    let nearest = 24, said = "\u00a0";
    for (const title of figure.querySelectorAll("svg title")) {
      const box = title.parentElement.getBoundingClientRect();
      if (!box.width) continue;  // of a hidden series, or of the drawing for another width
      const x = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const y = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      if (Math.hypot(x, y) < nearest) [nearest, said] = [Math.hypot(x, y), title.textContent];
    }
    out.textContent = said;
  };
}

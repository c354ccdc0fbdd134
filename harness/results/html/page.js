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

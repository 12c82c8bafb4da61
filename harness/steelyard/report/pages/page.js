// Filter and sort the tables of a page that is complete without this.
(() => {
  "use strict";
  const SCALES = { ns: 1, us: 1e3, ms: 1e6, s: 1e9, k: 1e3, M: 1e6, G: 1e9, T: 1e12, KiB: 1024, MiB: 1048576, GiB: 1073741824 };
  const value = (cell) => {
    const found = /^[+±]?\s*(?:> )?(-?[\d.]+)\s*(?:([kMGT])?\S*\/s|([a-zA-Z]+))?/.exec(cell.textContent);
    return found ? Number(found[1]) * (SCALES[found[2] || found[3]] || 1) : NaN;
  };
  const compare = (at) => (one, other) => {
    const a = one.cells[at], b = other.cells[at], x = value(a), y = value(b);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || a.textContent.localeCompare(b.textContent);
    return x - y;
  };
  const sort = (head) => {
    const table = head.closest("table"), body = table.tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].sort(compare(head.cellIndex));
    body.append(...(up ? rows : rows.reverse()));
  };
  document.querySelector("main").addEventListener("click", (event) => {
    const button = event.target.closest("thead button");
    if (button) sort(button.closest("th"));
  });
  for (const head of document.querySelectorAll("thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
  }
  const rows = [...document.querySelectorAll("tbody tr, .case")];
  if (rows.length < 8) return;
  let texts;
  const text = (row) => {
    const table = row.closest("table"), name = row.querySelector("h3");
    return (name ? name.textContent : `${table.caption.textContent} ${row.textContent}`).toLowerCase();
  };
  const label = document.createElement("label"), input = document.createElement("input"), said = document.createElement("output");
  input.type = "search";
  said.className = "note";
  label.append("Filter ", input);
  document.querySelector("nav").append(label, said);
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    texts = texts || rows.map(text);
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      shown += !row.hidden;
    });
    said.textContent = words.length ? `${shown} of ${rows.length}` : "";
  };
  let waiting;
  input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
})();

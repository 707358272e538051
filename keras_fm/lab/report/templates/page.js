"use strict";
// Tables are complete without this: it lets a click on a head sort them, and
// unfolds everything for paper.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    const key = (row) => {
      const cell = row.cells[index];
      if (!cell) return "";
      if (!head.classList.contains("number")) return cell.textContent;
      const text = cell.dataset.key;
      if (text === undefined) return NaN;
      return text === "inf" ? Infinity : Number(text);
    };
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = { ascending: "descending", descending: null }[now];
      const order = now === null ? "ascending" : next;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      const rows = [...original];
      if (order) {
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        rows.sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (typeof x === "string") return sign * x.localeCompare(y, "en");
          // What has no number stays last.
          if (Number.isNaN(x) || Number.isNaN(y)) {
            return Number.isNaN(x) - Number.isNaN(y);
          }
          return x === y ? 0 : sign * (x < y ? -1 : 1);
        });
      }
      body.replaceChildren(...rows);
    });
  });
}
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});

/* A table that does not fit its page may break its links anywhere. One that still does not, and on a
   phone one of which a row fills a third of the screen, shows each row as a card: every cell beside
   its column's name. book.css draws both; without this script such a table scrolls sideways. A
   formula that does not fit scrolls, and so do rows of three columns or more that a command printed,
   while sentences beside them wrap. What scrolls can be reached by keyboard. */
(() => {
  const BOXES = ".pst-scrollable-table-container, .ane-wide";
  const ROWS = /(?:^.*\S {2,}\S.* {2,}\S.*(?:\n|$)){2,}/gm;
  const phone = matchMedia("(max-width: 576px)");

  /* The name of its column on each cell, and the roles that `display: block` takes away. */
  function label(table) {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    table.setAttribute("role", "table");
    for (const part of table.children) part.setAttribute("role", "rowgroup");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, at) => {
        const head = row.parentElement === table.tHead ? "columnheader" : "rowheader";
        cell.setAttribute("role", cell.tagName === "TH" ? head : "cell");
        cell.dataset.column = names[at] ?? "";
      });
    }
  }

  /* Rows of columns in what a command printed, each run of them in a box of its own. */
  function column(pre) {
    if (pre.querySelector(":scope > :not(:empty)")) return; // in colours
    const text = pre.textContent;
    const parts = [];
    let end = 0;
    for (const { 0: rows, index } of text.matchAll(ROWS)) {
      const box = document.createElement("span");
      box.className = "ane-columns";
      box.textContent = rows;
      parts.push(text.slice(end, index), box);
      end = index + rows.length;
    }
    if (parts.length) pre.replaceChildren(...parts, text.slice(end));
  }

  const tables = [];
  function fit() {
    for (const box of document.querySelectorAll("div.math, .ane-columns")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
    for (const table of tables) table.classList.remove("ane-tight", "ane-cards");
    for (const look of ["ane-tight", "ane-cards"]) {
      const wide = tables.filter((t) => t.scrollWidth > t.closest(BOXES).clientWidth + 1);
      for (const table of wide) table.classList.add(look);
    }
    const high = (table) => [...table.rows].some((row) => row.offsetHeight > 300);
    if (phone.matches) for (const t of tables.filter(high)) t.classList.add("ane-cards");
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".cell_output pre").forEach(column);
    for (const table of document.querySelectorAll(`:is(${BOXES}) > table`)) {
      if (table.tHead?.rows.length !== 1 || table.querySelector("[colspan], [rowspan]")) continue;
      label(table);
      tables.push(table);
    }
    const boxes = document.querySelectorAll("article, div.math > math");
    let asked;
    const seen = new ResizeObserver(() => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(fit);
    });
    for (const box of boxes) seen.observe(box);
    fit();
  });
})();

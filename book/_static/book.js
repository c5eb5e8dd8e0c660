/* A table that does not fit its page has less room around its cells, and then may break its links
   anywhere, and on a phone it is smaller and reaches into the margins. One that still does not fit,
   and on a phone one of which a row fills a third of the screen, shows each row as a card: every cell
   beside its column's name. book.css draws them; without this script such a table scrolls sideways. A
   formula that does not fit scrolls, and so do rows of three columns or more that a command printed;
   its other lines go on below what stands right of a heading. What scrolls can be reached by keyboard.

   Who reads in the dark prints on white paper all the same.

   Search finds numbers: Sphinx has them in its index, and skips them where somebody types them. */
(() => {
  const BOXES = ".pst-scrollable-table-container, .ane-wide";
  const ROWS = /(?:^.*\S {2,}\S.* {2,}\S.*(?:\n|$)){2,}/gm;
  const HEADING = /^(?: *\S+(?: \S+)* {2,}| {4,})(?=\S)/;
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

  function boxed(text, name) {
    const box = document.createElement("span");
    box.className = name;
    box.textContent = text;
    return box;
  }

  /* A line, in a box that is indented below its heading, or as what was typed. */
  function hung(line) {
    if (line.startsWith("$ ")) return boxed(line, "ane-command");
    const at = HEADING.exec(line)?.[0].length ?? 0;
    if (at === 0 || at > 20) return line;
    const box = boxed(line, "ane-hung");
    box.style.setProperty("--at", `${at}ch`);
    return box;
  }

  /* What a command printed: each run of rows in a box of its own, other lines hung. */
  function lay(pre) {
    if (pre.querySelector(":scope > :not(span:empty)")) return; // in colours
    const lines = (text) => (text.match(/[^\n]*\n|[^\n]+$/g) ?? []).map(hung);
    const text = pre.textContent;
    pre.parentElement.classList.toggle("ane-terminal", text.startsWith("$ "));
    const parts = [];
    let end = 0;
    for (const { 0: rows, index } of text.matchAll(ROWS)) {
      parts.push(...lines(text.slice(end, index)), boxed(rows, "ane-columns"));
      end = index + rows.length;
    }
    pre.replaceChildren(...parts, ...lines(text.slice(end)));
  }

  const tables = [];
  function fit() {
    for (const box of document.querySelectorAll("div.math, .ane-columns")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
    const looks = ["ane-close", "ane-tight", "ane-small", "ane-cards"];
    for (const table of tables) table.classList.remove(...looks);
    for (const look of looks) {
      const wide = tables.filter((t) => t.scrollWidth > t.closest(BOXES).clientWidth + 1);
      for (const table of wide) table.classList.add(look);
    }
    const high = (table) => [...table.rows].some((row) => row.offsetHeight > 300);
    if (phone.matches) for (const t of tables.filter(high)) t.classList.add("ane-cards");
  }

  /* Add the numbers to the terms that are searched for, and to those that are highlighted. */
  function searchNumbers() {
    const parse = Search._parseQuery;
    Search._parseQuery = (query) => {
      const parsed = parse(query);
      const numbers = splitQuery(query).filter((term) => /^\d+$/.test(term));
      for (const number of numbers) for (const terms of [parsed[1], parsed[3]]) terms.add(number);
      return parsed;
    };
  }

  const { dataset } = document.documentElement;
  let read;
  addEventListener("beforeprint", () => {
    read = dataset.theme;
    dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    dataset.theme = read;
  });

  document.addEventListener("DOMContentLoaded", () => {
    if (typeof Search === "object") searchNumbers();
    document.querySelectorAll(".cell_output pre").forEach(lay);
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

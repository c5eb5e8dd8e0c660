"""A search field and filters above what a page lists: its claims, its experiments.

    HTML(finder.field("claims", ".ane-claim", chip=("M1", "M4 Max"), grade=("apple",)))

An entry matches the selector, and names in `data-chip` and `data-grade` what it is to be found by,
separated by "; ". A hyphen finds a minus. Without its script the field is not shown. What a filter
leaves empty, a heading too, is hidden; a link to a hidden entry shows all again.
"""

from collections.abc import Iterable
from html import escape

STYLE = """
.ane-finder { display: flex; flex-wrap: wrap; gap: .5rem 1rem; }
.ane-finder[hidden] { display: none; }
.ane-finder label:has(input) { flex: 1 1 100%; }
.ane-finder :is(input, select) { width: 100%; padding: .4rem; font: inherit; }
.ane-finder label:has(select) { flex: 1 1 8rem; max-width: 16rem; }
.ane-finder p { flex: 1 1 100%; margin: 0; }
@media print { .ane-finder { display: none; } }
"""
SCRIPT = """
(() => {
  const box = document.currentScript.parentElement;
  const [field, ...filters] = box.querySelectorAll("input, select");
  const plain = text => text.toLowerCase().replaceAll("\u2212", "-");
  const look = () => {
    const words = plain(field.value).split(/\\s+/).filter(Boolean);
    const all = [...document.querySelectorAll(box.dataset.entries)], parts = new Map();
    for (const one of all) {
      const text = plain(one.textContent);
      one.hidden = !words.every(word => text.includes(word)) || !filters.every(
        ({ name, value }) => !value || one.dataset[name].split("; ").includes(value));
      const part = one.parentElement.closest("section");
      if (part && !part.contains(box)) parts.set(part, parts.get(part) || !one.hidden);
    }
    parts.forEach((any, part) => { part.hidden = !any; });
    box.querySelector("[role=status]").textContent =
      all.filter(one => !one.hidden).length + " of " + all.length;
  };
  const follow = () => {
    const place = document.getElementById(location.hash.slice(1));
    if (!place?.closest("[hidden]")) return;
    for (const one of [field, ...filters]) one.value = "";
    look();
    place.scrollIntoView();
  };
  box.hidden = false;
  box.addEventListener("input", look);
  addEventListener("pageshow", () => { look(); follow(); });
  addEventListener("hashchange", follow);
  // a link to where one is already changes no hash
  addEventListener("click", ({ target }) => target.closest("a[href*='#']") && setTimeout(follow));
})();
"""


def field(what: str, entries: str, **filters: Iterable[str]) -> str:
    """The field as HTML, for entries that a CSS selector finds; filters: the values of each."""
    selects = "".join(
        f'<label>{name}<select name="{name}"><option value="">any</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label>"
        for name, values in filters.items()
    )
    return (
        f'<div class="ane-finder ane-wide" data-entries="{entries}" hidden>'
        f"<style>{STYLE}</style><label>Search {what}"
        f'<input type="search"></label>{selects}<p role="status"></p>'
        f"<script>{SCRIPT}</script></div>"
    )

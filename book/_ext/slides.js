/* Slides: light or dark as the reader has the book, and turned by keys. Without this script they
   scroll, one to a screen, in light. */
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function paint() {
    const mode = localStorage.getItem("mode") ?? "auto";
    const system = dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = mode === "auto" ? system : mode;
  }
  dark.addEventListener("change", paint);
  paint();

  const ALONG = { ArrowRight: 1, ArrowLeft: -1 };
  const DOWN = { ArrowDown: 1, PageDown: 1, " ": 1, ArrowUp: -1, PageUp: -1 };
  addEventListener("keydown", (event) => {
    const key = event.key;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.closest("[tabindex]")) return; // a formula that is scrolled
    const slides = [...document.querySelectorAll(".slide")];
    const now = slides.findIndex((s) => s.getBoundingClientRect().bottom > innerHeight / 2);
    if (key in DOWN && slides[now].offsetHeight > innerHeight + 1) return; // it is scrolled itself
    const step = (ALONG[key] ?? DOWN[key]) * (event.shiftKey ? -1 : 1);
    const slide = slides[{ Home: 0, End: slides.length - 1 }[key] ?? now + step];
    if (!slide) return;
    event.preventDefault();
    slide.scrollIntoView();
    history.replaceState(null, "", `#${slide.id}`);
  });
})();

"""README's terminal picture: `ane-book demo` as it ran here, in light and dark.

    python book/_ext/terminal.py [BUNDLE]

An SVG that loads nothing: its font is the reader's own.
"""

from io import StringIO
from pathlib import Path
import sys

import ane_book
from ane_book.bundle import Bundle
from ane_book.cli.demo import present
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
from mlprogram.ane import laws
from rich.console import Console
from rich.terminal_theme import TerminalTheme

MODEL = "smollm2-135m-instruct"
FOLDER = Path(__file__).parents[2] / "book" / "_static"
COLUMNS = 90

#: Eight colours each that are readable on their background (contrast of 4.5 and more).
DARK = TerminalTheme(
    (13, 17, 23), (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
     (88, 166, 255), (188, 140, 255), (57, 197, 207), (230, 237, 243)],
)  # fmt: skip
LIGHT = TerminalTheme(
    (255, 255, 255), (31, 35, 40),
    [(36, 41, 47), (207, 34, 46), (17, 99, 41), (125, 78, 0),
     (9, 105, 218), (130, 80, 223), (14, 105, 119), (87, 96, 106)],
)  # fmt: skip

#: Rich's own, but for the font, which that one fetches from elsewhere.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
        font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})"
      clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def main() -> None:
    made = Bundle.open(sys.argv[1]) if sys.argv[1:] else ane_book.convert(MODEL)
    for name, measure in (("L0", laws.check), ("L1", check_parity)):
        if made.evidence.levels[name].status == "unmeasured":
            made.record(name, measure(made.path).level())
    console = Console(file=StringIO(), record=True, width=COLUMNS, force_terminal=True,
                      color_system="standard", highlight=False)  # fmt: skip
    present(Session(made, backend="mil"), console)
    for name, theme in (("dark", DARK), ("light", LIGHT)):
        text = console.export_svg(title="ane-book demo", theme=theme, clear=False,
                                  code_format=SVG, unique_id=f"demo-{name}")  # fmt: skip
        path = FOLDER / f"demo-{name}.svg"
        path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
        print(f"written: {path.name}")


if __name__ == "__main__":
    main()

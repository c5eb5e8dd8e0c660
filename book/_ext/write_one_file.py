"""Write one_file.py, the program, from the code of the page book/one-file.md.

python book/_ext/write_one_file.py
"""

from pathlib import Path
import re

import jupytext

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "book" / "one-file.md"
PROGRAM = ROOT / "one_file.py"
ASKED = "\n## Ask it\n"  # from here on the page runs what it has shown
LISTING = re.compile(r"^```python\n(.*?)\n```$", re.M | re.S)
HEAD = '''"""A language model for Apple's Neural Engine in one file: convert it, ask it, check it.

    python one_file.py "What is the capital of France?" [model.gguf]

Made by `make notebooks` from the page https://github.com/ane-book/ane-book/blob/main/book/one-file.md,
which explains every line, and says what to install.
"""'''


def program(page: str) -> str:
    """The code that the page shows, cells and listings, before it is run."""
    parts = []
    for cell in jupytext.reads(page.partition(ASKED)[0], fmt="md:myst").cells:
        parts += [cell.source] if cell.cell_type == "code" else LISTING.findall(cell.source)
    return f"{HEAD}\n\n" + "\n\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PROGRAM.write_text(program(PAGE.read_text("utf-8")), "utf-8")

"""Labels of two kinds of spans, sequences of them that make sense, and texts that come in parts."""

from itertools import pairwise

from hypothesis import strategies as st

NAMES = ["O", *(f"{part}-{kind}" for kind in ("name", "url") for part in "BIES")]


def makes_sense(names: list[str]) -> bool:
    inside = ""
    for name in names:
        if (name[0] in "IE") != bool(inside) or (inside and name[2:] != inside):
            return False
        inside = name[2:] if name[0] in "BI" else ""
    return not inside


def parted(text: str, data) -> list[str]:
    """The text in parts, somehow."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]

"""Docstrings as the reference pages show them.

A parameter is documented where it is spoken of, `name: what it is`, one after another in a
paragraph. Here each becomes a field of Sphinx, and so a line of a list. What a class raises or
gives stays prose.
"""

import inspect
import re


def fields(names: list[str], lines: list[str]) -> list[str]:
    """A docstring's lines, in which `name: text` of these names is `:param name: text`.

    A text goes on to the next name, or to the end of its paragraph. Code in a docstring, which is
    indented, stays as it is.
    """
    lines = [re.sub(r"^Raises ", "\nRaises ", line) for line in lines]
    begins = re.compile(rf"(?:^|(?<=[.;)] ))({'|'.join(map(re.escape, names))}): ")
    paragraphs, result = re.split(r"\n\s*\n", "\n".join(lines)), []
    for paragraph in paragraphs:
        code = paragraph.startswith((" ", ".."))
        text = paragraph if code else " ".join(map(str.strip, paragraph.splitlines()))
        parts = [text] if code else begins.split(text)
        result += [*parts[0].rstrip().splitlines(), ""]
        for name, what in zip(parts[1::2], parts[2::2], strict=True):
            result.append(f":param {name}: {what.strip()}")
        result.append("")
    return result


def process(app, what: str, name: str, obj: object, options, lines: list[str]) -> None:
    if not callable(obj):
        return
    try:
        names = [name for name in inspect.signature(obj).parameters if name != "self"]
    except (TypeError, ValueError):  # such as of a type without one
        return
    if names:
        lines[:] = fields(names, lines)


def setup(app) -> dict:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}

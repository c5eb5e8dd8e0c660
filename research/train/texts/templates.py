r"""Templates: a line of text with slots and choices.

    Dear {first}, [call|ring] me on {phone}[ today|].\n\n{person}

`{slot}` is a value (`texts.values`), `[a|b]` one of several texts, which may hold slots and choices
of their own, and \n a new line. Of a file, what stands below "== held out" is never trained on.
"""

from functools import cache
from pathlib import Path
from random import Random
import re

from texts.values import Piece, Values

FOLDER = Path(__file__).parent / "templates"
SIGN = re.compile(r"[\[\]|]|\{(\w+)\}")

#: A text, a slot's name in a tuple of one, or a list of choices, each a list of nodes.
Node = str | tuple[str] | list


@cache
def templates(language: str) -> tuple[list[list[Node]], list[list[Node]]]:
    """Those to train on, and those that are held out."""
    parts = ([], [])
    held_out = False
    for line in (FOLDER / f"{language}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("=="):
            held_out = True
        elif line and not line.startswith("# "):
            parts[held_out].append(_parse(line.replace("\\n", "\n")))
    return parts


def _parse(line: str) -> list[Node]:
    stack: list[list[list[Node]]] = [[[]]]  # of open choices, the alternatives so far
    place = 0
    for match in SIGN.finditer(line):
        stack[-1][-1].append(line[place : match.start()])
        place = match.end()
        if match[1]:
            stack[-1][-1].append((match[1],))
        elif match[0] == "[":
            stack.append([[]])
        elif match[0] == "]":
            choice = stack.pop()
            if not stack:
                raise ValueError(f"a ] too many: {line}")
            stack[-1][-1].append(choice)
        elif len(stack) > 1:
            stack[-1].append([])
        else:
            stack[-1][-1].append("|")
    stack[-1][-1].append(line[place:])
    if len(stack) > 1:
        raise ValueError(f"a ] is missing: {line}")
    return [node for node in stack[0][0] if node != ""]


def filled(nodes: list[Node], rng: Random, values: Values) -> list[Piece]:
    pieces: list[Piece] = []
    for node in nodes:
        if isinstance(node, str):
            pieces.append((node, None))
        elif isinstance(node, tuple):
            pieces += values.fill(node[0])
        else:
            pieces += filled(rng.choice(node), rng, values)
    return pieces


def slots(nodes: list[Node]) -> set[str]:
    """The names of all slots, without the digits of their persons."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, tuple):
            found.add(node[0].rstrip("0123456789"))
        elif isinstance(node, list):
            found = found.union(*(slots(choice) for choice in node))
    return found

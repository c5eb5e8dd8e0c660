"""The index of experiments: question, machine, result, and the command to repeat each.

Three kinds, never merged: those that this project ran (`own`), those that wait for a Mac
(`for_a_mac`), and those that others published (`published`). All are read from files in a
checkout's `research/`; results are filled in from the benchmarks' records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
import re
from string import Formatter
import tomllib
from typing import Any, Literal, get_args

from ane_book.errors import InvalidInput
from ane_book_pages import finder, records
from mlprogram.ane import claims

Verdict = Literal["yes", "no", "partly", "missed", "unmeasured", "published"]
FOLDER = "experiments"
INDEX = f"{FOLDER}/index.toml"
#: The mark and the colour of each verdict on a page.
LOOKS = {
    "yes": ("✓", "#009e73"), "no": ("✗", "#d55e00"), "partly": ("±", "#e69f00"),
    "missed": ("↓", "#cc79a7"), "unmeasured": ("?", "#888888"), "published": ("”", "#0072b2"),
}  # fmt: skip
STYLE = """
.ane-index details { border-bottom: 1px solid #8886; padding: .35rem 0; }
.ane-index summary { cursor: pointer; overflow-wrap: anywhere; }
.ane-index dl { margin: .4rem 0 .4rem 1rem; overflow-wrap: anywhere; }
.ane-index dt { font-weight: 600; } .ane-index dd { margin: 0 0 .3rem 0; }
.ane-index .verdict { border: 1px solid; border-radius: .3rem;
  padding: 0 .3rem; font-size: .85em; white-space: nowrap; }
"""
FIELDS = {"question", "setup", "result", "verdict", "means", "run", "more"}


@dataclass(frozen=True)
class Experiment:
    """One entry of the index.

    verdict: "missed" if a goal was set and not reached. run: a command for the repository's root;
    "" for an experiment of others. more: the page or address with the details.
    """

    id: str
    question: str
    setup: str
    result: str
    verdict: Verdict
    means: str
    run: str
    more: str


class _Figures(Formatter):
    """str.format for records, with formats for shares, bytes and counts."""

    def get_field(self, field_name: str, args, kwargs) -> tuple[Any, str]:
        """Look a field up: keys of JSON objects are strings, even "1"; list indices are numbers."""
        name, *keys = re.findall(r"[^\[\]]+", field_name)
        value = kwargs[name]
        for key in keys:
            value = value[int(key) if isinstance(value, list) else key]
        return value, name

    def format_field(self, value: Any, spec: str) -> str:
        kind, _, rest = spec.partition(".")
        if kind == "%":
            return f"{100 * value:.{rest}f} %"
        if kind in ("GB", "MB"):
            return f"{value / {'GB': 1e9, 'MB': 1e6}[kind]:,.{rest}f} {kind}"
        if kind.startswith("count"):
            key, _, wanted = kind.removeprefix("count").strip().partition("=")
            return str(sum(not key or row[key] == wanted for row in value))
        return super().format_field(value, spec)


def own() -> list[Experiment]:
    """The experiments that this project ran, in the order of its index.

    Raises InvalidInput for an entry that lacks a field, or names a figure that no record has.
    """
    path = records.find(INDEX)
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_own(name, table, f"{path}, {name!r}") for name, table in tables.items()]


def _own(name: str, table: dict, where: str) -> Experiment:
    if missing := FIELDS - table.keys():
        raise InvalidInput(f"{where}: {min(missing)!r} is not said")
    if unknown := table.keys() - FIELDS - {"reads"}:
        raise InvalidInput(f"{where}: {min(unknown)!r} is no field of an experiment")
    if table["verdict"] not in get_args(Verdict)[:5]:
        raise InvalidInput(f"{where}: {table['verdict']!r} is no verdict")
    read = {Path(n).stem.replace("-", "_"): records.read(n) for n in table.get("reads", [])}
    try:
        result = _Figures().vformat(table["result"], (), read)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(f"{where}: no record has a figure of its result ({error!r})") from None
    return Experiment(name, **{k: table[k] for k in FIELDS} | {"result": result})


def for_a_mac() -> list[Experiment]:
    """Scripts that settle claims on a Mac with a Neural Engine; nobody has run them yet."""
    scripts = sorted(records.find(INDEX).parent.glob("settle_*.py"))
    return [_waiting(script) for script in scripts]


def _waiting(script: Path) -> Experiment:
    named, said, question = asked(script)
    known = [claims.find(claim) for claim in named]
    return Experiment(
        id=script.stem.removeprefix("settle_").replace("_", "-"),
        question=question,
        setup=said,
        result="; ".join(f"{claim.id}: {claim.evidence}" for claim in known),
        verdict="unmeasured",
        means="A Mac with a Neural Engine would settle it; --dry-run runs its graphs anywhere.",
        run=f"python research/{FOLDER}/{script.name}",
        more="",
    )


def asked(script: Path) -> tuple[list[str], str, str]:
    """Read a script's claims, what its docstring says about them, and its question."""
    text = script.read_text(encoding="utf-8").split('"""')[1]
    found = re.fullmatch(r"Claims? (.*?)[:(] ?(.*)\n\nQuestion: ([^\n]*\?)\n", text, re.S)
    if found is None:
        raise InvalidInput(f"{script}: its docstring is not its claims, and last its question")
    return re.split(r", | and ", found[1].strip()), " ".join(found[2].split()), found[3]


def published() -> list[Experiment]:
    """What others measured on Neural Engines, by source file, with the figures as published."""
    rows = records.read("measurements/published.json")["rows"]
    return [_others(list(group)) for _, group in groupby(sorted(rows, key=_place), _place)]


def _place(row: dict) -> tuple[str, str]:
    return row["source"]["repository"], row["source"]["path"]


def _others(rows: list[dict]) -> Experiment:
    (repository, path), commit = _place(rows[0]), rows[0]["source"]["commit"]
    return Experiment(
        id=f"{repository}/{path}",
        question=" · ".join(_each(row["model"] for row in rows)),
        setup=", ".join(_each(row["chip"] or row["device"] for row in rows)),
        result="; ".join(f"{row['what']}: {row['value']:,} {row['unit']}" for row in rows),
        verdict="published",
        means="",
        run="",
        more=f"https://github.com/{repository}/blob/{commit}/{path}",
    )


def _each(names: Iterator[str | None]) -> list[str]:
    return list(dict.fromkeys(filter(None, names)))


def listed(own: list[Experiment], waiting: list[Experiment], others: list[Experiment]) -> str:
    """All as HTML: each folded under its question, below a field that searches them."""
    entries = [_entry(one, "this project, off a Mac") for one in own]
    entries += [_entry(one, "this project, not run: needs a Mac") for one in waiting]
    entries += [_entry(one, "others; we read it") for one in others]
    search = finder.field("questions, set-ups, results", ".ane-index > details", verdict=LOOKS)
    body = "\n".join(entries)
    return f'{search}<div class="ane-index ane-wide"><style>{STYLE}</style>{body}</div>'


def _entry(one: Experiment, by: str) -> str:
    lines = {
        "by": by,
        "set-up": re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(one.setup)),
        "result": escape(one.result),
        "what follows": escape(one.means),
        "command": f"<code>{escape(one.run)}</code>" if one.run else "",
        "more": _link(one.more),
    }
    told = "".join(f"<dt>{name}</dt><dd>{line}</dd>" for name, line in lines.items() if line)
    mark, color = LOOKS[one.verdict]
    return (
        f'<details data-verdict="{one.verdict}"><summary>{escape(one.question)} '
        f'<span class="verdict" style="background: {color}33"><span aria-hidden="true">{mark}'
        f"</span> {one.verdict}</span></summary><dl>{told}</dl></details>"
    )


def _link(to: str) -> str:
    if to.startswith("https://"):
        return f'<a href="{escape(to)}">{escape(to.split("/blob/")[0][19:])}</a>'
    return f'<a href="{escape(to)}.html">{escape(to)}</a>' if to else ""

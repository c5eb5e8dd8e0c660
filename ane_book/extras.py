"""What to do where the packages of an extra are missing.

No index has ane-book, so no line names it as one: it is for the checkout that this library runs
from, or names what the extra stands for.
"""

from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

__all__ = ["missing"]

CHECKOUT = Path(__file__).parents[1]  # or what else the library lies in


def missing(purpose: str, extra: str, *names: str) -> str:
    """The sentence of an error; `purpose` begins it, "to serve", `names` are the packages."""
    *first, last = names
    said = f"{', '.join(first)} and {last} are" if first else f"{last} is"
    return f"{purpose}, run `{_command(extra, names)}`; {said} missing"


def _command(extra: str, names: tuple[str, ...]) -> str:
    if (CHECKOUT / "constraints.txt").exists() and (CHECKOUT / "pyproject.toml").exists():
        return f'cd "{CHECKOUT}" && pip install -c constraints.txt -e mlprogram -e ".[{extra}]"'
    return " ".join(["pip install", *(f'"{each}"' for each in _requirements(extra) or names)])


def _requirements(extra: str) -> list[str]:
    """What the extra stands for, by the metadata of the wheel that was installed."""
    try:
        lines = [line.replace("'", '"').partition(";") for line in requires("ane-book") or ()]
    except PackageNotFoundError:
        return []
    return [name.strip() for name, _, where in lines if f'extra == "{extra}"' in where]

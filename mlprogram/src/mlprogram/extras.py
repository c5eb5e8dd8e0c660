"""What to do where the packages of an extra are missing.

No index has these libraries, so no line names one: it is for the checkout that this one runs from,
or names what the extra stands for.
"""

from pathlib import Path

CHECKOUT = Path(__file__).parents[3]  # or what else the library lies in
FOLDERS = {"mlprogram": "./mlprogram", "ane-book": "."}  # each needs those before it,
BUILT_ON = {"ane-families": "./families", "ane-serve": "./ane_serve"}  # and each of these both


def missing(purpose: str, needed: str, *names: str) -> str:
    """The sentence of an error; `purpose` begins it, "to serve". needed: "mlprogram[onnx]", or a
    distribution without an extra. names: the packages."""
    *first, last = names
    said = f"{', '.join(first)} and {last} are" if first else f"{last} is"
    return f"{purpose}, run `{_command(needed, names)}`; {said} missing"


def _command(needed: str, names: tuple[str, ...]) -> str:
    distribution, _, extra = needed.rstrip("]").partition("[")
    if (CHECKOUT / "constraints.txt").exists() and (CHECKOUT / "pyproject.toml").exists():
        folders = list(FOLDERS.values())
        if distribution in BUILT_ON:
            *below, own = *folders, BUILT_ON[distribution]
        else:
            *below, own = folders[: list(FOLDERS).index(distribution) + 1]
        own = f'"{own}[{extra}]"' if extra else own
        editable = " ".join(f"-e {each}" for each in (*below, own))
        return f'cd "{CHECKOUT}" && pip install -c constraints.txt {editable}'
    found = _requirements(distribution, extra) or names
    return " ".join(["pip install", *(f'"{each}"' for each in found)])


def _requirements(distribution: str, extra: str) -> list[str]:
    """What the extra stands for, by the metadata of the wheel that was installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = [line.replace("'", '"').partition(";") for line in requires(distribution) or ()]
    except PackageNotFoundError:
        return []
    return [name.strip() for name, _, where in lines if where.strip() == f'extra == "{extra}"']

"""Residency (L2) of a bundle: its packages on a Mac's Neural Engine, on its golden tokens.

`mlprogram.ane.mac.residency` measures one function. Each gets the inputs of the bundle's golden
tokens: their hidden state, the host's masks and tables, empty caches. A package that also takes
what other packages of the same layers compute gets that at random.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level, level, no_level
from ane_book.errors import InvalidInput
from ane_book.evidence.inspect import is_bundle
from ane_book.evidence.parity.locate import golden_programs
from mlprogram.ane.mac.residency import Residency, measure
from mlprogram.machine import chip, system


def measure_each(
    path: Path,
    function: str | None = None,
    progress: Callable[[str, int, int], None] = lambda description, done, total: None,
    **options,
) -> Iterator[tuple[str, Residency]]:
    """`measure` a package, or every function of every package of a bundle; yields names too.

    function: measure only that one. A bundle is measured on its golden tokens.
    """
    names: list[tuple[Path, str | None, Callable | None]] = [(path, function, None)]
    if is_bundle(path):
        every = golden_programs(Bundle.open(path))
        names = [(p, own, given) for p, own, name, given in every if function in (None, name, own)]
        if not names:
            raise InvalidInput(f"{path}: none of its packages has a function {function!r}")
    for done, (package, each, inputs) in enumerate(names, 1):
        found = measure(package, each, inputs=inputs, **options)
        progress(f"{package.name} {each or ''}".strip(), done, len(names))
        yield " ".join(filter(None, [package.name, each])), found


def bundle_level(found: Mapping[str, Residency]) -> Level:
    """The evidence level L2 of a bundle, from the results of `measure_each`.

    Of functions that are not resident it names one, first of all one with wrong numbers.
    """
    if why := [one.reason for one in found.values() if one.verdict == "unmeasured"]:
        return no_level(why[0])
    wrong = {key: one for key, one in found.items() if not one.resident}
    resident = len(found) - len(wrong)
    figures = {"functions": len(found), "resident": resident}
    figures["soak"] = min(one.figures.get("soaked", 0) for one in found.values())
    costs = [one.figures.get("ane_cost", 0.0) for one in found.values()]
    slower = sum(one.slower for one in found.values())
    figures |= {"least_ane_cost": min(costs), "slower_than_cpu": slower}
    machine = {"chip": chip(), "system": system()}
    if not wrong:
        reason = f"all {resident} functions run on the ANE"
        reason += f", {slower} of them slower than the CPU alone" if slower else ""
        return level(True, reason, figures, machine)
    key, one = min(wrong.items(), key=lambda item: item[1].verdict != "numbers")
    reason = (
        f"{resident} of {len(found)} functions run on the ANE; {key}: {one.verdict}: {one.reason}"
    )
    return level(False, reason, figures, machine)

"""The command `diff`: compare two packages, or one as declared with itself in single precision."""

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from mlprogram.arithmetic import depends
from mlprogram.compare import TOLERANCE, diff
from mlprogram.errors import InvalidInput
from mlprogram.execute import arrays_of
from mlprogram.package.container import open_container
from mlprogram.package.reader import Package
from mlprogram.run.pipeline import Pipeline, open_model
from mlprogram.run.precision import PRECISIONS
from mlprogram.run.program import MLProgram
from mlprogram.tables import table


class Comparison(NamedTuple):
    """The result of `compare_packages`: as text, as a bool, as facts (errors may be infinite)."""

    text: str
    equal: bool
    facts: dict


def compare_packages(
    a: Path,
    b: Path | None = None,
    function: str | None = None,
    inputs: Path | None = None,
    precision: str = "fp16",
    tolerance: float = TOLERANCE,
    seed: int = 0,
    why: bool = False,
) -> Comparison:
    """`diff` of two packages in one precision, or of one as declared and in fp32.

    why: name what depends on how Core ML computes it even if they are equal, with the sources.
    """
    alone = "fp16" if precision == "fp32" else precision
    ours = open_model(a, function, precision if b else alone)
    theirs = open_model(b, function, precision) if b else ours
    if isinstance(ours, Pipeline) or isinstance(theirs, Pipeline):
        raise InvalidInput("diff goes op by op through one program, and a pipeline is several")
    if theirs is ours:
        theirs = ours.plain("fp32")
    else:
        _check_alike(ours, theirs)
    arrays = arrays_of(ours, inputs, seed)
    difference = diff(ours, theirs, arrays, tolerance)
    sides = {
        side: {"package": str(path), "function": program.name, "precision": program.precision}
        for side, path, program in (("A", a, ours), ("B", b or a, theirs))
    }
    on = str(inputs) if inputs else f"random inputs, seed {seed}"
    rows = [
        (side, of["package"], of["function"], PRECISIONS[of["precision"]])
        for side, of in sides.items()
    ]
    head = table([*rows, ("on", on, "", "")])
    facts = {"on": on, **sides, "equal": difference.equal, **asdict(difference)}
    return Comparison(f"{head}\n\n{difference.text(why)}", difference.equal, facts)


def _check_alike(ours: MLProgram, theirs: MLProgram) -> None:
    """Raise InvalidInput where B does not take what A takes."""
    needed = {name for name, feature in theirs.features.items() if feature.fill is None}
    if needed - ours.inputs.keys() or ours.inputs.keys() - theirs.inputs.keys():
        sides = [f"{p.package.path}, {p.name}, takes {', '.join(p.inputs)}" for p in (ours, theirs)]
        raise InvalidInput(
            f"{'; '.join(sides)}: packages are compared on the same inputs; --function names "
            "another function of both"
        )


def arithmetic_of(path: Path, function: str | None) -> dict[str, list[str]]:
    """What a package's function touches of `arithmetic.toml` (`depends`); nothing of a pipeline."""
    container = open_container(path)
    if container.spec.WhichOneof("Type") == "pipeline":
        return {}
    package = Package(container)
    return depends(package.functions[function or package.default_function])

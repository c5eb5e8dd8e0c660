"""Write an ML Program as an asset of Core AI, op by op.

    save_asset("App.mlpackage", "App.aimodel")

Every function of the package whose sizes are fixed becomes an entry point; weights that functions
share are written once. Compressed weights stay compressed (`weights.py`), a state becomes one of
Core AI's: an input that the call changes. An op without a counterpart is refused by its name and
place before anything is written. Core AI's own passes then fold constants and drop what nobody
reads.

Only `coreai-core` is needed (extra `coreai`), on any machine; nothing here is about a Mac.
"""

from importlib.metadata import version
from pathlib import Path
import tempfile

from mlprogram.errors import InvalidInput
from mlprogram.package.asset import check_installed
from mlprogram.package.description import features
from mlprogram.package.function import Function
from mlprogram.package.reader import Package

#: Versions of coreai-core that run assets, and have not the calls that write them here.
FORMER = ("1.0.0b1", "1.0.0b2")


def missing_ops(package: str | Path | Package) -> list[str]:
    """What has no counterpart, a line each: op, value and function.

    Raises InvalidInput where coreai-core is missing or too old and where no function has fixed
    sizes, InvalidPackage for a damaged package.
    """
    check_installed()
    if (found := version("coreai-core")) in FORMER:
        raise InvalidInput(
            f"coreai-core {found} writes no asset here, and macOS 27 refuses some of 1.0.0b1 "
            "(claim asset-locations): `pip install coreai-core==1.0.0b3`, or later"
        )
    from mlprogram.coreai.graph import KNOWN

    package = package if isinstance(package, Package) else Package(package)
    return [
        f"{operation.type} ({operation.name!r}, function {function.name!r})"
        for function in fixed_functions(package).values()
        for operation in function.operations()
        if operation.type not in KNOWN or operation.blocks
    ]


def fixed_functions(package: Package) -> dict[str, Function]:
    """The functions whose inputs have fixed sizes: those that an asset gets.

    Raises InvalidInput where there is none, with how to fix a size.
    """
    functions = package.functions
    open_ = {
        name: [i for i, type_ in function.inputs.items() if None in type_.shape]
        for name, function in functions.items()
    }
    if found := {name: functions[name] for name, inputs in open_.items() if not inputs}:
        return found
    name, inputs = next(iter(open_.items()))
    described = features(package, name, "input", functions[name].inputs)
    sizes = {i: described[i].shape for i in inputs}
    raise InvalidInput(
        f"{package.path}, function {name!r}: a flexible size, of {' and '.join(inputs)}; an asset "
        "has fixed sizes. Make a function of each size that you need: coremltools.utils."
        f'materialize_dynamic_shape_mlmodel(MLModel(...), {{"fixed": {sizes}}}, "fixed.mlpackage")'
    )


def save_asset(source: str | Path | Package, target: str | Path, precision: str = "fp16") -> Path:
    """Write the ML Program at `source` as `target`, an `.aimodel`, whose path is returned.

    precision: "fp32" widens half precision to single, to compare numbers; "fp16" is the program as
    it is. Written whole or not at all. Raises InvalidInput for a target that exists or is no
    `.aimodel`, for ops that have no counterpart, where no function has fixed sizes and where
    coreai-core is missing or too old, InvalidPackage for a damaged source.
    """
    target = Path(target)
    if target.suffix != ".aimodel":
        raise InvalidInput(f"{target}: an asset of Core AI is named .aimodel")
    if target.exists():
        raise InvalidInput(f"{target} exists already; delete it, or name another")
    check_installed()
    package = source if isinstance(source, Package) else Package(source)
    if missing := missing_ops(package):
        more = f", and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InvalidInput(
            f"{package.path}: Core AI has no counterpart for {'; '.join(missing[:5])}{more}; "
            "write the program without it, or ship the package"
        )
    from mlprogram.coreai.graph import write_asset

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".coreai-") as folder:
        made = Path(folder) / target.name
        write_asset(package, fixed_functions(package).values(), precision, made)
        made.rename(target)
    return target

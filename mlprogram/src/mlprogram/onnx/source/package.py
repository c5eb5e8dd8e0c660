"""A package's run for a comparison with its source: every value, what made it, what it stores.

The run is in single precision with the weights that the package stores, op by op: so what differs
from the source was converted otherwise, and is not rounded otherwise. A pipeline is run part by
part, and ends before a part that suppresses boxes (`suppression.py` goes on from there).
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

from mlprogram import MLProgram, Pipeline
from mlprogram.analysis.aliases import uses
from mlprogram.analysis.constants import Constants
from mlprogram.onnx.source.match import PackageValue
from mlprogram.package.description import Feature
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
from mlprogram.run.pipeline import Suppression, open_model
import numpy as np

SUPPRESSION = "non_maximum_suppression"


class PackageRun:
    """A package, open in single precision.

    model: it. programs: its ML Programs in order. values: of the last `run`, inputs first.
    """

    def __init__(self, path: Path, function: str | None = None):
        self.path = path
        self.model: MLProgram | Pipeline = open_model(path, function, "fp32")
        parts = self.model.parts if isinstance(self.model, Pipeline) else [self.model]
        self.programs = [part for part in parts if isinstance(part, MLProgram)]
        self.suppressions = [part for part in parts if isinstance(part, Suppression)]
        self.values: list[PackageValue] = []
        self.results: dict[str, np.ndarray] = {}  # what parts give each other, by name

    @property
    def features(self) -> dict[str, Feature]:
        """The inputs that the caller gives, of all parts."""
        found: dict[str, Feature] = {}
        for program in self.programs:
            found |= {n: f for n, f in program.features.items() if n in self.model.inputs}
        return found

    @property
    def is_half(self) -> bool:
        """Whether it computes in half precision, and so stores weights in it."""
        types = (t.dtype for p in self.programs for o in p.operations for _, t in o.outputs)
        return "fp16" in set(types)

    @property
    def compressed(self) -> dict[str, int]:
        """The weights that are stored in fewer than 16 bits, by name, and in how many."""
        found = (o for o in self.operations(constant=True) if o.type.startswith("constexpr_"))
        return {name: _bits(operation) for operation in found for name, _ in operation.outputs}

    def operations(self, constant: bool = False) -> Iterator[Operation]:
        """The ops of all programs that compute, or those that are constants."""
        for program in self.programs:
            for operation in program.package.functions[program.name].operations():
                if operation.is_constant == constant:
                    yield operation

    def constants(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every floating-point number or tensor that a program stores, compressed ones expanded."""
        for program in self.programs:
            function = program.package.functions[program.name]
            held = Constants(function, True, {}, lambda operation: nullcontext())
            for name, known in held.named.items():
                if known.type.dtype in ("fp16", "fp32"):
                    yield name, held.tensor(known).numpy()
            for operation in function.operations():
                for key, items in operation.inputs.items():
                    for item in items if not operation.is_constant else ():
                        if not isinstance(item, str) and item.type.dtype in ("fp16", "fp32"):
                            yield f"{operation.name}.{key}", item.array().astype(np.float32)

    def run(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Run it on arrays by the package's names and keep every value."""
        self.results, self.values = dict(inputs), []
        for program in self.programs:
            plain = program.plain("fp32")
            given = {n: self.results[n] for n in program.inputs if n in self.results}
            for name, feature in program.features.items():
                if name in self.model.inputs:
                    array = feature.array(given[name]) if name in given else feature.default()
                    self.values.append(PackageValue(name, "", array))
            makers = {n: o for o in program.operations for n, _ in o.outputs}
            coarse = _coarse(program)
            state = plain.make_state() if plain.states else None
            for name, array in plain.trace(given, state):
                if name in makers:
                    reads, constants = tuple(uses(makers[name])), _read(makers[name], coarse)
                    self.values.append(
                        PackageValue(name, makers[name].type, array, reads, constants)
                    )
                if name in program.outputs:
                    self.results[name] = array

    def value(self, name: str) -> PackageValue | None:
        """The last value of a name."""
        return next((value for value in self.values[::-1] if value.name == name), None)

    def outputs(self) -> dict[str, PackageValue]:
        """The outputs that can be compared: of a classifier the probabilities for its label.

        Of a package that ends with a suppression these are what goes into it.
        """
        names: list[str] = []
        for program in self.programs:
            later = {name for other in self.programs if other is not program
                     for name in other.inputs}
            names += [name for name in program.outputs if name not in later]
        found = {}
        makers = {n: o for o in self.operations() for n, _ in o.outputs}
        for name in names:
            maker = makers.get(name)
            if maker is not None and maker.type == "classify":
                name = str(maker.inputs["probabilities"][0])
            if value := self.value(name):
                found[name] = value
        return found


def _bits(operation: Operation) -> int:
    """The bits of a number of a compressed weight; 8 where that is not plain to see."""
    sizes = {key: items[0].type for key, items in operation.inputs.items()
             if isinstance(items[0], Constant)}  # fmt: skip
    if "lut" in sizes:
        entries = sizes["lut"].sizes[-2:][0]  # (n,), or since iOS 18 (..., n, vector)
        return (entries - 1).bit_length()
    if "data" in sizes:
        return int(sizes["data"].dtype.lstrip("uint"))
    return 8


def _coarse(program: MLProgram) -> set[str]:
    """The constants of a program in less than single precision."""
    operations = program.package.functions[program.name].operations()
    return {
        name for operation in operations if operation.is_constant
        for name, type_ in operation.outputs if type_.dtype == "fp16"
    }


def _read(operation: Operation, coarse: set[str]) -> tuple[str, ...]:
    """Those that an op reads, by `PackageRun.constants`' names; an epsilon hardly counts."""
    return tuple(
        item if isinstance(item, str) else f"{operation.name}.{key}"
        for key, items in operation.inputs.items() if key != "epsilon"
        for item in items
        if (item in coarse if isinstance(item, str) else item.type.dtype == "fp16")
    )

"""Write an ML Program as an asset of Core AI, op by op.

    save_asset("App.mlpackage", "App.aimodel")

Every function of the package whose sizes are fixed becomes an entry point; weights that functions
share are written once. Compressed weights stay compressed (`weights.py`), a state becomes one of
Core AI's: an input that the call changes. An op without a counterpart is refused by its name and
place before anything is written. Core AI's own passes then fold constants and drop what nobody
reads.

Only `coreai-core` is needed (extra `coreai`), on any machine; nothing here is about a Mac.
"""

from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
import inspect
from pathlib import Path
import tempfile
from typing import Any

from mlprogram.coreai.states import updates_apart
from mlprogram.coreai.values import as_value, declared, lifted
from mlprogram.coreai.weights import WEIGHTS
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.ops import OPS
from mlprogram.package.asset import OWN, check_installed, origin
from mlprogram.package.description import features
from mlprogram.package.function import Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant
import numpy as np

#: Versions of coreai-core that run assets, and have not the calls that write them here.
FORMER = ("1.0.0b1", "1.0.0b2")
#: Taken care of here rather than by a function on values.
STRUCTURE = frozenset(["const", "read_state", "write_state"])


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
    from mlprogram.coreai.ops import COREAI_OPS

    package = package if isinstance(package, Package) else Package(package)
    known = STRUCTURE | COREAI_OPS.keys() | WEIGHTS.keys()
    return [
        f"{operation.type} ({operation.name!r}, function {function.name!r})"
        for function in fixed_functions(package).values()
        for operation in function.operations()
        if operation.type not in known or operation.blocks
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
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".coreai-") as folder:
        made = Path(folder) / target.name
        _program(package, precision == "fp32").save_asset(made, _metadata(package, precision))
        made.rename(target)
    return target


def _metadata(package: Package, precision: str) -> Any:
    from coreai.runtime import AIModelAssetMetadata

    metadata = AIModelAssetMetadata()
    metadata.set_custom(OWN, origin(package.path, precision))
    return metadata


def _program(package: Package, lift: bool):
    from coreai.authoring import AIProgram, Module

    module = Module.create()
    try:
        with module:
            for function in fixed_functions(package).values():
                _Graph(package, function, lift).write()
    except RuntimeError as error:  # of the passes that Core AI runs over the whole
        raise InvalidInput(f"{package.path}: Core AI refuses the program: {error}") from error
    return AIProgram(module)


def _widened(scale: Constant) -> Constant:
    """Core AI rounds data * scale and offset * scale each to the scale's dtype, the executor the
    whole once: of wide scales both give the same, which `lifted` then rounds."""
    if scale.type.dtype != "fp16":
        return scale
    kind = replace(scale.type, dtype="fp32")
    return replace(scale, type=kind, _read=lambda: scale.array().astype(np.float32))


def _after(state: str) -> str:
    """The output that holds a state after a call."""
    return f"{state}_after"


class _Graph:
    """One function on its way. values: what each name of the program is in the graph."""

    def __init__(self, package: Package, function: Function, lift: bool):
        self.package, self.function, self.lift = package, function, lift
        self.values: dict[str, Any] = {}
        self.constants: dict[str, Constant] = {}
        self.written: set[str] = set()
        self.apart = updates_apart(function)

    def write(self) -> None:
        from coreai._compiler.ir import ArrayAttr, DictAttr, StringAttr
        from coreai.authoring import Value
        from coreai.authoring.graph_builder import GraphOp

        given = self.function.inputs | self.function.states
        types = [declared(type_, self.lift)._to_mlir_type() for type_ in given.values()]
        graph = GraphOp(self.function.name, types, [], list(given), [])
        self.values = dict(zip(given, map(Value._from_mlir, graph.arguments), strict=True))
        with graph.block:
            for operation in self.function.block.operations:
                self.add(operation)
            outputs = {name: self.value(name) for name in self.function.block.outputs}
            outputs |= {_after(name): self.values[name] for name in sorted(self.written)}
            graph.outputs_spec = [(name, value._to_mlir()) for name, value in outputs.items()]
        marks = []
        for name, old in zip(given, graph.arg_attrs, strict=True):
            mark = {attribute.name: attribute.attr for attribute in old}
            if name in self.written:
                mark["MutableBuffers.buffer_mutation"] = StringAttr.get(_after(name))
            marks.append(DictAttr.get(mark))
        graph.arg_attrs = ArrayAttr.get(marks)

    def add(self, operation: Operation) -> None:
        with self._place(operation):
            if operation.type == "const":
                self.constants[operation.outputs[0][0]] = operation.inputs["val"][0]
            elif operation.type == "read_state":
                self.values[operation.outputs[0][0]] = self.value(operation.inputs["input"][0])
            elif operation.type == "write_state":
                self._write_state(operation)
            else:
                made = self._make(operation)
                made = made if isinstance(made, list) else [made]
                for (name, _), value in zip(operation.outputs, made, strict=True):
                    owner = value._to_mlir().owner
                    if hasattr(owner, "verify"):  # not what a cast to its own type gives: an input
                        owner.verify()
                    self.values[name] = value

    def _write_state(self, operation: Operation) -> None:
        state = operation.inputs["input"][0]
        self.values[state] = self.value(operation.inputs["data"][0])
        self.written.add(state)

    def _make(self, operation: Operation) -> Any:
        if operation.outputs[0][0] in self.apart:
            raise ValueError("a second update of a state's memory, which the runtime would mix up")
        if operation.type in WEIGHTS:
            return self._make_weights(operation)
        from mlprogram.coreai.ops import COREAI_OPS

        make = COREAI_OPS[operation.type]
        given: dict[str, Any] = {key: self._argument(operation, key) for key in operation.inputs}
        if "_out" in inspect.signature(make).parameters:
            given["_out"] = [declared(type_, self.lift) for _, type_ in operation.outputs]
        return make(**given)

    def _make_weights(self, operation: Operation) -> Any:
        given = {key: self._stored(items[0]) for key, items in operation.inputs.items()}
        if self.lift and isinstance(given.get("scale"), Constant):
            given["scale"] = _widened(given["scale"])
        made = WEIGHTS[operation.type](**given)
        half = operation.outputs[0][1].dtype == "fp16"
        return lifted(made, self.lift and half) if not isinstance(made, list) else made

    def _argument(self, operation: Operation, key: str) -> Any:
        items = operation.inputs[key]
        if key in OPS[operation.type].static:
            made = [self._static(item) for item in items]
        else:
            made = [self.value(item) for item in items]
        return made if key in ("values", "ref_tensors") else made[0]

    def _static(self, item: str | Constant) -> Any:
        """A Python value where it is known, else the value that is computed."""
        if isinstance(item, str) and item not in self.constants:
            return self.values[item]
        return self._constant(item).value

    def _stored(self, item: str | Constant) -> Any:
        """What is stored, or a value that another op of weights made of it."""
        known = isinstance(item, Constant) or item in self.constants
        return self._constant(item) if known else self.value(item)

    def _constant(self, item: str | Constant) -> Constant:
        if isinstance(item, Constant):
            return item
        if item not in self.constants:
            raise InvalidInput(f"{item!r} is computed in the call, not known before it")
        return self.constants[item]

    def value(self, item: str | Constant) -> Any:
        if isinstance(item, str) and item in self.values:
            return self.values[item]
        made = as_value(self._constant(item), self.lift)
        if isinstance(item, str):
            self.values[item] = made
        return made

    @contextmanager
    def _place(self, operation: Operation):
        """Say of an error which op it was about."""
        try:
            yield
        except (InvalidPackage, MemoryError):
            raise
        except Exception as error:
            raise InvalidInput(
                f"{self.package.path}, function {self.function.name!r}, {operation.type} "
                f"{operation.name!r}: not carried to Core AI: {error}"
            ) from error

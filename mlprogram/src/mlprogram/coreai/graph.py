"""The graph that Core AI gets of a function, op by op. Importing this needs coreai-core."""

from collections.abc import Iterable
from dataclasses import replace
import inspect
from pathlib import Path
from typing import Any

from coreai._compiler.ir import ArrayAttr, DictAttr, StringAttr
from coreai.authoring import AIProgram, Module, Value
from coreai.authoring.graph_builder import GraphOp
from coreai.runtime import AIModelAssetMetadata
from mlprogram.coreai.ops import COREAI_OPS
from mlprogram.coreai.states import updates_apart
from mlprogram.coreai.values import as_value, declared, lifted
from mlprogram.coreai.weights import WEIGHTS
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.ops import OPS
from mlprogram.package.asset import OWN, origin
from mlprogram.package.function import Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant
import numpy as np

#: Taken care of here rather than by a function on values.
STRUCTURE = frozenset(["const", "read_state", "write_state"])
#: All that has a counterpart.
KNOWN = STRUCTURE | COREAI_OPS.keys() | WEIGHTS.keys()


def write_asset(
    package: Package, functions: Iterable[Function], precision: str, target: Path
) -> None:
    """Write some functions of a package as an asset; "fp32" widens half precision to single."""
    module, metadata = Module.create(), AIModelAssetMetadata()
    metadata.set_custom(OWN, origin(package.path, precision))
    try:
        with module:
            for function in functions:
                _Graph(package, function, precision == "fp32").write()
    except RuntimeError as error:  # of the passes that Core AI runs over the whole
        raise InvalidInput(f"{package.path}: Core AI refuses the program: {error}") from error
    AIProgram(module).save_asset(target, metadata)


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
        """Add an op; an error says which it was about."""
        try:
            self._add(operation)
        except (InvalidPackage, MemoryError):
            raise
        except Exception as error:
            raise InvalidInput(
                f"{self.package.path}, function {self.function.name!r}, {operation.type} "
                f"{operation.name!r}: not carried to Core AI: {error}"
            ) from error

    def _add(self, operation: Operation) -> None:
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

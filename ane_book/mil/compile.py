"""From a function of an ML Program to straight-line Python: the work done once, at load.

Constants are decoded and, where they are compressed, expanded. Every op becomes one line that calls
its function from `ane_book.mil.ops` on local variables; a value is deleted after its last use. What
is left for each call is the ops themselves. `Compiled.source` shows the result.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType

from ane_book.errors import InvalidPackage, UnsupportedOp
from ane_book.mil import fast
from ane_book.mil.aliases import in_place_writes, origins, uses
from ane_book.mil.ops import OPS
from ane_book.mil.ops.tensor_transformation import write_slice
from ane_book.mil.reader import Block, Constant, Function, Operation
import numpy as np
import torch

__all__ = ["Compiled", "Compiler", "torch_dtype"]

TORCH = {
    "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16,
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "uint8": torch.uint8, "uint16": torch.uint16, "uint32": torch.uint32,
    "uint64": torch.uint64, "int4": torch.int8, "uint1": torch.uint8, "uint2": torch.uint8,
    "uint3": torch.uint8, "uint4": torch.uint8, "uint6": torch.uint8,
}  # fmt: skip

#: Arguments that name a dtype: "fp16" in them is lifted together with the tensors.
DTYPE_ARGUMENTS = frozenset(["dtype", "output_dtype"])

#: Inputs that take any number of tensors, as a list.
VARIADIC = frozenset(["values", "loop_vars"])


def torch_dtype(dtype: str, lift: bool) -> torch.dtype:
    """The torch dtype of a MIL dtype; lift: half precision becomes single."""
    return torch.float32 if lift and dtype == "fp16" else TORCH[dtype]


@dataclass
class Compiled:
    """A function ready to run on lists of tensors and a dict of states."""

    run: Callable  # (inputs, states) -> outputs
    trace: Callable  # (inputs, states) -> generator of (name, tensor)
    source: str


class Compiler:
    """Compiles one function. `shared` keeps decoded weights for all functions of a package."""

    def __init__(self, function: Function, lift: bool, optimize: bool, shared: dict):
        self.function, self.lift, self.optimize, self.shared = function, lift, optimize, shared
        self.scope: dict[str, object] = {}  # globals of the generated source
        self.bound: dict[int, str] = {}  # id of a bound object -> its name there
        self.variables: dict[str, str] = {}  # value -> local variable
        self.constants: dict[str, Constant | torch.Tensor] = {}
        for operation in function.operations():
            self._register_constant(operation)
        self.origin = origins(function, self.constants)
        self.in_place = in_place_writes(function, self.origin) if optimize else {}

    def compile(self) -> Compiled:
        """Generate and load the source of the function, without and with a trace."""
        functions = [self._load(trace) for trace in (False, True)]
        return Compiled(functions[0][0], functions[1][0], functions[0][1])

    def _load(self, trace: bool) -> tuple[FunctionType, str]:
        names = [self.variable(name) for name in self.function.inputs]
        body = list(self.block_lines(self.function.block, trace))
        unpack = [f"{', '.join(names)}, = inputs"] if names else []
        source = "\n    ".join(["def run(inputs, states):", *unpack, *body]) + "\n"
        exec(compile(source, f"<{self.function.name}>", "exec"), self.scope)
        return self.scope["run"], source

    # --- values -------------------------------------------------------------------------------

    def variable(self, name: str) -> str:
        """The local variable of a value that is made here."""
        return self.variables.setdefault(name, f"v{len(self.variables)}")

    def use(self, name: str) -> str:
        """The local variable of a value that was made before."""
        if name not in self.variables:
            raise InvalidPackage(
                f"function {self.function.name!r}: value {name!r} is used before any op made it"
            )
        return self.variables[name]

    def bind(self, value: object) -> str:
        """A name in the generated source's globals for `value`."""
        name = self.bound.get(id(value))
        if name is None:
            name = self.bound[id(value)] = f"c{len(self.bound)}"
            self.scope[name] = value  # which also keeps the id from being used again
        return name

    def tensor(self, value: Constant | torch.Tensor) -> torch.Tensor | str:
        """A constant as a tensor, decoded once a package where it lies in the weight file."""
        if isinstance(value, torch.Tensor):
            return value
        if value.type.dtype == "string":
            return value.value
        key = (value.blob, value.type, self.lift)
        if value.blob and key in self.shared:
            return self.shared[key]
        tensor = _decode(value).to(torch_dtype(value.type.dtype, self.lift))
        if value.blob:
            self.shared[key] = tensor
        return tensor

    def dtype(self, value: Constant | torch.Tensor) -> torch.dtype:
        """The dtype that `tensor` gives."""
        if isinstance(value, torch.Tensor):
            return value.dtype
        return torch_dtype(value.type.dtype, self.lift)

    def column_major(self, weight: Constant | torch.Tensor) -> torch.Tensor:
        """A weight (O, C, 1, ...) as a float32 matrix (O, C) that lies in memory column by column.

        Made once for all functions of the package.
        """
        key = ("column major", getattr(weight, "blob", None) or id(weight))
        if key not in self.shared:
            tensor = weight if isinstance(weight, torch.Tensor) else _decode(weight)
            self.shared[key] = tensor.flatten(1).t().float().contiguous().t()
        return self.shared[key]

    def plain(self, constant: Constant | torch.Tensor) -> object:
        """A constant as plain Python: a scalar, a string or a list."""
        return constant.tolist() if isinstance(constant, torch.Tensor) else constant.value

    def constant(self, item: str | Constant) -> Constant | torch.Tensor | None:
        """The constant that an op's input is, or None when it is computed at run time."""
        return self.constants.get(item) if isinstance(item, str) else item

    # --- lines --------------------------------------------------------------------------------

    def block_lines(self, block: Block, trace: bool = False) -> Iterator[str]:
        """The lines of a block, ending in its `return`."""
        outputs = set(block.outputs)
        last_use = {name: i for i, o in enumerate(block.operations) for name in uses(o)}
        local = {name for o in block.operations for name, _ in o.outputs} - outputs
        for position, operation in enumerate(block.operations):
            if operation.type == "const" or operation.type.startswith("constexpr_"):
                continue
            yield from self.operation_lines(operation, position)
            if trace:
                for name, _ in operation.outputs:
                    yield f"yield {name!r}, {self.variable(name)}"
            produced = {name for name, _ in operation.outputs}
            dead = {n for n in {*uses(operation)} & local if last_use[n] == position}
            dead |= {n for n in produced & local if n not in last_use}
            dead = sorted(self.variable(n) for n in dead if n not in self.constants)
            if dead and not operation.blocks:  # nested blocks keep their own references
                yield f"del {', '.join(dead)}"
        yield f"return {', '.join(self.result(name) for name in block.outputs)},"

    def result(self, name: str) -> str:
        """An output; copied when it might share memory with something that outlives the call."""
        if name in self.constants:
            return f"{self.bind(self.tensor(self.constants[name]))}.clone()"
        return self.use(name) + (".clone()" if self.origin[name] else "")

    def operation_lines(self, operation: Operation, position: int) -> Iterator[str]:
        if operation.type == "read_state":
            state = operation.inputs["input"][0]
            yield f"{self.variable(operation.outputs[0][0])} = states[{state!r}]"
        elif operation.type == "write_state":
            yield from self.write_lines(operation)
        elif operation.outputs and operation.outputs[0][0] in self.in_place:
            yield from self.update_lines(operation)
        elif operation.type in ("cond", "while_loop"):
            yield from self.control_lines(operation)
        else:
            yield self.call(operation, position)

    def write_lines(self, operation: Operation) -> Iterator[str]:
        (state,), (data,) = operation.inputs["input"], operation.inputs["data"]
        if data not in self.in_place:
            yield f"states[{state!r}] = {self.result(data)}"

    def update_lines(self, operation: Operation) -> Iterator[str]:
        """`slice_update` of a state, in place."""
        name = operation.outputs[0][0]
        arguments = {
            key: self.static(key, items)
            for key, items in operation.inputs.items()
            if key not in ("x", "update")
        }
        view = ", ".join(f"{key}={text}" for key, text in arguments.items())
        update = self.argument("update", operation.inputs["update"])
        state = f"states[{self.in_place[name]!r}]"
        yield f"{self.variable(name)} = {state}"
        yield f"{self.bind(write_slice)}({state}, {update}, {view})"

    def control_lines(self, operation: Operation) -> Iterator[str]:
        """`cond` and `while_loop`: nested blocks become nested functions."""
        targets = ", ".join(self.variable(name) for name, _ in operation.outputs)
        names = []
        for block in operation.blocks:
            names.append(f"{self.variable(operation.name)}_{len(names)}")
            parameters = ", ".join(self.variable(name) for name, _ in block.inputs)
            yield f"def {names[-1]}({parameters}):"
            yield from (f"    {line}" for line in self.block_lines(block))
        if operation.type == "cond":
            condition = self.argument("pred", operation.inputs["pred"])
            yield f"{targets}, = {names[0]}() if {condition} else {names[1]}()"
        else:
            values = self.argument("loop_vars", operation.inputs["loop_vars"])
            yield f"{targets}, = {values}"
            yield f"while {names[0]}({targets})[0]: {targets}, = {names[1]}({targets})"

    def call(self, operation: Operation, position: int) -> str:
        """The line of one op: `v7 = c3(x=v3, y=v5)`."""
        special = fast.specialize(self, operation) if self.optimize else None
        function, arguments = special or (self.op(operation, position).function, None)
        if arguments is None:
            arguments = self.arguments(operation)
        targets = ", ".join(self.variable(name) for name, _ in operation.outputs)
        comma = "," if len(operation.outputs) == 1 and operation.type in ("split",) else ""
        return f"{targets}{comma} = {self.bind(function)}({', '.join(arguments)})"

    # --- arguments ----------------------------------------------------------------------------

    def op(self, operation: Operation, position: int = -1):
        """The op's function; raises UnsupportedOp with the op's place and what stands around it."""
        found = OPS.get(operation.type)
        unknown = sorted(set(operation.inputs) - found.parameters) if found else []
        if found and not unknown:
            return found
        near = [o.type for o in self.function.block.operations if o.type != "const"]
        at = near.index(operation.type) if operation.type in near else 0
        alike = get_close_matches(operation.type, OPS, n=3)
        what = f"has no input {unknown[0]!r} that" if unknown else "is not one that"
        raise UnsupportedOp(
            f"function {self.function.name!r}: op {operation.type!r} ({operation.name!r}, "
            f"operation {position} of {len(self.function.block.operations)}) {what} the executor "
            f"knows; around it: {' '.join(near[max(0, at - 2) : at + 3])}"
            + (f"; alike: {', '.join(alike)}" if alike else "")
        )

    def arguments(self, operation: Operation) -> list[str]:
        op = self.op(operation)
        found = [
            f"{key}={self.static(key, items) if key in op.static else self.argument(key, items)}"
            for key, items in operation.inputs.items()
        ]
        if op.wants_types:
            types = [(torch_dtype(t.dtype, self.lift), t.shape) for _, t in operation.outputs]
            found.append(f"_out={self.bind(types)}")
        return found

    def argument(self, key: str, items: list) -> str:
        """A tensor argument: a constant or a local variable; a list where MIL takes several."""
        names = []
        for item in items:
            constant = self.constant(item)
            known = constant is not None
            names.append(self.bind(self.tensor(constant)) if known else self.use(item))
        return f"[{', '.join(names)}]" if key in VARIADIC or len(names) > 1 else names[0]

    def static(self, key: str, items: list) -> str:
        """A static argument: a Python value now, or taken from a tensor at run time."""
        values = []
        for item in items:
            constant = self.constant(item)
            if constant is None:
                values.append(f"{self.use(item)}.tolist()")
                continue
            value = self.plain(constant)
            if key in DTYPE_ARGUMENTS and self.lift and value == "fp16":
                value = "fp32"
            values.append(repr(value) if _literal(value) else self.bind(value))
        return values[0] if len(values) == 1 else f"[{', '.join(values)}]"

    def _register_constant(self, operation: Operation) -> None:
        if operation.type == "const":
            self.constants[operation.outputs[0][0]] = operation.inputs["val"][0]
        elif operation.type.startswith("constexpr_"):
            self._expand(operation)

    def _expand(self, operation: Operation) -> None:
        """Decompress a `constexpr_*` constant, once a package where its parts lie in the file."""
        constants = [self.constant(item) for items in operation.inputs.values() for item in items]
        blobs = tuple(getattr(constant, "blob", None) for constant in constants)
        key = (operation.type, blobs, self.lift)
        if not any(blobs) or key not in self.shared:
            text = (
                f"{self.bind(self.op(operation).function)}({', '.join(self.arguments(operation))})"
            )
            value = eval(text, self.scope)
            self.shared[key] = value if isinstance(value, tuple) else (value,)
        for (name, _), tensor in zip(operation.outputs, self.shared[key], strict=True):
            self.constants[name] = tensor


def _decode(constant: Constant) -> torch.Tensor:
    """A constant as stored: a view of the mapped weight file, or a copy of an immediate value."""
    array = constant.array()
    if not array.flags.writeable:  # torch wants memory that it may own
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if constant.type.dtype == "bf16" else tensor


def _literal(value: object) -> bool:
    """Whether `repr` is short and gives the value back (inf and nan do not)."""
    text = repr(value)
    return len(text) < 80 and "inf" not in text and "nan" not in text


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as numpy, contiguous; bfloat16 widened, since numpy lacks it."""
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return tensor.contiguous().numpy()

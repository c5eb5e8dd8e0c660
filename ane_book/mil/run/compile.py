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
from ane_book.mil.analysis.aliases import INLINE, in_place_writes, memory_of, origins, uses
from ane_book.mil.analysis.constants import Constants, Known, torch_dtype
from ane_book.mil.kernels import fast, native
from ane_book.mil.kernels.fuse import fuse
from ane_book.mil.ops import OPS
from ane_book.mil.ops.tensor_transformation import write_slice
from ane_book.mil.package.reader import Block, Constant, Function, Operation
from ane_book.mil.package.values import MAX_RANK
from ane_book.mil.run.failures import Failures, turns
import numpy as np
import torch

__all__ = ["Compiled", "Compiler", "torch_dtype"]

#: Inputs that take any number of tensors, as a list.
VARIADIC = frozenset(["values", "loop_vars"])

#: Ops that are worth torch's threads where no compiled form takes their place.
HEAVY = frozenset(
    ["conv", "conv_transpose", "linear", "matmul", "scaled_dot_product_attention", "einsum"]
) | frozenset(["lstm", "gru", "rnn"])


@dataclass
class Compiled:
    """A function ready to run on lists of tensors and a dict of states."""

    run: Callable  # (inputs, states) -> outputs
    trace: Callable  # (inputs, states) -> generator of (name, tensor)
    source: str
    failures: Failures
    light: bool  # whether what is left to torch is too small for more than one thread


class Compiler:
    """Compiles one function. `shared` keeps decoded weights for all functions of a package."""

    def __init__(self, function: Function, lift: bool, optimize: bool, shared: dict):
        self.function, self.lift, self.optimize, self.shared = function, lift, optimize, shared
        self.scope: dict[str, object] = {}  # globals of the generated source
        self.bound: dict[int, str] = {}  # id of a bound object -> its name there
        self.variables: dict[str, str] = {}  # value -> local variable
        self.failures = Failures(function, self.variables)
        self.constants = Constants(function, lift, shared, self.failures.preparing)
        self.types = function.inputs | {
            name: type_ for operation in function.operations() for name, type_ in operation.outputs
        }
        self.heavy = False  # whether something that is worth torch's threads is left to it
        self.fused, self.groups = function.block, {}
        if optimize:
            self.fused, self.groups = fuse(function.block, self.constants, self.types)
        self.origin = origins(function)
        self.in_place = in_place_writes(function, self.origin) if optimize else {}

    def compile(self) -> Compiled:
        """Generate and load the source of the function, without and with a trace."""
        trace, _ = self._load(trace=True)
        self.heavy = not self.optimize or not self._static()  # the trace's ops count for nothing
        run, source = self._load(trace=False)
        return Compiled(run, trace, source, self.failures, light=not self.heavy)

    def _static(self) -> bool:
        """Whether all sizes are declared."""
        return not any(None in type_.shape for type_ in self.types.values())

    def _load(self, trace: bool) -> tuple[FunctionType, str]:
        given = (INLINE, *self.function.inputs, *self.function.states, *self.constants.named)
        self.lasting = {self.origin[name] for name in given}
        names = [self.variable(name) for name in self.function.inputs]
        body = list(self.block_lines(self.function.block if trace else self.fused, trace))
        unpack = [f"{', '.join(names)}, = inputs"] if names else []
        if any(operation.type == "while_loop" for operation in self.function.operations()):
            unpack.append(f"turns = {self.bind(turns)}()")
        source = "\n    ".join(["def run(inputs, states):", *unpack, *body]) + "\n"
        exec(compile(source, self.failures.file(source), "exec"), self.scope)
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

    def constant(self, item: str | Constant) -> Known | None:
        """The constant that an op's input is, or None when it is computed at run time."""
        return self.constants.find(item)

    def bind_tensor(self, value: Known) -> str:
        """A name for a constant as a tensor."""
        return self.bind(self.constants.tensor(value))

    # --- lines --------------------------------------------------------------------------------

    def block_lines(self, block: Block, trace: bool = False, nested: bool = False) -> Iterator[str]:
        """The lines of a block, ending in its `return`."""
        outputs = set(block.outputs)
        last_use = {name: i for i, o in enumerate(block.operations) for name in uses(o)}
        local = {name for o in block.operations for name, _ in o.outputs} - outputs
        for position, operation in enumerate(block.operations):
            if operation.type == "const":
                continue
            if operation.type.startswith("constexpr_"):
                self.op(operation, position)  # expanded by who uses it, if it is one that we have
                continue
            lines = self.operation_lines(operation, position)
            yield from self.failures.lines(operation, lines)
            if trace:
                for name, _ in operation.outputs:
                    yield f"yield {name!r}, {self.variable(name)}"
            produced = {name for name, _ in operation.outputs}
            dead = {n for n in {*uses(operation)} & local if last_use[n] == position}
            dead |= {n for n in produced & local if n not in last_use}
            dead = sorted(self.variable(n) for n in dead if n not in self.constants.named)
            if dead and not operation.blocks:  # nested blocks keep their own references
                yield f"del {', '.join(dead)}"
        if trace:
            computed = {name for o in block.operations for name, _ in o.outputs}
            as_they_are = dict.fromkeys(block.outputs).keys() - (computed - {*self.constants.named})
            yield from (f"yield {name!r}, {self.value(name)}" for name in sorted(as_they_are))
        give = self.value if nested else self.result
        yield f"return {', '.join(give(name) for name in block.outputs)},"

    def value(self, item: str | Constant) -> str:
        """A value as it is, be it a constant or made by an op."""
        constant = self.constant(item)
        return self.use(item) if constant is None else self.bind_tensor(constant)

    def result(self, item: str | Constant) -> str:
        """A value that outlives the call; copied when it might share memory with another such."""
        memory = memory_of(item, self.origin)
        shared = memory in self.lasting
        self.lasting.add(memory)
        return self.value(item) + (".clone()" if shared else "")

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
        if isinstance(data, Constant) or data not in self.in_place:
            yield f"states[{state!r}] = {self.result(data)}"

    def update_lines(self, operation: Operation) -> Iterator[str]:
        """`slice_update` of a state, in place."""
        self.op(operation)  # which knows all its inputs, whose keys become source
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
            yield from (f"    {line}" for line in self.block_lines(block, nested=True))
        if operation.type == "cond":
            condition = self.argument("pred", operation.inputs["pred"])
            yield f"{targets}, = {names[0]}() if {condition} else {names[1]}()"
        else:
            values = self.argument("loop_vars", operation.inputs["loop_vars"])
            yield f"{targets}, = {values}"
            yield f"for _ in turns:  # {operation.name!r}"
            yield f"    if not {names[0]}({targets})[0]: break"
            yield f"    {targets}, = {names[1]}({targets})"

    def call(self, operation: Operation, position: int) -> str:
        """The line of one op: `v7 = c3(x=v3, y=v5)`."""
        group = self.groups.get(id(operation))
        if group is not None:
            items = operation.inputs["values"]
            names = [self.argument("x", [item]) for item in items]
            return (
                f"{self.variable(operation.outputs[0][0])} = {self.bind(group)}({', '.join(names)})"
            )
        op = self.op(operation, position)
        special = fast.specialize(self, operation) if self.optimize else None
        by_torch = special is None or native.several_by_torch()
        self.heavy |= by_torch and operation.type in HEAVY
        function, arguments = special or (op.function, None)
        if arguments is None:
            arguments = self.arguments(operation)
        targets = ", ".join(self.variable(name) for name, _ in operation.outputs)
        comma = "," if len(operation.outputs) == 1 and operation.type in ("split",) else ""
        return f"{targets}{comma} = {self.bind(function)}({', '.join(arguments)})"

    # --- arguments ----------------------------------------------------------------------------

    def op(self, operation: Operation, position: int = -1):
        """The op's function; raises UnsupportedOp with the op's place and what stands around it."""
        found = OPS.get(operation.type)
        unknown = sorted(set(operation.inputs) - (found.parameters - {"_out"})) if found else []
        if found and not unknown:
            self.check_words(operation, found.choices)
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

    def check_words(self, operation: Operation, choices: dict[str, tuple[str, ...]]) -> None:
        """Raises ValueError where an input says none of the words that it may say."""
        for key in choices.keys() & operation.inputs.keys():
            constant = self.constant(operation.inputs[key][0])
            said = None if constant is None else self.constants.plain(key, constant)
            if said not in choices[key]:
                raise ValueError(f"{key}={said!r} is not one of {', '.join(choices[key])}")

    def arguments(self, operation: Operation) -> list[str]:
        op = self.op(operation)
        found = [
            f"{key}={self.static(key, items) if key in op.static else self.argument(key, items)}"
            for key, items in operation.inputs.items()
        ]
        if op.wants_types:
            types = [(self.constants.dtype(t), t.shape) for _, t in operation.outputs]
            found.append(f"_out={self.bind(types)}")
        return found

    def argument(self, key: str, items: list) -> str:
        """A tensor argument: a constant or a local variable; a list where MIL takes several."""
        names = [self.value(item) for item in items]
        return f"[{', '.join(names)}]" if key in VARIADIC or len(names) > 1 else names[0]

    def static(self, key: str, items: list) -> str:
        """A static argument: a Python value now, or taken from a tensor at run time."""
        values = []
        for item in items:
            constant = self.constant(item)
            if constant is None:
                values.append(f"{self.use(item)}.tolist()")
                continue
            value = self.constants.plain(key, constant)
            values.append(repr(value) if _literal(value) else self.bind(value))
        return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def _literal(value: object) -> bool:
    """Whether `repr` is short and gives the value back (inf and nan do not)."""
    text = repr(value)
    return len(text) < 80 and "inf" not in text and "nan" not in text


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as numpy, contiguous; bfloat16 widened, since numpy lacks it.

    Raises InvalidPackage for more axes than numpy has, which no type declares, but a view may have.
    """
    if tensor.dim() > MAX_RANK:
        raise InvalidPackage(f"a value of {tensor.dim()} axes; {MAX_RANK} are the most")
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return tensor.contiguous().numpy()

"""Validate a function of an ML Program before anything of it is compiled or run.

One pass over the ops checks what the executor relies on: each value is made once and before it is
used, control flow and states are complete, constants depend only on constants. Ranks, dtypes and
ranges are left to the op's own function: see `run/failures.py`.

Reference: the rules on names and scopes in `mlmodel/format/MIL.proto` of apple/coremltools.
"""

from math import inf
from typing import TYPE_CHECKING

from mlprogram.errors import InvalidPackage
from mlprogram.machine import memory_bytes
from mlprogram.package.validation.declared import WEIGHTS, check_compressed, check_parameters
from mlprogram.package.validation.signatures import NEEDED
from mlprogram.package.values import Constant, TensorType
from mlprogram.package.weight_file import SUB_BYTE

if TYPE_CHECKING:  # the reader imports this module
    from mlprogram.package.function import Block, Function, Operation


#: Inputs that take several values; every other input takes one.
SEVERAL = frozenset(
    ["values", "loop_vars", "elem_shape", "ref_tensors", "begins", "ends", "end_masks"]
)

STRUCTURE = frozenset(["const", "cond", "while_loop", "read_state", "write_state"])

#: Ops with nested blocks -> how many.
BLOCKS = {"cond": 2, "while_loop": 2}

#: Ops whose compiled kernels rely on the declared types of their constant parameters.
PARAMETERS = frozenset([*WEIGHTS, "layer_norm"])

MAX_DEPTH = 4  # of nested compression; iOS 18 has three levels: palette, scale, sparsity

GIB = 1 << 30


def validate(function: "Function", where: str) -> None:
    """Raise InvalidPackage, with the op and the reason, for a function that cannot be compiled."""
    for name, type_ in (function.inputs | function.states).items():
        if type_.kind not in ("tensor", "state") or type_.dtype in (*SUB_BYTE, "string"):
            raise InvalidPackage(f"{where}: input {name!r} is a {type_.kind} of {type_.dtype}")
        if type_.kind == "state" and (None in type_.shape or type_.dtype == "bf16"):
            what = "is of bf16" if type_.dtype == "bf16" else "has no fixed size"
            raise InvalidPackage(f"{where}: state {name!r} {what}")
    _Scope(function, where).check_block(function.block, frozenset(function.inputs))


class _Scope:
    """Checks the names of one function."""

    def __init__(self, function: "Function", where: str):
        self.states, self.where = function.states, where
        self.made = {*function.inputs, *function.states}  # anywhere in the function
        self.parameters: set[str] = set()  # of nested blocks; two loops' blocks may share them
        self.types = {**function.inputs}
        self.constants: dict[str, Constant | TensorType] = {}
        self.depth: dict[str, int] = {}  # of constants: 0, or how many `constexpr_*` ops deep

    def check_block(self, block: "Block", visible: frozenset[str]) -> None:
        """Check a block and those nested in it. visible: the values made outside and before it."""
        seen = {*visible, *(name for name, _ in block.inputs)}
        for operation in block.operations:
            where = f"{self.where}, op {operation.type!r} ({operation.name!r})"
            self.check_uses(operation, seen, where)
            if operation.type in STRUCTURE or operation.blocks:
                self.check_parts(operation, where)
            for nested in operation.blocks:
                self.check_parameters(nested, where)
                self.check_block(nested, frozenset(seen))
            self.check_outputs(operation, where)
            if operation.is_constant:
                self.add_constant(operation, where)
            elif operation.type in PARAMETERS:
                check_parameters(operation, self.constants, self.types, where)
            seen.update(name for name, _ in operation.outputs)
        if not block.outputs:
            raise InvalidPackage(f"{self.where}: a block without outputs")
        for name in block.outputs:
            if name not in seen:
                raise InvalidPackage(f"{self.where}: output {name!r} is made by no op")

    def check_uses(self, operation: "Operation", seen: set[str], where: str) -> None:
        known = self.constants if operation.type.startswith("constexpr_") else seen
        missing = NEEDED.get(operation.type, frozenset()).difference(operation.inputs)
        if missing:
            raise InvalidPackage(f"{where}: needs a value for its input {min(missing)!r}")
        for key, items in operation.inputs.items():
            if key == "input" and operation.type in ("read_state", "write_state"):
                continue  # a state, which no other op may name
            if not items or (len(items) > 1 and key not in SEVERAL):
                raise InvalidPackage(f"{where}: {len(items) or 'no'} values for its input {key!r}")
            for item in items:
                if not isinstance(item, Constant) and (item not in known or item not in seen):
                    reason = "is no constant" if item in seen else "is used before any op made it"
                    raise InvalidPackage(f"{where}: value {item!r} {reason}")

    def check_parts(self, operation: "Operation", where: str) -> None:
        """Check the blocks of an op; and `const`, states and control flow, which `ops` lacks."""
        inputs, blocks = operation.inputs, operation.blocks
        if len(blocks) != BLOCKS.get(operation.type, 0):
            raise InvalidPackage(f"{where}: {len(blocks)} nested blocks")
        match operation.type:
            case "const":
                sound = isinstance(inputs["val"][0], Constant)
                sound = sound and [t for _, t in operation.outputs] == [inputs["val"][0].type]
            case "read_state" | "write_state":
                state = inputs["input"]
                sound = len(state) == 1 and isinstance(state[0], str) and state[0] in self.states
            case "cond":
                counts = {len(operation.outputs), *(len(b.outputs) for b in blocks)}
                sound = len(counts) == 1 and not any(b.inputs for b in blocks)
            case "while_loop":
                carried = [operation.outputs, inputs.get("loop_vars", ()), blocks[1].outputs]
                carried += [b.inputs for b in blocks]
                sound = len(set(map(len, carried))) == 1 and len(blocks[0].outputs) == 1
            case _:
                return
        if not sound:
            raise InvalidPackage(f"{where}: its inputs, outputs and blocks do not fit together")

    def check_parameters(self, block: "Block", where: str) -> None:
        names = [name for name, _ in block.inputs]
        if self.made.intersection(names) or len(set(names)) != len(names):
            raise InvalidPackage(f"{where}: its block's inputs {names} are made twice")
        self.parameters.update(names)

    def check_outputs(self, operation: "Operation", where: str) -> None:
        if not operation.outputs and operation.type != "write_state":
            raise InvalidPackage(f"{where}: has no output")
        for name, _ in operation.outputs:
            if name in self.made or name in self.parameters:
                raise InvalidPackage(f"{where}: value {name!r} is made twice")
            self.made.add(name)
        self.types.update(operation.outputs)

    def add_constant(self, operation: "Operation", where: str) -> None:
        """Record the results of a `const` or `constexpr_*` op."""
        if operation.type == "const":
            name = operation.outputs[0][0]
            self.constants[name], self.depth[name] = operation.inputs["val"][0], 0
            return
        used = [i for items in operation.inputs.values() for i in items if isinstance(i, str)]
        depth = 1 + max((self.depth[name] for name in used), default=0)
        if depth > MAX_DEPTH:
            raise InvalidPackage(f"{where}: compressed {depth} times over")
        check_compressed(operation, self.constants, where)
        self.constants.update(operation.outputs)
        self.depth.update((name, depth) for name, _ in operation.outputs)


def check_memory(function: "Function", lift: bool) -> None:
    """Refuse a function that needs more memory than this process has, before allocating anything.

    The sum of intermediate values is not bounded, since most are views or freed soon. An op that
    makes more than it declares fails in the allocator: see `run/failures.py`.
    """
    limit = memory_bytes() or inf
    size, what = needed_memory(function, lift)
    if size > limit:
        raise InvalidPackage(
            f"function {function.name!r}: {what} would take {size / GIB:,.1f} GiB, more than "
            f"the {limit / GIB:,.1f} GiB of memory here"
        )


def needed_memory(function: "Function", lift: bool) -> tuple[int, str]:
    """The bytes that have to fit, and what takes them: inputs, states and constants together, or a
    declared value.

    lift: half precision takes four bytes. A flexible size counts as 1.
    """

    def size(type_) -> int:
        return type_.nbytes * (2 if lift and type_.dtype == "fp16" else 1)

    held = sum(size(type_) for type_ in (*function.inputs.values(), *function.states.values()))
    largest, what = 0, ""
    blobs = set()
    for operation in function.operations():
        for name, type_ in operation.outputs:
            if (own := size(type_)) > largest:
                largest, what = own, f"value {name!r} {type_} of op {operation.type!r}"
            held += own if operation.type.startswith("constexpr_") else 0
        for items in operation.inputs.values():
            for item in items:
                if isinstance(item, Constant) and (item.blob, item.type) not in blobs:
                    held += size(item.type)
                    blobs.add((item.blob or id(item), item.type))
    return max((held, "its inputs, states and constants"), (largest, what))

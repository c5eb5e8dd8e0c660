"""Plan a function of an ML Program: the work that is done once, at load.

A plan is a list of steps, each an op or a group of ops, with the function that computes it, its
arguments, its results, and the values that are freed after it. Constants are decoded here and, if
they are compressed, expanded. compile.py, footprint.py and kernel_report.py read the plan.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

from mlprogram.analysis.aliases import INLINE, in_place_writes, memory_of, origins, uses
from mlprogram.analysis.constants import Constants
from mlprogram.analysis.touched import Facts, touches
from mlprogram.arithmetic import Semantics, rows
from mlprogram.errors import InvalidPackage, UnsupportedOp
from mlprogram.kernels import native
from mlprogram.kernels.table import RUNNER, Chosen, Selection, select
from mlprogram.ops import OPS, OTHERS, Op
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.values import Constant, TensorType
from mlprogram.run.failures import Failures
import torch

#: Ops that are heavy enough for several threads of torch, if no compiled kernel replaces them.
HEAVY = frozenset(
    ["conv", "conv_transpose", "linear", "matmul", "scaled_dot_product_attention", "einsum"]
) | frozenset(["lstm", "gru", "rnn"])


@dataclass(frozen=True)
class Name:
    """A value that is an input or that a step makes; any other value in a plan is a constant."""

    name: str


@dataclass(frozen=True)
class Argument:
    """An argument of a step's function.

    values: each a `Name`, a tensor or a Python value. static: it is passed as a Python value, even
    if it is a tensor at run time.
    """

    key: str
    values: list
    static: bool = False


@dataclass(frozen=True)
class StepResult:
    """A value that outlives the call; copied if it might share memory with another such value."""

    value: object
    copied: bool


@dataclass
class Step:
    """An op, or a group of ops that run as one.

    kernel: the entry of `kernels/table.py` that computes it; "" for the plain op. function: None
    for states and control flow. state: the one that it reads or writes. stored: the value that
    `write_state` stores; None if an update in place has done that. last_read: values that no later
    step reads.
    """

    operation: Operation
    operations: tuple[Operation, ...]
    kernel: str = ""
    function: Callable | None = None
    arguments: list[Argument] = field(default_factory=list)
    state: str = ""
    stored: StepResult | None = None
    blocks: list["Steps"] = field(default_factory=list)
    last_read: list[str] = field(default_factory=list)

    @property
    def results(self) -> list[str]:
        return [name for name, _ in self.operation.outputs]


@dataclass
class Steps:
    """The steps of a block, with its inputs and outputs."""

    inputs: list[str]
    steps: list[Step]
    results: list[StepResult]

    def all(self) -> Iterator[Step]:
        """Every step, including those in nested blocks."""
        for step in self.steps:
            yield step
            for block in step.blocks:
                yield from block.all()


@dataclass
class ExecutionPlan:
    """The plan of a function.

    light: the work that is left to torch is too small for more than one thread. untouched: results
    that no step makes, such as inputs, in the order of their names. dtype: of a declared type.
    native: stretches of steps may run in C (`stretches.py`).
    """

    function: Function
    main: Steps
    selection: Selection
    failures: Failures
    light: bool
    untouched: dict[str, object]
    dtype: Callable[[TensorType], torch.dtype]
    native: bool

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The declared type of every input and value."""
        made = (output for o in self.function.operations() for output in o.outputs)
        return self.function.inputs | dict(made)


class Planner:
    """Plans one function. `shared` keeps decoded weights for all functions of a package.

    without: entries of the table of kernels to leave out; None turns all of them and every other
    optimisation off. engine: whether activations are computed as by native_forms.py. semantics:
    see `MLProgram`; an op that is computed by another reading has no kernel.
    """

    def __init__(
        self,
        function: Function,
        lift: bool,
        shared: dict,
        without: Collection[str] | None = (),
        engine: bool = False,
        semantics: Semantics | None = None,
    ):
        self.function, self.without, self.engine = function, without, engine
        self.failures = Failures(function)
        self.constants = Constants(function, lift, shared, self.failures.preparing)
        self.origin = origins(function)
        self.in_place = {} if without is None else in_place_writes(function, self.origin)
        self.updated: dict[str, str] = {}  # state -> its update in place, until that is written
        given = (INLINE, *function.inputs, *function.states, *self.constants.named)
        self.lasting = {self.origin[name] for name in (*given, *self.in_place)}
        self.known = {*function.inputs}
        self.selection = Selection()
        self.readings = chosen_readings(function, semantics)

    def plan(self) -> ExecutionPlan:
        if self.without is not None:
            self.selection = select(self.function, self.constants, self.without, self.readings)
        main = self.block(self.function.block)
        computed = {name for step in main.steps for name in step.results}
        untouched = [name for name in self.function.block.outputs if name not in computed]
        return ExecutionPlan(
            self.function,
            main,
            self.selection,
            self.failures,
            light=self._is_light(main),
            untouched={name: self.value(name) for name in sorted({*untouched})},
            dtype=self.constants.dtype,
            native=self.without is not None and RUNNER not in self.without and native.available(),
        )

    def _is_light(self, main: Steps) -> bool:
        types = [*self.function.inputs.values()]
        types += [type_ for o in self.function.operations() for _, type_ in o.outputs]
        if self.without is None or any(None in type_.shape for type_ in types):
            return False
        by_torch = native.several_by_torch()
        return not any(
            o.type in HEAVY and (by_torch or not step.kernel)
            for step in main.all()
            for o in step.operations
            if len(step.operations) == 1
        )

    # --- steps --------------------------------------------------------------------------------

    def block(self, block: Block, nested: bool = False) -> Steps:
        self.known |= {name for name, _ in block.inputs}
        groups = self.selection.chosen
        inside = {id(o) for c in groups.values() for o in c.operations[:-1]}
        steps = []
        for position, operation in enumerate(block.operations):
            if operation.type.startswith("constexpr_"):
                self.op(operation, position)  # expanded by who uses it, if it is one that we have
            elif operation.type != "const" and id(operation) not in inside:
                with self.failures.preparing(operation):
                    steps.append(self.step(operation, position))
                self.known |= {*steps[-1].results}
        _free(steps, {*block.outputs}, self.constants.named)
        give = (lambda name: StepResult(self.value(name), False)) if nested else self.result
        names = [name for name, _ in block.inputs] if nested else [*self.function.inputs]
        return Steps(names, steps, [give(name) for name in block.outputs])

    def step(self, operation: Operation, position: int) -> Step:
        chosen = self.selection.chosen.get(id(operation))
        if chosen is not None:
            return self.chosen(chosen, operation, position)
        step = Step(operation, (operation,))
        if operation.type == "read_state":
            step.state = operation.inputs["input"][0]
        elif operation.type == "write_state":
            (step.state,), (data,) = operation.inputs["input"], operation.inputs["data"]
            if self.updated.pop(step.state, None) != data:
                step.stored = self.result(data)
        elif operation.outputs and operation.outputs[0][0] in self.in_place:
            name = operation.outputs[0][0]
            step.state, step.arguments = self.in_place[name], self.arguments(operation)
            self.updated[step.state] = name
        elif operation.type in ("cond", "while_loop"):
            key = "pred" if operation.type == "cond" else "loop_vars"
            step.arguments = [self.argument(key, operation.inputs[key])]
            step.blocks = [self.block(block, nested=True) for block in operation.blocks]
        else:
            step.function = self.op(operation, position).function
            if self.engine:
                from mlprogram.run.native_forms import as_engine

                step.function = as_engine(operation, step.function)
            step.arguments = self.arguments(operation)
        return step

    def chosen(self, chosen: Chosen, operation: Operation, position: int) -> Step:
        """The step that a kernel computes."""
        for member in chosen.operations:
            self.op(member, position)  # which knows all its inputs
        arguments = [self.argument("", [item]) for item in chosen.operands]
        if len(chosen.operations) > 1:
            outputs = [(name, t) for name, t in operation.outputs if name == chosen.result]
            inputs = {"values": chosen.operands}
            operation = Operation(chosen.kernel, operation.name, inputs, outputs, [])
        return Step(operation, chosen.operations, chosen.kernel, chosen.run, arguments)

    # --- values -------------------------------------------------------------------------------

    def value(self, item: str | Constant) -> object:
        """A constant, or the name of a value."""
        constant = self.constants.find(item)
        if constant is not None:
            return self.constants.operand(constant)
        if item not in self.known:
            raise InvalidPackage(
                f"function {self.function.name!r}: value {item!r} is used before any op made it"
            )
        return Name(item)

    def result(self, item: str | Constant) -> StepResult:
        """A value that outlives the call."""
        memory = memory_of(item, self.origin)
        shared = memory in self.lasting
        self.lasting.add(memory)
        return StepResult(self.value(item), shared)

    def op(self, operation: Operation, position: int = -1) -> Op:
        """The op's entry in `OPS`, or its chosen reading; raises UnsupportedOp with the op's place
        and its neighbours."""
        found = self.readings.get(id(operation)) or OPS.get(operation.type)
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
        """Raise ValueError if a string input is not one of its allowed words."""
        for key in choices.keys() & operation.inputs.keys():
            constant = self.constants.find(operation.inputs[key][0])
            said = None if constant is None else self.constants.plain(key, constant)
            if said not in choices[key]:
                raise ValueError(f"{key}={said!r} is not one of {', '.join(choices[key])}")

    def arguments(self, operation: Operation) -> list[Argument]:
        op = self.op(operation)
        found = [
            self.static(key, items) if key in op.static else self.argument(key, items)
            for key, items in operation.inputs.items()
        ]
        if op.wants_types:
            types = [(self.constants.dtype(t), t.shape) for _, t in operation.outputs]
            found.append(Argument("_out", [types]))
        return found

    def argument(self, key: str, items: list) -> Argument:
        """A tensor argument: a constant or a value, or several if MIL takes several."""
        return Argument(key, [self.value(item) for item in items])

    def static(self, key: str, items: list) -> Argument:
        """A static argument: a Python value now, or taken from a tensor at run time."""
        constants = [self.constants.find(item) for item in items]
        values = [
            self.value(item) if constant is None else self.constants.plain(key, constant)
            for item, constant in zip(items, constants, strict=True)
        ]
        return Argument(key, values, static=True)


def chosen_readings(function: Function, semantics: Semantics | None) -> dict[int, Op]:
    """By the id of an op, what computes it instead of `OPS`, by `semantics` or its row's default.

    An op that touches no row stays as it is, so that its kernels do.
    """
    wanted = {
        name: other
        for name, other in OTHERS.items()
        if other.reading == (semantics or rows()[other.row].default)
    }
    operations = [o for o in function.operations() if o.type in wanted]
    if not operations:
        return {}
    facts = Facts(function)
    return {id(o): wanted[o.type].op for o in operations if touches(wanted[o.type].row, o, facts)}


def _free(steps: list[Step], outputs: set[str], constants: Collection[str]) -> None:
    """Set `last_read` of each step: the values that no later step reads."""
    last_use = {name: i for i, step in enumerate(steps) for name in uses(step.operation)}
    local = {name for step in steps for name in step.results} - outputs
    for position, step in enumerate(steps):
        if step.blocks:  # nested blocks keep their own references
            continue
        dead = {n for n in {*uses(step.operation)} & local if last_use[n] == position}
        dead |= {n for n in {*step.results} & local if n not in last_use}
        step.last_read = sorted(n for n in dead if n not in constants)

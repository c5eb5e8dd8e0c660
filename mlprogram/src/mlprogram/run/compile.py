"""Compile a plan to straight-line Python source, and load it.

Every stretch of steps that runs in C, and every other step, becomes one line that calls its
function on local variables; a value is deleted after its last use. So a call does no work besides
the steps themselves. `Compiled.source` shows the result. The trace has a line for every step, and
yields every value when it is made.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from types import FunctionType
from typing import Any

from mlprogram.errors import InvalidPackage
from mlprogram.package.values import MAX_RANK
from mlprogram.run.failures import turns
from mlprogram.run.open_sizes import OpenSizes
from mlprogram.run.plan import Argument, ExecutionPlan, Name, Step, StepResult
from mlprogram.run.slices import update_state
from mlprogram.run.stretches import NativeStretch, divided
import numpy as np
import torch

#: Held while names are given to values: threads may share a program.
GENERATING = Lock()

#: Inputs that take any number of tensors, as a list.
VARIADIC = frozenset(["values", "loop_vars"])


@dataclass
class Compiled:
    """A function ready to run on lists of tensors and a dict of states."""

    run: Callable  # (inputs, states) -> outputs
    source: str
    plan: ExecutionPlan
    parts: list[Step | NativeStretch]
    refused: dict[int, str]  # why a step is in no stretch, by its id

    @cached_property
    def trace(self) -> Callable:
        """(inputs, states) -> generator of (name, tensor); generated when first asked for."""
        with GENERATING:
            return _Source(self.plan).load(self.plan.main.steps, trace=True)[0]


def compile_plan(plan: ExecutionPlan, bounds: Mapping[str, tuple[int, ...]]) -> Compiled:
    """Generate and load the source of a plan. bounds: see `OpenSizes`."""
    parts, refused = divided(plan) if plan.native else ([*plan.main.steps], {})

    def load(parts: list[Step | NativeStretch]) -> Callable:
        with GENERATING:
            return _Source(plan).load(parts)[0]

    with GENERATING:
        plainly, source = _Source(plan).load(parts)
    is_open = any(None in type_.shape for type_ in plan.function.inputs.values())
    run = OpenSizes(plan, plainly, load, bounds) if plan.native and is_open else plainly
    return Compiled(run, source, plan, parts, refused)


class _Source:
    """The source of a plan. scope: its globals; bound: the names of objects in it, by their id."""

    def __init__(self, plan: ExecutionPlan):
        self.plan, self.failures = plan, plan.failures
        self.scope: dict[str, Any] = {}
        self.bound: dict[int, str] = {}

    def load(
        self, parts: Sequence[Step | NativeStretch], trace: bool = False
    ) -> tuple[FunctionType, str]:
        names = self.variables(self.plan.function.inputs)
        unpack = [f"{names} = inputs"] if names else []
        if any(step.operation.type == "while_loop" for step in self.plan.main.all()):
            unpack.append(f"turns = {self.bind(turns)}()")
        body = self.part_lines(parts, trace)
        if trace:
            untouched = self.plan.untouched.items()
            body += [f"yield {name!r}, {self.value(value)}" for name, value in untouched]
        body.append(f"return {', '.join(map(self.result, self.plan.main.results))},")
        return self.function("inputs, states, size=0", [*unpack, *body])

    def function(self, parameters: str, body: list[str]) -> tuple[FunctionType, str]:
        source, made = "\n    ".join([f"def run({parameters}):", *body]) + "\n", dict[str, Any]()
        exec(compile(source, self.failures.file(source), "exec"), self.scope, made)
        return made["run"], source

    def plainly(self, stretch: NativeStretch) -> Callable[[int], Callable[..., tuple]]:
        """A stretch from Python, from one of its steps on; generated when it is first needed."""

        @cache
        def plain(first: int) -> Callable[..., tuple]:
            with GENERATING:
                body = self.part_lines(stretch.steps[first:], free=False)  # not all are given
                body.append(f"return {self.variables(stretch.made)}")
                return self.function(f"states, {self.variables(stretch.needed(first))}", body)[0]

        return plain

    def variable(self, name: str) -> str:
        """The local variable of a value."""
        return self.failures.variables.setdefault(name, f"v{len(self.failures.variables)}")

    def variables(self, names: Iterable[str]) -> str:
        """The local variables of values, to be unpacked to or passed on."""
        return "".join(f"{self.variable(name)}, " for name in names)

    def bind(self, value: object) -> str:
        """A name in the generated source's globals for `value`."""
        name = self.bound.get(id(value))
        if name is None:
            name = self.bound[id(value)] = f"c{len(self.bound)}"
            self.scope[name] = value  # which also keeps the id from being used again
        return name

    # --- lines --------------------------------------------------------------------------------

    def part_lines(
        self, parts: Sequence[Step | NativeStretch], trace: bool = False, free: bool = True
    ) -> list[str]:
        lines: list[str] = []
        for part in parts:
            if isinstance(part, NativeStretch):
                lines += self.stretch_lines(part)
                continue
            lines += self.failures.lines(part.operation, self.step_lines(part))
            if trace:
                lines += [f"yield {name!r}, {self.variable(name)}" for name in part.results]
            if part.last_read and free:
                lines.append(f"del {', '.join(sorted(map(self.variable, part.last_read)))}")
        return lines

    def stretch_lines(self, stretch: NativeStretch) -> Iterator[str]:
        stretch.plain = self.plainly(stretch)
        given, made = self.variables(stretch.given), self.variables(stretch.made)
        call = f"{self.bind(stretch)}(size, states, {given})"
        yield f"{made} = {call}" if made else call
        inside = {name for step in stretch.steps for name in step.results}
        dead = sorted({n for step in stretch.steps for n in step.last_read} - inside)
        if dead:
            yield f"del {self.variables(dead)}"

    def step_lines(self, step: Step) -> Iterator[str]:
        type_ = step.operation.type
        targets = ", ".join(map(self.variable, step.results))
        if step.function is not None:
            comma = "," if len(step.results) == 1 and type_ == "split" else ""
            arguments = ", ".join(map(self.argument, step.arguments))
            yield f"{targets}{comma} = {self.bind(step.function)}({arguments})"
        elif type_ == "read_state":
            yield f"{targets} = states[{step.state!r}]"
        elif type_ == "write_state":
            if step.stored:
                yield f"states[{step.state!r}] = {self.result(step.stored)}"
        elif type_ == "slice_update":
            yield self.update_line(step, targets)
        else:
            yield from self.control_lines(step, targets)

    def update_line(self, step: Step, target: str) -> str:
        """`slice_update` of a state, in place."""
        given = ", ".join(self.argument(a) for a in step.arguments if a.key != "x")
        return f"{target} = {self.bind(update_state)}(states, {step.state!r}, {given})"

    def control_lines(self, step: Step, targets: str) -> Iterator[str]:
        """`cond` and `while_loop`: nested blocks become nested functions."""
        names: list[str] = []
        for block in step.blocks:
            names.append(f"{self.variable(step.operation.name)}_{len(names)}")
            yield f"def {names[-1]}({', '.join(map(self.variable, block.inputs))}):"
            yield from (f"    {line}" for line in self.part_lines(block.steps))
            yield f"    return {', '.join(map(self.result, block.results))},"
        values = self.values(step.arguments[0])
        if step.operation.type == "cond":
            yield f"{targets}, = {names[0]}() if {values} else {names[1]}()"
        else:
            yield f"{targets}, = {values}"
            yield f"for _ in turns:  # {step.operation.name!r}"
            yield f"    if not {names[0]}({targets})[0]: break"
            yield f"    {targets}, = {names[1]}({targets})"

    # --- values -------------------------------------------------------------------------------

    def value(self, value: object) -> str:
        """The source of a value: a local variable, or the name of a bound object."""
        return self.variable(value.name) if isinstance(value, Name) else self.bind(value)

    def result(self, result: StepResult) -> str:
        return self.value(result.value) + (".clone()" if result.copied else "")

    def argument(self, argument: Argument) -> str:
        text = self.values(argument)
        return f"{argument.key}={text}" if argument.key else text

    def values(self, argument: Argument) -> str:
        """The source of an argument: one value, or a list if MIL takes several."""
        if argument.static:
            texts = [self.static(value) for value in argument.values]
            return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        texts = [self.value(value) for value in argument.values]
        several = argument.key in VARIADIC or len(texts) > 1
        return f"[{', '.join(texts)}]" if several else texts[0]

    def static(self, value: object) -> str:
        if isinstance(value, Name):
            return f"{self.variable(value.name)}.tolist()"
        return repr(value) if _literal(value) else self.bind(value)


def _literal(value: object) -> bool:
    """Whether the value's `repr` is short and evaluates to it (not so for inf and nan)."""
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

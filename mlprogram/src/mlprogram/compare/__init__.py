"""Find the first op at which two programs differ, and by how much: `diff(a, b, inputs)`.

    print(diff(MLProgram(package), torch_module, inputs))

Two programs are compared value by value as they run, matched by name, without keeping the values; a
torch module, a function or a dict of arrays is compared by its outputs. B is always the reference.
The difference of two values is one number, the *error*: the largest difference of two elements,
relative to the largest magnitude in B's value. Unlike element-wise relative differences it is not
dominated by elements near zero.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import inspect

from mlprogram.arithmetic import depends, report
from mlprogram.compare.gap import Gap, compare_value, percent
from mlprogram.errors import InvalidInput
from mlprogram.package.function import Operation
from mlprogram.run.compile import as_array
from mlprogram.run.program import MLProgram
from mlprogram.tables import table
import numpy as np
import torch

__all__ = ["Difference", "Gap", "diff"]

TOLERANCE = 0.01

#: What is said where nothing inside of the two is compared.
OUTPUTS_ALONE = (
    "outputs alone are compared, and a softmax, an argmax or a norm at the end hides what is wrong "
    "before it; compare with another program, or with the source op by op"
)

#: What coremltools appends to the names of values that it casts to half precision.
HALF_SUFFIX = "_cast_fp16"


@dataclass(frozen=True)
class Difference:
    """The result of `diff`: `equal` says whether every output agrees, `str` gives a report."""

    tolerance: float
    first: Gap | None  # the first value beyond the tolerance, in A's order
    outputs: list[Gap]
    compared: int  # values that both have
    values: int  # values that A has
    notes: list[str]  # what could not be matched, and what was done about it
    #: What the programs touch of `arithmetic.toml`, by the row's id: names of ops, A's first.
    arithmetic: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether every output of A is within the tolerance of B's."""
        return all(gap.error <= self.tolerance for gap in self.outputs)

    def __str__(self) -> str:
        return self.text()

    def text(self, why: bool = False) -> str:
        """The report. What depends on how Core ML computes it is named where values part; why: in
        any case, with the sources."""
        head = f"{self.compared:,} of {self.values:,} values compared"
        parts = ["\n".join([f"{head}; tolerance {percent(self.tolerance)}", *self.notes])]
        if self.first:
            parts.append(_story(self.first))
        rows: list[tuple[str, ...]] = [
            ("output", "error", "max abs", "max rel", "cosine", "SNR", "PSNR")
        ]
        rows += [(gap.name, *gap.cells()) for gap in self.outputs]
        parts.append(table(rows))
        apart = [gap.name for gap in self.outputs if not gap.error <= self.tolerance]
        verdict = f"apart: {', '.join(apart)}" if apart else "equal within the tolerance"
        verdict = f"outputs {verdict}"
        if OUTPUTS_ALONE in self.notes:
            verdict += "; nothing before them was compared"
        if self.arithmetic and (why or self.first or not self.equal):
            parts.append("\n".join(report(self.arithmetic, why)))
        return "\n\n".join([*parts, verdict])


def _story(gap: Gap) -> str:
    error, *others = gap.cells()
    names = ("max abs", "max relative", "cosine", "SNR", "PSNR")
    value = " ".join([*filter(None, [gap.op]), repr(gap.name), str(gap.shape)])
    lines = [f"first apart: {value}", f"  error     {error}"]
    if others[0]:
        mine, other = gap.elements
        lines.append(f"  worst     {mine:.6g} at {gap.worst}, B has {other:.6g}")
        lines.append("  also      " + ", ".join(map(" ".join, zip(names, others, strict=True))))
    for name, known in gap.inputs.items():
        lines.append(f"  reads     {name!r}, {percent(known) if known else 'exact'}")
    return "\n".join(lines)


def diff(
    a: "MLProgram | torch.nn.Module | Mapping | Callable",
    b: "MLProgram | torch.nn.Module | Mapping | Callable",
    inputs: Mapping[str, object],
    tolerance: float = TOLERANCE,
) -> Difference:
    """Run A and B on the same inputs and compare their results; B is the reference.

    a, b: one of
    - an `MLProgram`, which is traced from zero states. Values inside of a group of ops that runs as
      one kernel are compared only with `plain()` programs;
    - a torch module, called with the inputs as tensors: by name if `forward` has parameters of
      these names, else in order; its outputs alone are compared, and a softmax, an argmax or a norm
      at the end hides what is wrong before it;
    - a function from the inputs to a dict of arrays, or such a dict.

    Values of two programs match if name (without `_cast_fp16` at its end), op and shape are equal;
    outputs match by name, else by their order. Raises InvalidInput if the outputs do not match.
    """
    ours, theirs = _side(a, inputs), _side(b, inputs)
    matched, outputs, notes = _match(ours, theirs)
    first, gaps, compared = None, {}, 0
    errors: dict[str, float] = dict.fromkeys(inputs, 0.0)
    for name, value, reference in _pairs(ours.stream, theirs.stream, matched):
        gap = compare_value(name, ours.operations.get(name), value, reference, errors)
        errors[name], compared = gap.error, compared + 1
        if first is None and not gap.error <= tolerance:
            first = gap
        if name in outputs:
            gaps[name] = gap
    if lost := [name for name in outputs if name not in gaps]:
        raise InvalidInput(f"outputs {', '.join(lost)} are no op's result on one side")
    touched = {**_touched(b), **_touched(a)}
    found = list(gaps.values())
    return Difference(tolerance, first, found, compared, len(ours.names), notes, touched)


def _touched(side: object) -> dict[str, list[str]]:
    return depends(side) if isinstance(side, MLProgram) else {}


# --- the two sides --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """A or B. names: each value with (op, shape), or None if that is not known. operations: the op
    that computes a value, if it is known."""

    stream: Iterator[tuple[str, np.ndarray]]
    names: Mapping[str, tuple | None]
    outputs: list[str]
    operations: dict[str, Operation] = field(default_factory=dict)


def _side(side, inputs: Mapping[str, object]) -> _Side:
    if isinstance(side, MLProgram):
        return _program(side, inputs)
    if isinstance(side, torch.nn.Module):
        side = _call(side, inputs)
    elif not isinstance(side, Mapping):
        side = side(inputs)
    arrays = _named(side)
    return _Side(iter(arrays.items()), dict.fromkeys(arrays), list(arrays))


def _program(program: MLProgram, inputs: Mapping[str, object]) -> _Side:
    steps = [step for step in program.plan.main.steps if step.results]
    operations = {name: step.operation for step in steps for name in step.results}
    names = {
        name: (step.operations[-1].type, type_.shape)
        for step in steps
        for name, type_ in step.operation.outputs
    }
    outputs = []
    for name, type_ in program.outputs.items():
        maker = operations.get(name)
        if maker is None:  # an input or a constant that is an output as it is
            names[name] = ("", type_.shape)
        if maker is None or maker.type != "classify":
            outputs.append(name)
        elif (source := maker.inputs["probabilities"][0]) not in outputs and source in operations:
            outputs.append(source)  # a label and a dict are compared as what they come from
    state = program.make_state() if program.states else None
    return _Side(program.trace(inputs, state), names, outputs, operations)


def _call(module: torch.nn.Module, inputs: Mapping[str, object]) -> object:
    """Call a module; floating-point inputs are cast to the dtype of its parameters."""
    if module.training:
        raise InvalidInput("the torch module is in training mode: call its eval() first")
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in inputs.items()}
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    known = inspect.signature(module.forward).parameters
    with torch.no_grad():
        if tensors.keys() <= known.keys():
            return module(**tensors)
        return module(*tensors.values())


def _named(result: object) -> dict[str, np.ndarray]:
    """Results as arrays by name; a tensor or a sequence of tensors is named by its order."""
    if not isinstance(result, Mapping):
        results = result if isinstance(result, Sequence) else [result]
        result = {f"output_{i}": value for i, value in enumerate(results)}
    arrays = {
        name: as_array(value.detach()) if isinstance(value, torch.Tensor) else np.asarray(value)
        for name, value in result.items()
    }
    return {name: array for name, array in arrays.items() if array.dtype.kind in "fiub"}


# --- matching -------------------------------------------------------------------------------------


def _match(ours: _Side, theirs: _Side) -> tuple[dict[str, str], list[str], list[str]]:
    """Match A's values to B's. Returns the map, the outputs of A in it, and notes on the rest."""
    matched = dict(_same_names(ours, theirs))
    notes = []
    outputs = [name for name in ours.outputs if name in theirs.outputs or name in matched]
    if outputs:
        matched |= {name: name for name in outputs if name not in matched}
        if lost := [name for name in ours.outputs if name not in outputs]:
            notes.append(f"B has no output {', '.join(lost)}")
    elif len(ours.outputs) == len(theirs.outputs):
        outputs = ours.outputs
        pairs = list(zip(ours.outputs, theirs.outputs, strict=True))
        taken = {*theirs.outputs}  # a value of B is compared once
        matched = {a: b for a, b in matched.items() if b not in taken} | dict(pairs)
        notes.append("outputs by their order: " + ", ".join(f"{a} and {b}" for a, b in pairs))
    else:
        raise InvalidInput(
            f"A gives {', '.join(ours.outputs)} and B {', '.join(theirs.outputs)}: give outputs "
            "that are to be compared the same names"
        )
    if ours.names.keys() - ours.outputs and matched.keys() <= {*outputs}:
        notes.append(OUTPUTS_ALONE)
    return matched, outputs, notes


def _same_names(ours: _Side, theirs: _Side) -> Iterator[tuple[str, str]]:
    """Pairs of values with the same name, op and shape; an exact name wins over a similar one."""
    similar = {name.removesuffix(HALF_SUFFIX): name for name in theirs.names}
    for name, made in ours.names.items():
        other = name
        if name not in theirs.names:
            other = similar.get(name.removesuffix(HALF_SUFFIX), name)
            if other in ours.names:  # as `name` itself is
                continue
        if made is None or theirs.names[other] in (None, made):
            yield name, other


def _pairs(
    ours: Iterator[tuple[str, np.ndarray]],
    theirs: Iterator[tuple[str, np.ndarray]],
    matched: dict[str, str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (A's name, A's array, B's array) in A's order; only values that B computes before A
    are kept."""
    wanted, held = set(matched.values()), dict[str, np.ndarray]()
    for name, value in ours:
        if name not in matched:
            continue
        while matched[name] not in held:
            made = next(theirs, None)
            if made is None:
                break
            if made[0] in wanted:
                held[made[0]] = made[1]
        else:
            yield name, value, held.pop(matched[name])

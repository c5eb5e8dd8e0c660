"""Prove a rewrite by running it: what was meant, and what the new ops give, on the same numbers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, get_args

from mlprogram.ane.faults.fix import edit
from mlprogram.ane.faults.fix.edit import Typed
from mlprogram.ane.faults.fix.mend import FINITE, Mend, Unmended
from mlprogram.arithmetic import Semantics
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package.container import Container
from mlprogram.package.description import NUMPY
from mlprogram.package.files import proto
from mlprogram.package.function import Operation
from mlprogram.package.messages import value_type
from mlprogram.run.program import MLProgram
import numpy as np
import torch

EDGES = (*FINITE, np.inf, -np.inf, np.nan)
SMALL = (-5, -3, -2, -1, 0, 1, 2, 3, 7)  # integers
PAIRS = 400  # combinations of edges, beyond which some are drawn
ROUNDS = 64  # runs of an op alone, which has few elements if it takes so many
OPEN = (3, 1)  # sizes of axes that the program leaves open, for an op alone: 1 fits beside any
MOST = 1 << 26  # elements of an input of an op that is proven
STEPS = 2  # calls of a function with states
WHOLE = 1e-4  # of the largest number of an output in single precision; constants may be of half


@dataclass(frozen=True)
class Proof:
    """How far the new numbers are from those meant.

    inputs: sets of inputs that the functions ran on. error: the largest difference in single
    precision, as a share of the largest number of the output or state that has it.
    """

    inputs: int
    error: float


# --- an op alone ----------------------------------------------------------------------------------


def alone(
    container: Container, function: str, operation: Operation, inputs: Iterable[Typed]
) -> Container:
    """A model of nothing but one op of a function, or of the ops from `inputs` to it.

    Raises Unmended if they need more than these and constants.
    """
    given, whole = [*inputs], container.spec.mlProgram.functions[function]
    ((name, _),) = operation.outputs
    try:
        operations = edit.slice_of(
            (o for block in edit.blocks_of(whole) for o in block.operations),
            [name],
            [value.name for value in given],
        )
    except ValueError as error:
        raise Unmended(str(error)) from None
    spec = proto("Model_pb2").Model(specificationVersion=container.spec.specificationVersion)
    spec.mlProgram.version = 1
    made = spec.mlProgram.functions["main"]
    made.opset = whole.opset
    for value in given:
        made.inputs.add(name=value.name, type=value_type(value.type.dtype, value.type.shape))
    block = made.block_specializations[whole.opset]
    block.operations.extend(operations)
    block.outputs.append(name)
    return replace(container, spec=spec)


def prove_alone(container: Container, function: str, mend: Mend) -> None:
    """Hold the new ops against what was meant, on edges, by both readings of Core ML's arithmetic.

    container: of the rewritten model. Raises Unmended where they part.
    """
    model = alone(container, function, mend.operation, mend.inputs)
    for semantics in get_args(Semantics):
        _prove_reading(opened(model, "main", "fp16", semantics), mend)


def _prove_reading(program, mend: Mend) -> None:
    ((name, type_),) = mend.operation.outputs
    for open_size in OPEN:
        try:
            tried = [(arrays, program.predict(arrays)[name]) for arrays in edges(mend, open_size)]
            break
        except (InvalidPackage, InvalidInput) as error:
            reason = error
    else:
        raise Unmended(f"the new ops do not run: {reason}")
    for arrays, found in tried:
        try:
            wanted = meant(mend, arrays, found.dtype).reshape(found.shape)
        except (IndexError, RuntimeError, ValueError) as error:  # torch's, numpy's
            raise Unmended(f"torch does not compute what was meant ({error})") from None
        far = distance(found, wanted, mend.sums, mend.size) / mend.ulps
        if not far <= 1:
            raise Unmended(
                f"the new ops would not give what was meant: {far:.2g} times the rounding of "
                f"{type_.dtype} away"
            )


def meant(mend: Mend, arrays: Mapping[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    """What torch computes of these inputs, rounded once."""
    tensors = [torch.from_numpy(np.array(arrays[value.name])) for value in mend.inputs]
    with np.errstate(over="ignore"):
        wanted = mend.meant(*map(_single, tensors)).numpy()
        if mend.least > -np.inf:
            wanted = np.maximum(wanted, mend.least)
        return wanted.astype(dtype)


def edges(mend: Mend, open_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Arrays for the inputs of an op alone: edges, each with each where these are few, in as many
    rounds as its elements need for all, at most `ROUNDS`; then normal numbers."""
    generator, types = np.random.default_rng(0), {v.name: v.type for v in mend.inputs}
    shapes = {n: tuple(s or open_size for s in t.shape) for n, t in types.items()}
    dtypes = {n: np.dtype(NUMPY.get(t.dtype, t.dtype)) for n, t in types.items()}
    tried = [[*mend.values.get(n, EDGES if d.kind == "f" else SMALL)] for n, d in dtypes.items()]
    if prod(map(len, tried)) > PAIRS:
        mixed = np.stack([generator.choice(values, PAIRS) for values in tried], 1)
    else:
        mixed = generator.permutation(np.array([*product(*tried)]))
    largest = max(map(prod, shapes.values()))
    if largest > MOST:
        raise Unmended(f"its input of {largest:,} elements is too large to be proven")
    for turn in range(min(-(-len(mixed) // largest), ROUNDS)):
        rolled = np.roll(mixed, -turn * largest, 0)
        yield {n: np.resize(rolled[:, i], shapes[n]).astype(dtypes[n]) for i, n in enumerate(types)}
    if not mend.values and all(dtype.kind == "f" for dtype in dtypes.values()):
        yield {n: (3 * generator.standard_normal(shapes[n])).astype(dtypes[n]) for n in types}


def distance(found: np.ndarray, wanted: np.ndarray, sums: bool, size: float) -> float:
    """The largest difference, in steps of the dtype at the size of the element wanted.

    sums: at the size of the largest. size: the least. Infinite where only one side is finite, for
    integers and booleans that differ, and for other shapes.
    """
    if found.shape != wanted.shape:
        return np.inf
    if found.dtype.kind != "f":
        return 0.0 if np.array_equal(found, wanted) else np.inf
    info, a, b = np.finfo(found.dtype), found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    apart[np.isnan(apart)] = np.inf
    finite = np.abs(np.where(np.isfinite(b), b, 0))
    sizes = np.maximum(finite.max(initial=0) if sums else finite, size)
    step = np.maximum(float(info.eps) * sizes, float(info.smallest_subnormal))
    return float((apart / step).max(initial=0))


# --- the whole function ---------------------------------------------------------------------------


def prove_whole(before: Container, after: Container, function: str, mends: Iterable[Mend]) -> Proof:
    """Hold the rewritten function against the one that is meant, outputs and states.

    In single precision they agree within `WHOLE`, or the rounding of constants in the dtype of what
    is mended; as declared, the new one is no further from that than twice the one that is meant,
    and some rounding. Raises Unmended where they part, or where the function runs on no inputs.
    """
    mends = [*mends]
    half = any(mend.operation.outputs[0][1].dtype == "fp16" for mend in mends)
    allowed = max(WHOLE, 4 * _eps(np.zeros(0, np.float16)) * half)
    weights: dict = {}
    single, as_declared = (
        (
            _as_meant(before, function, mends, precision, weights),
            opened(after, function, precision, weights=weights),
        )
        for precision in ("fp32", "fp16")
    )
    tried, worst = 0, 0.0
    for what, arrays in _inputs(single[0], _masks(before, function, mends, single[0])):
        try:
            wanted = _run(single[0], arrays)
        except (InvalidPackage, InvalidInput):  # such as an index that there is not
            continue
        try:
            found, declared = _run(single[1], arrays), [_run(one, arrays) for one in as_declared]
        except (InvalidPackage, InvalidInput) as error:
            raise Unmended(f"function {function!r} would not run on {what}: {error}") from None
        for name, value in wanted.items():
            share = _share(found[name], value)
            lost, new = (_share(one[name], value) for one in declared)
            worst = max(worst, share)
            eps = _eps(declared[0][name])
            rounding = max(16 * eps, WHOLE) if eps else 0.0  # whole numbers have none
            if share > allowed or new > 2 * lost + rounding:
                raise Unmended(
                    f"function {function!r} would not give what was meant: {name!r} is "
                    f"{max(share, new):.2g} of its largest number away, on {what}"
                )
        tried += 1
    if not tried:
        raise Unmended(f"function {function!r} runs on none of the inputs that were tried")
    return Proof(tried, worst)


def opened(
    container: Container,
    function: str,
    precision: str,
    semantics: Semantics = "reported",
    weights: dict | None = None,
) -> Any:
    """A function of a model as `MLProgram`, op by op, by default as Core ML is reported to be.

    weights: decoded ones that programs of the same weight files share.
    """
    program = MLProgram(container, function, precision, semantics=semantics, _shared=weights)
    return program.plain()


def _as_meant(
    container: Container, function: str, mends: list[Mend], precision: str, weights: dict
) -> Any:
    """The function as it was, with torch's own computation in the place of the ops with a fault."""
    spec = type(container.spec)()
    spec.CopyFrom(container.spec)
    stand_ins = {mend.operation.name: _stand_in(mend) for mend in mends}
    edit.replace(spec.mlProgram.functions[function], stand_ins)
    program = opened(replace(container, spec=spec), function, precision, weights=weights)
    by_name = {mend.operation.name: mend for mend in mends}
    for step in program.plan.main.all():
        if mend := by_name.get(step.operation.name):
            dtype = program.plan.dtype(mend.operation.outputs[0][1])
            step.function = _calling(mend, dtype)
    return program


def _stand_in(mend: Mend) -> list[Any]:
    """An op of as many inputs as `meant` has, whose function is then replaced by it."""
    maker = edit.Maker(f"{mend.operation.name}_meant", {value.name for value in mend.inputs})
    result = maker.op("concat", {"values": [*mend.inputs], "axis": 0, "interleave": False})
    (message,) = (o for o in maker.made if o.outputs[0].name == result.name)
    ((name, type_),) = mend.operation.outputs
    del message.outputs[:]
    message.outputs.add(name=name, type=value_type(type_.dtype, type_.shape))
    return maker.made


def _calling(mend: Mend, dtype):
    def call(values, axis=0, interleave=False):
        tensors = values if isinstance(values, list) else [values]
        return mend.meant(*map(_single, tensors)).to(dtype)

    return call


def _single(tensor):
    return tensor.float() if tensor.is_floating_point() else tensor


def _masks(container: Container, function: str, mends: list[Mend], program) -> dict[str, float]:
    """The inputs of a function that flags are computed from, and the number in them that leaves a
    position open: the one of which all flags are 0."""
    flags = {name for mend in mends for name in mend.flags}
    names, blocks = {*flags}, edit.blocks_of(container.spec.mlProgram.functions[function])
    for operation in reversed([o for block in blocks for o in block.operations]):
        if names & {output.name for output in operation.outputs}:
            names |= edit.names_read(operation)
    masks = [name for name in program.inputs if name in names]
    if not masks:
        return {}
    arrays = program.random_inputs(0)
    arrays |= {name: np.ones_like(arrays[name]) for name in masks}
    state = program.make_state() if program.states else None
    found = dict(program.trace(arrays, state)) | arrays
    closed = any(found[name].any() for name in flags & found.keys())
    return dict.fromkeys(masks, float(not closed))


def _inputs(program, masks: Mapping[str, float]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Arrays for a function: random ones by two seeds, then its floats at one edge everywhere.

    masks: inputs that are drawn from 0 and 1, and the number that the first position of each row
    has: a row that is closed altogether is meant to give nothing.
    """
    for seed, edge in enumerate((None, None, 0.0, -0.0, 1.0, -1.0, 10.0, -10.0)):
        arrays = program.random_inputs(seed)
        for name, array in arrays.items():
            if name in masks:
                generator = np.random.default_rng(seed)
                arrays[name] = generator.integers(0, 2, array.shape).astype(array.dtype)
                arrays[name][..., :1] = masks[name]
            elif edge is not None and array.dtype.kind == "f" and not program.features[name].color:
                arrays[name] = np.full_like(array, edge)
        yield f"random inputs, seed {seed}" if edge is None else f"inputs of {edge:g}", arrays


def _run(program, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of each call, and the states after the last one."""
    state: Any = program.make_state() if program.states else None
    found: dict[str, np.ndarray] = {}
    for step in range(1 if state is None else STEPS):
        for name, value in program.predict(arrays, state).items():
            value = [*value.values()] if isinstance(value, dict) else value  # of a classifier
            if not isinstance(value, str):
                found[f"{name} of call {step + 1}" if step else name] = np.asarray(value)
    if state is not None:
        found |= {f"state {name}": state.read_state(name) for name in program.states}
    return found


def _eps(array: np.ndarray) -> float:
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _share(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference as a share of the largest number, where a finite one is wanted."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if a.shape != b.shape:
        return np.inf
    finite = np.isfinite(b)
    apart = np.abs(a[finite] - b[finite])
    apart[np.isnan(apart)] = np.inf
    return float(apart.max(initial=0)) / (float(np.abs(b[finite]).max(initial=0)) or 1.0)

"""The table of kernels, and the selection of a kernel for each op of a function.

Each entry has a name, the patterns of ops that it may replace, and a function that prepares it:
from a match it returns the values that the kernel reads and the function that computes the result,
or raises `Unfit` with the reason. Groups come before single ops, longer ones before shorter ones.
`mlprogram inspect PACKAGE --kernels` shows what every op got; `MLProgram(without=[name])` leaves an
entry out. All other ops run as plain ops, with which a test compares each entry.

research/executor-speed.md has what was tried and measured.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from mlprogram.analysis.constants import Constants
from mlprogram.errors import InvalidInput
from mlprogram.kernels import native, single
from mlprogram.kernels.graph import Graph, Match, Unfit
from mlprogram.kernels.groups import attention, norms, rotary, sizes
from mlprogram.kernels.pattern import OpPattern as Pattern
from mlprogram.kernels.pattern import find, op
from mlprogram.package.function import Function, Operation


@dataclass(frozen=True)
class Kernel:
    """An entry. telling: types of the op whose report says why the kernel was not used."""

    name: str
    patterns: tuple[Pattern, ...]
    prepare: Callable[[Match], tuple[list, Callable]]
    telling: tuple[str, ...]
    compiled: bool = True  # whether it needs the C compiler's library


def _single(name: str, types: str, prepare: Callable, compiled: bool = True) -> Kernel:
    return Kernel(name, (op(types),), prepare, tuple(types.split()), compiled)


ACTIVATIONS = "sigmoid silu gelu tanh exp cos sin"

KERNELS = (
    Kernel(
        "attention", attention.ATTENTION, attention.prepare,
        ("softmax", "exp", "scaled_dot_product_attention"),
    ),
    Kernel("rms_norm", norms.NORM_OF_PAIR, norms.prepare_pair, ("layer_norm",)),
    Kernel("rms_norm_spelled_out", norms.SPELLED_OUT, norms.prepare_root, ("rsqrt",)),
    Kernel("rotary", rotary.ROTARY, rotary.prepare, ("concat",)),
    Kernel("gated", norms.GATED, norms.prepare_gate, ("silu",)),
    Kernel("size", sizes.SIZE, sizes.prepare, ("gather",), compiled=False),
    Kernel("expand", sizes.EXPANDED, sizes.prepare_expanded, ("tile",), compiled=False),
    _single("product", "conv linear matmul", single.prepare_product, compiled=False),
    _single("softmax", "softmax", single.prepare_small),
    _single("activation", ACTIVATIONS, single.prepare_activation),
    _single("gather", "gather", single.prepare_gather),
    _single("einsum", "einsum", single.prepare_einsum),
    _single("layer_norm", "layer_norm", single.prepare_small),
    _single("small_product", "matmul", single.prepare_small),
    _single("transpose", "transpose", single.prepare_transpose, compiled=False),
)  # fmt: skip


#: Is left out like an entry: then every step is called from Python, one by one.
RUNNER = "runner"


@dataclass(frozen=True)
class Chosen:
    """A group of ops that a kernel computes, at the position of the last one.

    operands: the names of the values that `run` takes, in order.
    """

    kernel: str
    operations: tuple[Operation, ...]
    operands: list
    run: Callable
    result: str


@dataclass
class Selection:
    """The result of `select`: the chosen kernels by the id of each group's last op.

    refused: by the id of an op, the other entries that might have fit, each with the reason.
    """

    chosen: dict[int, Chosen] = field(default_factory=dict)
    refused: dict[int, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Attempt:
    """An entry that did not fit. operations: those that matched. whole: the whole pattern did."""

    kernel: Kernel
    operations: tuple[Operation, ...]
    whole: bool
    reason: str

    @property
    def rank(self) -> tuple[bool, int]:
        return self.whole, len(self.operations)


def check_names(names: Collection[str]) -> frozenset[str]:
    """Check the names of entries to leave out; raises InvalidInput for an unknown one."""
    known = [*dict.fromkeys(kernel.name for kernel in KERNELS), RUNNER]
    names = [names] if isinstance(names, str) else names
    for name in names:
        if name not in known:
            raise InvalidInput(f"without={name!r}: no such kernel; there are {', '.join(known)}")
    return frozenset(names)


def select(
    function: Function,
    constants: Constants,
    without: Collection[str],
    plain: Collection[int] = (),
) -> Selection:
    """Choose kernels for a function's ops, from the last op to the first, in the table's order.

    plain: ids of ops that no kernel may compute.
    """
    graph = Graph(function, constants)
    chosen: dict[int, Chosen] = {}
    taken = {*plain}
    attempts: list[_Attempt] = []
    nested = [o for o in function.operations() if id(o) not in graph.position]
    for operation in [*nested, *reversed(function.block.operations)]:
        if id(operation) in taken or not operation.outputs:
            continue
        with constants.preparing(operation):
            found = _choose(graph, operation, taken, without, attempts)
        if found:
            chosen[id(operation)] = found
            taken |= {id(o) for o in found.operations}
    return Selection(chosen, _refused(attempts, chosen))


def _choose(
    graph: Graph,
    operation: Operation,
    taken: set[int],
    without: Collection[str],
    attempts: list[_Attempt],
) -> Chosen | None:
    """The kernel for an op, alone or as the last one of a group; None for the plain op."""
    for kernel in KERNELS:
        fitting = [p for p in kernel.patterns if operation.type in p.types]
        for pattern in fitting:
            off = "it is switched off" if kernel.name in without else None
            if kernel.compiled and not native.available():
                off = native.status()[1]
            found = _fit(graph, kernel, pattern, operation, taken, off)
            if isinstance(found, Chosen):
                return found
            attempts.append(found)
    return None


def _fit(
    graph: Graph,
    kernel: Kernel,
    pattern: Pattern,
    operation: Operation,
    taken: set[int],
    off: str | None,
) -> Chosen | _Attempt:
    """Try a kernel on the ops that end in this one; if it does not fit, return the best attempt.

    off: the reason if the kernel is not available at all.
    """
    attempt = None
    try:
        for match in find(graph, pattern, operation):
            if any(id(o) in taken for o in match.operations):
                continue
            try:
                if off:
                    raise Unfit(off)
                operands, run = kernel.prepare(match)
                inside = {name for o in match.operations for name, _ in o.outputs}
                if inside & {*operands}:
                    raise Unfit("it takes a value that it would not make")
                return Chosen(kernel.name, match.operations, operands, run, match.result)
            except Unfit as error:
                attempt = attempt or _Attempt(kernel, match.operations, True, str(error))
    except Unfit as error:
        return attempt or _Attempt(kernel, error.matched, False, str(error))
    raise AssertionError("`find` ends with Unfit")


def _refused(attempts: list[_Attempt], chosen: dict[int, Chosen]) -> dict[int, dict[str, str]]:
    """By the id of an op, why its best attempt failed, for each entry that might report there."""
    taken = {id(o): c.kernel for c in chosen.values() for o in c.operations}
    best: dict[tuple[int, str], _Attempt] = {}
    for attempt in attempts:
        for operation in attempt.operations:
            key = id(operation), attempt.kernel.name
            fits = operation.type in attempt.kernel.telling and taken.get(key[0]) != key[1]
            if fits and (key not in best or attempt.rank > best[key].rank):
                best[key] = attempt
    refused: dict[int, dict[str, str]] = {}
    for (identity, name), attempt in best.items():
        refused.setdefault(identity, {})[name] = attempt.reason
    return refused

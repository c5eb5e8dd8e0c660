"""Random programs over constants that stand in the ops themselves, with what numpy says of them.

coremltools names every constant, other converters need not. Views of such constants go wherever a
value can: into states, branches, updates and outputs, where whoever writes to one must not change
it for the next call. Every number is whole and small, so that answers are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from _package import X, block, const, op, typed, write
import numpy as np

SHAPE, STEPS = (2, 3), 14
ROW, STATES = typed("fp32", 1, 3), ("s", "t")

Values = dict[str, np.ndarray]


@dataclass
class Program:
    """Ops, and for each the same in numpy: a function of the values and the states so far."""

    rng: Random
    operations: list = field(default_factory=list)
    steps: list[Callable[[Values, Values], object]] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["x"])  # of values of SHAPE
    outputs: list[str] = field(default_factory=list)

    def write(self, path: Path) -> Path:
        inputs = {"x": X} | {state: typed("fp32", *SHAPE, kind="state") for state in STATES}
        return write(path, self.operations, self.outputs, inputs)

    def evaluate(self, x: np.ndarray, states: Values) -> Values:
        """The outputs; the states become what the program makes of them."""
        values = {"x": x}
        for step in self.steps:
            step(values, states)
        return {name: values[name] for name in self.outputs}

    def add(self, kind: str, compute: Callable[[Values, Values], np.ndarray], blocks=(), **inputs):
        """An op with one result of SHAPE."""
        name = f"v{len(self.operations)}"
        self.operations.append(op(kind, {name: X}, blocks, **inputs))
        self.steps.append(lambda values, states: values.update({name: compute(values, states)}))
        self.names.append(name)

    def value(self) -> tuple[object, Callable[[Values], np.ndarray]]:
        """An operand: a value made before or an inline constant; and what it is."""
        if self.rng.random() < 0.4:
            array = self.array(SHAPE)
            return const(array), lambda values: array
        name = self.rng.choice(self.names)
        return name, lambda values: values[name]

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.array(
            [self.rng.randrange(-4, 5) for _ in range(np.prod(shape))], np.float32
        ).reshape(shape)


def make_program(seed: int) -> Program:
    rng = Random(f"inline {seed}")
    program = Program(rng)
    for _ in range(STEPS):
        rng.choice([_view, _view, _constant, _arithmetic, _read, _write, _update, _branch])(program)
    program.outputs = rng.sample(program.names, min(3, len(program.names)))
    return program


def _view(program: Program) -> None:
    """A view of a constant or a value that shows all of it, or a part."""
    rng = program.rng
    kind = rng.choice(["identity", "cast", "reshape", "transpose", "slice_by_index", "squeeze"])
    shapes = {
        "reshape": (3, 2),
        "transpose": (3, 2),
        "slice_by_index": (4, 3),
        "squeeze": (1, 2, 3),
    }
    more = {
        "cast": {"dtype": const("fp32")}, "reshape": {"shape": const([2, 3])},
        "transpose": {"perm": const([1, 0])}, "squeeze": {"axes": const([0])},
        "slice_by_index": {"begin": const([1, 0]), "end": const([3, 3])},
    }.get(kind, {})  # fmt: skip
    array = program.array(shapes.get(kind, SHAPE))
    shown = {"reshape": lambda: array.reshape(SHAPE), "transpose": lambda: array.T,
             "slice_by_index": lambda: array[1:3], "squeeze": lambda: array[0]}  # fmt: skip
    if kind in shown or rng.random() < 0.5:
        program.add(
            kind, lambda values, _: shown.get(kind, lambda: array)(), x=const(array), **more
        )
    else:
        name = rng.choice(program.names)
        program.add(kind, lambda values, _: values[name], x=name, **more)


def _constant(program: Program) -> None:
    array = program.array(SHAPE)
    program.add("const", lambda values, _: array, val=const(array))


def _arithmetic(program: Program) -> None:
    (x, first), (y, second) = program.value(), program.value()
    kind = program.rng.choice(["add", "sub", "maximum"])
    apply = {"add": np.add, "sub": np.subtract, "maximum": np.maximum}[kind]
    program.add(kind, lambda values, _: apply(first(values), second(values)), x=x, y=y)


def _read(program: Program) -> None:
    state = program.rng.choice(STATES)
    program.add("read_state", lambda _, states: states[state], input=state)


def _write(program: Program) -> None:
    (data, given), state = program.value(), program.rng.choice(STATES)
    program.operations.append(op("write_state", {}, input=state, data=data))
    program.steps.append(lambda values, states: states.update({state: given(values)}))


def _update(program: Program) -> None:
    """A row of a state gets another value, which mostly goes back into the state."""
    rng, row = program.rng, program.rng.randrange(2)
    state, array = rng.choice(STATES), program.array((1, 3))
    _read(program)
    x = program.names[-1]
    update: object = const(array)
    replaced: Callable = lambda values: array  # noqa: E731
    if rng.random() < 0.5:  # a view of a row of some value
        name, view = rng.choice(program.names), f"row{len(program.operations)}"
        part = {"begin": const([row, 0]), "end": const([row + 1, 3])}
        program.operations.append(op("slice_by_index", {view: ROW}, x=name, **part))
        update, replaced = view, lambda values: values[name][row : row + 1]

    def compute(values: Values, _: Values) -> np.ndarray:
        changed = values[x].copy()
        changed[row] = replaced(values)[0]
        return changed

    at = {"begin": const([row, 0]), "end": const([row + 1, 3])}
    program.add("slice_update", compute, x=x, update=update, **at)
    if rng.random() < 0.8:
        made = program.names[-1] if rng.random() < 0.8 else x
        program.operations.append(op("write_state", {}, input=state, data=made))
        program.steps.append(lambda values, states: states.update({state: values[made]}))


def _branch(program: Program) -> None:
    first, second = program.rng.choices(program.names, k=2)
    taken = program.rng.random() < 0.5
    blocks = [block([], [first]), block([], [second])]
    name = first if taken else second
    program.add("cond", lambda values, _: values[name], blocks, pred=const(taken))

"""Random programs for the table of calls: operands of every kind and form, and inputs for them.

A form of ops (`_random_forms.py`) asks for operands of some shapes. Each is a value that was made
before, an input, a constant as the program or its weight file stores it, or a part, a turn, a
repetition, a conversion .. of another such operand. So each place of each op meets each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random

from _package import blob, const, op, typed, write
import numpy as np

#: Around what the kernels treat alike: lanes, tiles, rows of few and of many, pieces of a vector.
SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65)
LARGEST = 1200  # elements of most values

DTYPES = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32, "bool": np.bool_}
FLOATS = ("fp32", "fp16")
NARROW = ("int8", "uint8", "int16", "uint16")  # whole numbers that are cast to and from
MOVES = frozenset(
    [
        "cast", "concat", "expand_dims", "flatten2d", "gather", "identity", "reshape", "select",
        "slice_by_index", "slice_by_size", "slice_update", "split", "squeeze", "stack", "tile",
        "transpose",
    ]
)  # fmt: skip

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """item: its name, or the constant itself. exact: no arithmetic of floats has rounded it."""

    item: object
    dtype: str
    shape: Shape
    exact: bool = True


class Operands:
    """A program in the making. values: what ops may read. inputs: name -> (dtype, shape, the least
    value, what is above the largest). states: name -> (dtype, shape). numbers: what constants are
    drawn from."""

    def __init__(self, seed: int):
        self.rng, self.numbers = Random(f"operands {seed}"), np.random.default_rng(seed)
        self.operations: list = []
        self.values: list[Value] = []
        self.inputs: dict[str, tuple] = {}
        self.states: dict[str, tuple[str, Shape]] = {}
        self.weights: list[tuple[int, bytes]] = []
        self.sizes = self.rng.sample(SIZES, 4)

    # --- writing ------------------------------------------------------------------------------

    def write(self, path: Path, outputs: list[str]) -> Path:
        inputs = {name: typed(dtype, *shape) for name, (dtype, shape, *_) in self.inputs.items()}
        for name, (dtype, shape) in self.states.items():
            inputs[name] = typed(dtype, *shape, kind="state")
        return write(path, self.operations, outputs, inputs, self.weights)

    def several(self, kind: str, made: list[tuple[str, Shape]], /, **inputs) -> list[Value]:
        """An op with some results. An input is a value, several, or what becomes a constant."""
        taken = [v for x in inputs.values() for v in (x if isinstance(x, list) else [x])]
        exact = all(v.exact for v in taken if isinstance(v, Value))
        given = {key: self._item(x) for key, x in inputs.items()}
        found = []
        for dtype, shape in made:
            whole = dtype not in FLOATS
            name, kept = f"v{len(self.operations)}_{len(found)}", kind in MOVES or whole
            found.append(Value(name, dtype, tuple(map(int, shape)), exact and kept))
        types = {v.item: typed(v.dtype, *v.shape) for v in found}
        self.operations.append(op(kind, types, **given))
        self.values += [v for v in found if v.dtype in DTYPES]
        return found

    def add(self, kind: str, dtype: str, shape: Shape, /, **inputs) -> Value:
        return self.several(kind, [(dtype, shape)], **inputs)[0]

    def _item(self, x: object) -> object:
        if isinstance(x, Value):
            return x.item
        if isinstance(x, list) and x and isinstance(x[0], Value):
            return [v.item for v in x]
        return const(x)

    # --- where values come from ---------------------------------------------------------------

    def array(self, dtype: str, shape: Shape) -> np.ndarray:
        """Floats between 1/4 and 2 of either sign, small whole numbers, truth values."""
        if dtype in FLOATS:
            signs = self.numbers.choice([-1, 1], shape)
            return (signs * self.numbers.uniform(0.25, 2, shape)).astype(DTYPES[dtype])
        low, high = (0, 2) if dtype == "bool" else (-9, 9)
        return self.numbers.integers(low, high, shape).astype(DTYPES[dtype])

    def constant(self, dtype: str, shape: Shape, array: np.ndarray | None = None) -> Value:
        """In the weight file, in the program with a name, or in the op that reads it."""
        array, how = self.array(dtype, shape) if array is None else array, self.rng.random()
        if how < 0.15:
            return Value(const(array), dtype, shape)
        if how < 0.6 or dtype not in FLOATS:
            value = const(array)
        else:
            at = 64 + sum(64 + len(data) + -len(data) % 64 for _, data in self.weights)
            self.weights.append(({"fp16": 1, "fp32": 2}[dtype], array.tobytes()))
            value = blob(typed(dtype, *shape), at)
        name = f"c{len(self.operations)}"
        self.operations.append(op("const", {name: typed(dtype, *shape)}, val=value))
        self.values.append(Value(name, dtype, shape))
        return self.values[-1]

    def given(self, dtype: str, shape: Shape, low: object = None, high: object = None) -> Value:
        """An input; a constant where there are many."""
        if len(self.inputs) > 5 and low is None:
            return self.constant(dtype, shape)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = dtype, shape, low, high
        self.values.append(Value(name, dtype, shape))
        return self.values[-1]

    def shape(self, rank: int, largest: int = LARGEST) -> Shape:
        made: list[int] = []
        for _ in range(rank):
            fitting = [n for n in self.sizes if n * prod(made) <= largest]
            made.append(self.rng.choice([1, *fitting, *fitting]))
        return tuple(self.rng.sample(made, rank))

    def some(self, *more: int) -> int:
        return self.rng.choice([*self.sizes, *self.sizes, *SIZES, *more])

    def operand(self, dtype: str, shape: Shape, exact: bool = False, depth: int = 2) -> Value:
        """Any value of a dtype and shape."""
        made = [v for v in self.values if (v.dtype, v.shape) == (dtype, shape)]
        made = [v for v in made if v.exact or not exact]
        ways: list[Callable[[], Value]] = [lambda: self.constant(dtype, shape)] * 3
        ways += [lambda: self.given(dtype, shape)]
        ways += [lambda: self.rng.choice(made)] * (4 if made else 0)
        if depth and prod(shape) <= 2 * LARGEST:
            moves = [self.turned, self.turned, self.part, self.halved, self.shaped, self.repeated]
            moves += [self.joined, self.converted, self.updated, self.picked]
            move = self.rng.choice(moves)
            ways += [lambda: move(dtype, shape, lambda d, s: self.operand(d, s, exact, depth - 1))]
            ways += ways[-1:] * 5
            if dtype in FLOATS and not exact:
                ways += [lambda: self.computed(dtype, shape, depth)] * 2
        return self.rng.choice(ways)()

    def made(self, dtype: str, shape: Shape) -> Value:
        """An operand that is mostly computed, as what kernels of groups take is."""
        if self.rng.random() < 0.6:
            return self.computed(dtype, shape, 1)
        return self.operand(dtype, shape, depth=1)

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that broadcasts to this one."""
        kept = tuple(n if self.rng.random() < 0.7 else 1 for n in shape)
        return kept[self.rng.choice([0, 0, self.rng.randrange(len(shape) + 1)]) :]

    # --- operands made of others --------------------------------------------------------------

    def computed(self, dtype: str, shape: Shape, depth: int) -> Value:
        kind = self.rng.choice(["add", "sub", "mul", "mul", "silu", "relu"])
        x = self.operand(dtype, shape, depth=depth - 1)
        if kind in ("silu", "relu"):
            return self.add(kind, dtype, shape, x=x)
        y = self.operand(dtype, self.broadcast(shape), depth=depth - 1)
        x, y = self.rng.sample([x, y], 2)
        return self.add(kind, dtype, shape, x=x, y=y)

    def turned(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        perm = self.rng.sample(range(len(shape)), len(shape))
        whole = tuple(shape[perm.index(axis)] for axis in range(len(shape)))
        return self.add("transpose", dtype, shape, x=operand(dtype, whole), perm=perm)

    def axis(self, shape: Shape) -> int:
        return self.rng.randrange(len(shape))

    def part(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """A slice, forwards or backwards, in steps, or one place of an axis that is left out."""
        if self.rng.random() < 0.3:
            at, size = self.rng.randrange(len(shape) + 1), self.rng.randrange(1, 4)
            x, place = operand(dtype, (*shape[:at], size, *shape[at:])), self.rng.randrange(size)
            begin = [0] * at + [place] + [0] * (len(shape) - at)
            end = [*shape[:at], place + 1, *shape[at:]]
            squeezed = [axis == at for axis in range(len(end))]
            return self.add("slice_by_index", dtype, shape, x=x, begin=begin, end=end,
                            squeeze_mask=np.array(squeezed))  # fmt: skip
        if not shape:
            return operand(dtype, shape)
        axis, step = self.axis(shape), self.rng.choice([1, 1, 1, 2, 3, -1])
        first, n = self.rng.randrange(3), shape[axis]
        size = first + (n - 1) * abs(step) + 1 + self.rng.randrange(3)
        x = operand(dtype, (*shape[:axis], size, *shape[axis + 1 :]))
        begin, end, stride = [0] * len(shape), [*shape], [1] * len(shape)
        begin[axis], end[axis], stride[axis] = first, first + (n - 1) * step + 1, step
        if step == 1 and self.rng.random() < 0.4:
            return self.add("slice_by_size", dtype, shape, x=x, begin=begin, size=[*shape])
        if step < 0:
            begin[axis], end[axis] = first + n - 1, first - 1
        masked = [a == axis and step < 0 and first == 0 for a in range(len(shape))]
        return self.add("slice_by_index", dtype, shape, x=x, begin=begin, end=end, stride=stride,
                        end_mask=np.array(masked))  # fmt: skip

    def halved(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """One result of a split."""
        if not shape:
            return operand(dtype, shape)
        axis, count = self.axis(shape), self.rng.choice([2, 2, 3])
        even, place = self.rng.random() < 0.5, self.rng.randrange(count)
        sizes = [shape[axis] if even or i == place else 1 + i for i in range(count)]
        shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in sizes]
        x = operand(dtype, (*shape[:axis], sum(sizes), *shape[axis + 1 :]))
        how = {"num_splits": count} if even else {"split_sizes": sizes}
        return self.several("split", [(dtype, s) for s in shapes], x=x, axis=axis, **how)[place]

    def shaped(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """Of another shape with as many elements."""
        axis = self.rng.randrange(len(shape) + 1)
        longer, ones = (*shape[:axis], 1, *shape[axis:]), [i for i, n in enumerate(shape) if n == 1]
        kinds = ["squeeze", *(["reshape"] if shape else []), *(["expand_dims"] if ones else [])]
        kind = self.rng.choice([*kinds, *(["flatten2d"] * 2 if len(shape) == 2 else [])])
        if kind == "squeeze":
            return self.add(kind, dtype, shape, x=operand(dtype, longer), axes=[axis])
        if kind == "expand_dims":
            axis = self.rng.choice(ones)
            x = operand(dtype, (*shape[:axis], *shape[axis + 1 :]))
            return self.add(kind, dtype, shape, x=x, axes=[axis])
        if kind == "flatten2d":
            return self.add(kind, dtype, shape, x=operand(dtype, (shape[0], 1, shape[1])))
        whole = self.rng.choice([(prod(shape),), shape[::-1], longer, (*shape[::-1], 1)])
        return self.add(kind, dtype, shape, x=operand(dtype, whole), shape=[*shape])

    def repeated(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """Tiled, along an axis of one or another."""
        if not shape:
            return self.add("identity", dtype, shape, x=operand(dtype, shape))
        axis = self.axis(shape)
        divisors = [n for n in (1, 2, 3, 4, shape[axis]) if shape[axis] % n == 0]
        times = self.rng.choice(divisors)
        whole = (*shape[:axis], shape[axis] // times, *shape[axis + 1 :])
        reps = [times if a == axis else 1 for a in range(len(shape))]
        return self.add("tile", dtype, shape, x=operand(dtype, whole), reps=reps)

    def joined(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """Of two or three, one behind the other, or stacked."""
        axes = [axis for axis, n in enumerate(shape) if n > 1]
        if not axes:
            return self.add("identity", dtype, shape, x=operand(dtype, shape))
        axis = self.rng.choice(axes)
        n, before, after = shape[axis], shape[:axis], shape[axis + 1 :]
        if n < 4 and self.rng.random() < 0.5:
            parts = [operand(dtype, (*before, *after)) for _ in range(n)]
            return self.add("stack", dtype, shape, values=parts, axis=axis)
        first = self.rng.randrange(1, n)
        parts = [operand(dtype, (*before, size, *after)) for size in (first, n - first)]
        if 2 * first == n and self.rng.random() < 0.5:
            parts[1] = self.rng.choice(parts)  # one twice
        interleaved = 2 * first == n and self.rng.random() < 0.3
        return self.add("concat", dtype, shape, values=parts, axis=axis, interleave=interleaved)

    def converted(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        others = {"fp16": ["fp32", "int32", "bool"], "fp32": ["fp16", "int32", "bool"],
                  "int32": ["bool", *NARROW], "bool": ["int32"]}  # fmt: skip
        other = self.rng.choice(others[dtype])
        if other in NARROW:
            narrow = self.add("cast", other, shape, x=operand(dtype, shape), dtype=other)
            return self.add("cast", dtype, shape, x=narrow, dtype=dtype)
        return self.add("cast", dtype, shape, x=operand(other, shape), dtype=dtype)

    def updated(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """A slice replaced, or taken, at a place that is known, or is not until the call."""
        if not shape:
            return operand(dtype, shape)
        size = [self.rng.randrange(1, n + 1) for n in shape]
        begin, end = self.place(shape, size)
        x, update = operand(dtype, shape), operand(dtype, (*size,))
        return self.add("slice_update", dtype, shape, x=x, update=update, begin=begin, end=end)

    def place(self, shape: Shape, size: list[int]) -> tuple:
        """Where a slice of this size begins and ends."""
        room = np.array(shape) - size + 1
        if self.rng.random() < 0.4:
            begin = self.numbers.integers(0, room).astype(np.int32)
            return begin, begin + np.array(size, np.int32)
        begin = self.given("int32", (len(shape),), 0, room)
        end = self.add("add", "int32", begin.shape, x=begin, y=np.array(size, np.int32))
        return begin, end

    def cached(self, dtype: str, shape: Shape) -> Value:
        """A state of which a part is written, as it is then or was before."""
        name, size = f"s{len(self.states)}", [self.rng.randrange(1, n + 1) for n in shape]
        self.states[name] = dtype, shape
        state = Value(name, dtype, shape, exact=False)
        before = self.add("read_state", dtype, shape, input=state)
        update, (begin, end) = self.operand(dtype, (*size,), depth=1), self.place(shape, size)
        after = self.add(
            "slice_update", dtype, shape, x=before, update=update, begin=begin, end=end
        )
        self.several("write_state", [], input=state, data=after)
        return self.rng.choice([before, after, self.add("read_state", dtype, shape, input=state)])

    def picked(self, dtype: str, shape: Shape, operand: Callable) -> Value:
        """Rows that indices choose, or a slice at a place that is not known until the call."""
        if not shape or self.rng.random() < 0.3:
            whole = tuple(n + self.rng.randrange(3) for n in shape)
            begin, end = self.place(whole, [*shape]) if shape else ([], [])
            x = operand(dtype, whole)
            if not shape:
                return x
            return self.add("slice_by_index", dtype, shape, x=x, begin=begin, end=end)
        axis, rank = self.axis(shape), self.rng.choice([1, 1, 2])
        rank = min(rank, len(shape) - axis)
        size, taken = self.rng.randrange(1, 9), shape[axis : axis + rank]
        indices = self.indices(taken, size)
        x = operand(dtype, (*shape[:axis], size, *shape[axis + rank :]))
        checked = self.rng.choice([{}, {"validate_indices": self.rng.random() < 0.5}])
        return self.add("gather", dtype, shape, x=x, indices=indices, axis=axis, **checked)

    def indices(self, shape: Shape, size: int) -> Value:
        if self.rng.random() < 0.5:
            return self.given("int32", shape, 0, size)
        array = self.numbers.integers(0, size, shape).astype(np.int32)
        return self.constant("int32", shape, array)

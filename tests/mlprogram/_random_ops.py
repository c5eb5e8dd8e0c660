"""Random programs on floats, whole numbers and truth values, and inputs for them."""

from pathlib import Path
from random import Random

from _package import const, op, typed, write
import numpy as np

__all__ = ["Random3", "numbers"]

X, NUMBERS = typed("fp32", 2, 4, 6), typed("int32", 2, 4, 6)


class Random3:
    """Random ops on floats of both precisions, on whole numbers and truth values, of three axes,
    with broadcasting, odd strides, and positions and indices that are known at run time only."""

    def __init__(self, seed: int):
        self.rng, self.operations = Random(f"stretches {seed}"), []
        self.values = {"x": ("fp32", (2, 4, 6))}
        self.wholes, self.truths = {"i": ("int32", (2, 4, 6))}, {}
        self.add("cast", "fp16", (2, 4, 6), x="x", dtype=const("fp16"))
        self.whole("x"), self.compare("x")
        kinds = [self.arithmetic, self.move, self.move, self.join, self.kernel, self.kernel]
        kinds += [self.whole, self.compare, self.choose, self.place, self.gather, self.einsum]
        for _ in range(14):
            name = self.rng.choice([*self.values])
            self.rng.choice(kinds)(name)

    def write(self, path: Path) -> Path:
        names = self.rng.sample([*self.values], 4)
        return write(path, self.operations, names, {"x": X, "i": NUMBERS, "k": typed("int32", 3)})

    def add(self, kind: str, dtype: str, shape: tuple[int, ...], /, **inputs) -> str:
        name = f"v{len(self.operations)}"
        self.operations.append(op(kind, {name: typed(dtype, *shape)}, **inputs))
        to = self.wholes if dtype == "int32" else self.truths if dtype == "bool" else self.values
        to[name] = dtype, shape
        return name

    def fitting(self, values: dict, dtype: str, shape: tuple[int, ...]) -> tuple:
        """A value of a dtype that broadcasts with a shape."""
        return self.rng.choice([
            (n, s)
            for n, (d, s) in values.items()
            if d == dtype and all(a == b or 1 in (a, b) for a, b in zip(s, shape, strict=True))
        ])  # fmt: skip

    def whole(self, _: str) -> None:
        x, (dtype, shape) = self.rng.choice([*self.wholes.items()])
        y, other = self.fitting(self.wholes, dtype, shape)
        made = np.broadcast_shapes(shape, other)
        kind = self.rng.choice(["add", "sub", "mul", "minimum", "maximum", "cast", "short"])
        if kind == "cast":
            to = self.rng.choice(["fp16", "fp32"])
            self.add(kind, to, shape, x=x, dtype=const(to))
        elif kind == "short":
            name = f"short{len(self.operations)}"
            made = {name: typed("int8", *shape)}
            self.operations.append(op("cast", made, x=x, dtype=const("int8")))
            self.add("cast", "int32", shape, x=name, dtype=const("int32"))
        else:
            self.add(kind, dtype, made, x=x, y=y)

    def compare(self, _: str) -> None:
        values = self.rng.choice([self.wholes, self.values])
        x, (dtype, shape) = self.rng.choice([*values.items()])
        y, other = self.fitting(values, dtype, shape)
        kind = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
        self.add(self.rng.choice(kind), "bool", np.broadcast_shapes(shape, other), x=x, y=y)

    def choose(self, x: str) -> None:
        values = self.rng.choice([self.wholes, self.values])
        x, (dtype, shape) = self.rng.choice([*values.items()])
        y, other = self.fitting(values, dtype, shape)
        made = np.broadcast_shapes(shape, other)
        fitting = [
            (n, s) for n, (_, s) in self.truths.items()
            if all(a == b or 1 in (a, b) for a, b in zip(s, made, strict=True))
        ]  # fmt: skip
        if fitting:
            cond, chosen = self.rng.choice(fitting)
            made = np.broadcast_shapes(made, chosen)
            self.add("select", dtype, made, cond=cond, a=x, b=y)

    def place(self, x: str) -> None:
        """A slice at a position that is known at run time only, or an update there."""
        values = self.rng.choice([self.wholes, self.values])
        x, (dtype, shape) = self.rng.choice([*values.items()])
        size = [self.rng.randrange(1, 1 + min(n, 2)) for n in shape]
        end = f"end{len(self.operations)}"
        made = {end: typed("int32", 3)}
        self.operations.append(op("add", made, x="k", y=const(np.array(size, np.int32))))
        update = [n for n, t in values.items() if t == (dtype, (*size,))]
        if update and self.rng.random() < 0.7:
            given = {"x": x, "update": update[0], "begin": "k", "end": end}
            self.add("slice_update", dtype, shape, **given)
        else:
            self.add("slice_by_index", dtype, (*size,), x=x, begin="k", end=end)

    def gather(self, x: str) -> None:
        dtype, shape = self.values[x]
        axis = self.rng.randrange(3)
        made = (*shape[:axis], 3, *shape[axis + 1 :])
        checked = const(self.rng.random() < 0.5)
        self.add("gather", dtype, made, x=x, indices="k", axis=const(axis),
                 validate_indices=checked)  # fmt: skip

    def einsum(self, x: str) -> None:
        dtype, (a, b, c) = self.values[x]
        if a * b * a < 400:
            turned = self.add("transpose", dtype, (c, b, a), x=x, perm=const([2, 1, 0]))
            left, right, made = self.rng.choice([(x, turned, a), (turned, x, c)])
            self.add("einsum", dtype, (made, b, made), values=[left, right],
                     equation=const("chw,whr->chr"))  # fmt: skip

    def arithmetic(self, x: str) -> None:
        dtype, shape = self.values[x]
        y, other = self.fitting(self.values, dtype, shape)
        kind = self.rng.choice(["add", "sub", "mul", "real_div"])
        self.add(kind, dtype, np.broadcast_shapes(shape, other), x=x, y=y)

    def move(self, x: str) -> None:
        dtype, (a, b, c) = self.values[x]
        kind = self.rng.choice(["transpose", "reshape", "slice", "tile", "cast", "update"])
        if kind == "transpose":
            perm = self.rng.sample(range(3), 3)
            self.add(kind, dtype, tuple((a, b, c)[i] for i in perm), x=x, perm=const(perm))
        elif kind == "reshape":
            self.add(kind, dtype, (c, a, b), x=x, shape=const([c, a, b]))
        elif kind == "slice":
            step, begin = self.rng.choice([1, 2]), self.rng.randrange(c)
            size, kind = -(-(c - begin) // step), "slice_by_index"
            given = {"begin": [0, 0, begin], "end": [a, b, c], "stride": [1, 1, step]}
            self.add(kind, dtype, (a, b, size), x=x, **{k: const(v) for k, v in given.items()})
        elif kind == "tile" and a * b * c < 400:
            self.add(kind, dtype, (a, 2 * b, c), x=x, reps=const([1, 2, 1]))
        elif kind == "cast":
            other = {"fp16": "fp32", "fp32": "fp16"}[dtype]
            self.add(kind, other, (a, b, c), x=x, dtype=const(other))
        elif kind == "update":
            rows = [n for n, t in self.values.items() if t == (dtype, (1, b, c))] or [x]
            given = {"begin": [0, 0, 0], "end": [self.values[rows[0]][1][0], b, c]}
            given = {k: const(v) for k, v in given.items()}
            self.add("slice_update", dtype, (a, b, c), x=x, update=rows[0], **given)

    def join(self, x: str) -> None:
        dtype, (a, b, c) = self.values[x]
        if a * b * c < 400:
            self.add("concat", dtype, (a, b, 2 * c), values=[x, x], axis=const(2),
                     interleave=const(False))  # fmt: skip

    def kernel(self, x: str) -> None:
        dtype, shape = self.values[x]
        kind = self.rng.choice(
            ["softmax", "layer_norm", "silu", "gelu", "sigmoid", "tanh", "exp", "cos", "sin"]
        )
        more = {"layer_norm": {"axes": const([2])}, "gelu": {"mode": const("EXACT")}}.get(kind, {})
        if kind == "softmax":
            more = {"axis": const(self.rng.randrange(3))}
        self.add(kind, dtype, shape, x=x, **more)


def numbers(seed: int) -> dict[str, np.ndarray]:
    """Input with numbers that overflow, vanish, or are none, in half precision or in both."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 4, 6)).astype(np.float32) * 10.0 ** rng.integers(-4, 5, (2, 4, 6))
    x[0, 0, : seed % 4] = (np.inf, -np.inf, np.nan)[: seed % 4]
    whole = rng.integers(-99, 99, (2, 4, 6)) ** rng.integers(1, 5, (2, 4, 6))
    places = rng.integers(-3 if seed % 5 == 4 else 0, 2, 3)
    return {"x": x.astype(np.float32), "i": whole.astype(np.int32), "k": places.astype(np.int32)}

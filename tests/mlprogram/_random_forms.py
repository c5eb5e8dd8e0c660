"""Random programs of every op and group of ops that has a compiled kernel, or is recorded.

Their operands are those of `_random_ops.py`. What is computed stays near 1, so that the ops one by
one give nearly the same: functions that would make more of an error take what nothing has rounded.
"""

from math import prod
from pathlib import Path

from _package import const
from _random_attention import Attention
from _random_ops import DTYPES, LARGEST, Shape, Value
import numpy as np

FORMS = 5  # of a program
ARITHMETIC = ["add", "sub", "mul", "real_div", "maximum", "minimum"]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
DEEP = (127, 128, 129, 255, 257, 767, 768, 769)  # what is summed at a time


class RandomProgram(Attention):
    """The program of a seed. outputs: the names of its outputs."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.given("fp32", self.shape(3))
        forms = [
            self.elementwise, self.whole, self.compare, self.choose, self.moves, self.gathered,
            self.softmax, self.layer_norm, self.activation, self.matmul, self.matmul, self.product,
            self.conv, self.einsum, self.einsum, self.reduce, self.norm_of_pair,
            self.norm_spelled_out, self.rotary, self.gated, self.attention, self.attention,
            self.attention_in_parts, self.remember, self.rotary,
        ]  # fmt: skip
        for form in self.rng.choices(forms, k=FORMS):
            form(self.rng.choice(["fp32", "fp16"]))
        made = [v.item for v in self.values if v.dtype != "bool" and str(v.item).startswith("v")]
        self.outputs = [*dict.fromkeys([*self.rng.sample(made, min(3, len(made))), *made[-2:]])]

    def save(self, path: Path) -> Path:
        return self.write(path, self.outputs)

    def arrays(self, seed: int, wild: bool = False) -> dict[str, np.ndarray]:
        """Inputs. wild: floats that overflow, vanish or are none, and places that are not there."""
        self.numbers, found = np.random.default_rng(seed), {}
        for name, (dtype, shape, low, high) in self.inputs.items():
            if low is not None:
                high = np.maximum(high + (self.numbers.integers(-1, 2) if wild else 0), low + 1)
                found[name] = self.numbers.integers(low, high, shape).astype(np.int32)
            else:
                array = self.array(dtype, shape)
                found[name] = self.spoilt(array) if wild and array.dtype.kind == "f" else array
        return found

    def spoilt(self, array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            powers = 10.0 ** self.numbers.integers(-4, 5, array.shape)
            found = np.array(array * powers, array.dtype)
        found.reshape(-1)[:3] = [np.inf, -np.inf, np.nan][: found.size]
        return found

    # --- ops of single values, and moves ------------------------------------------------------

    def pair(self, dtype: str, shape: Shape, exact: bool = False) -> list[Value]:
        """Two operands that broadcast to a shape."""
        both = [shape, self.broadcast(shape)]
        return [self.operand(dtype, s, exact) for s in self.rng.sample(both, 2)]

    def elementwise(self, dtype: str) -> None:
        shape, kind = self.shape(3), self.rng.choice(ARITHMETIC)
        x, y = self.pair(dtype, shape)
        if kind == "real_div":  # by what is not near 0
            y = self.rng.choice([self.constant, self.given])(dtype, y.shape)
        self.add(kind, dtype, shape, x=x, y=y)

    def whole(self, _: str) -> None:
        shape, kind = self.shape(3), self.rng.choice(["add", "sub", "mul", "minimum", "maximum"])
        x, y = self.pair("int32", shape)
        self.add(kind, "int32", shape, x=x, y=y)

    def compare(self, dtype: str) -> None:
        shape = self.shape(3)
        x, y = self.pair(self.rng.choice([dtype, "int32"]), shape, exact=True)
        if self.rng.random() < 0.3:
            y = x
        made = np.broadcast_shapes(x.shape, y.shape)
        self.add(self.rng.choice(COMPARISONS), "bool", made, x=x, y=y)

    def choose(self, dtype: str) -> None:
        shape = self.shape(3)
        a, b = self.pair(self.rng.choice([dtype, "int32"]), shape)
        cond = self.operand("bool", self.rng.choice([shape, self.broadcast(shape)]))
        self.add("select", a.dtype, shape, cond=cond, a=a, b=b)

    def moves(self, dtype: str) -> None:
        """Several, one of the other."""
        dtype = self.rng.choice([dtype, dtype, "int32"])
        x = self.operand(dtype, self.shape(self.rng.randrange(1, 5)), depth=4)
        self.add("identity", dtype, x.shape, x=x)

    def remember(self, dtype: str) -> None:
        """A state, which other ops may read from now on."""
        x = self.cached(dtype, self.shape(3))
        self.add("add", dtype, x.shape, x=x, y=self.operand(dtype, self.broadcast(x.shape)))

    def gathered(self, dtype: str) -> None:
        shape = self.shape(3)
        self.picked(dtype, shape, lambda dtype, shape: self.operand(dtype, shape, depth=2))

    def activation(self, dtype: str) -> None:
        kinds = ["silu", "gelu", "sigmoid", "tanh", "exp", "cos", "sin"]
        kind, shape = self.rng.choice(kinds), self.shape(self.rng.randrange(1, 4))
        modes = ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"]
        more = {"mode": self.rng.choice(modes)} if kind == "gelu" else {}
        x = self.operand(dtype, shape, exact=kind in ("exp", "cos", "sin"))
        self.add(kind, dtype, shape, x=x, **more)

    # --- along axes ---------------------------------------------------------------------------

    def softmax(self, dtype: str) -> None:
        shape = self.shape(3, 3 * LARGEST)
        axis = self.axis(shape) - self.rng.choice([0, 3])
        self.add("softmax", dtype, shape, x=self.operand(dtype, shape), axis=axis)

    def layer_norm(self, dtype: str) -> None:
        shape = self.shape(self.rng.randrange(1, 5))
        first = self.axis(shape)
        axes = [*range(first, self.rng.randrange(first, len(shape)) + 1)]
        sizes = tuple(shape[axis] for axis in axes)
        factors = {key: self.factor(dtype, sizes) for key in ("gamma", "beta")}
        given = {key: v for key, v in factors.items() if self.rng.random() < 0.6}
        axes = [axis - self.rng.choice([0, len(shape)]) for axis in axes]
        x = self.operand(dtype, shape)
        self.add("layer_norm", dtype, shape, x=x, axes=axes, epsilon=0.25, **given)

    def factor(self, dtype: str, shape: Shape) -> Value:
        """Mostly a constant, as weights are."""
        return (
            self.constant(dtype, shape) if self.rng.random() < 0.8 else self.operand(dtype, shape)
        )

    def reduce(self, dtype: str) -> None:
        shape, kept = self.shape(3), self.rng.random() < 0.5
        axis, kind = self.axis(shape), self.rng.choice(["sum", "mean", "max", "min"])
        made = (*shape[:axis], *([1] if kept else []), *shape[axis + 1 :])
        x = self.operand(dtype, shape)
        self.add(f"reduce_{kind}", dtype, made, x=x, axes=[axis], keep_dims=kept)

    def norm_of_pair(self, dtype: str) -> None:
        shape = self.shape(self.rng.choice([2, 3, 4]))
        axis = self.axis(shape)
        twice = tuple(2 * n if i == axis else n for i, n in enumerate(shape))
        x = self.made(dtype, shape)
        minus = self.add("mul", dtype, shape, x=x, y=np.array(-1, DTYPES[dtype]))
        both = self.add("concat", dtype, twice, values=[x, minus], axis=axis, interleave=False)
        norm = self.add("layer_norm", dtype, twice, x=both, axes=[axis], epsilon=0.25)
        if self.rng.random() < 0.5:
            half = self.several("split", [(dtype, shape)] * 2, x=norm, num_splits=2, axis=axis)[0]
        else:
            given = {"begin": [0] * len(shape), "end": [*shape]}
            half = self.add("slice_by_index", dtype, shape, x=norm, **given)
        self.weighted(dtype, half, axis)

    def weighted(self, dtype: str, x: Value, axis: int) -> None:
        """Times a weight along an axis; or not."""
        if self.rng.random() < 0.8:
            sizes = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
            self.add("mul", dtype, x.shape, x=x, y=self.factor(dtype, sizes))

    def norm_spelled_out(self, dtype: str) -> None:
        shape, how = self.shape(self.rng.choice([2, 3])), self.rng.randrange(3)
        axis, x = self.axis(shape), self.made(dtype, shape)
        widened = self.rng.random() < 0.5
        inner = "fp32" if widened else dtype
        wide = self.add("cast", "fp32", shape, x=x, dtype="fp32") if widened else x
        square = [{"y": np.array(2, DTYPES[inner])}, {"y": wide}, {}][how]
        squares = self.add(["pow", "mul", "square"][how], inner, shape, x=wide, **square)
        mean = (*shape[:axis], 1, *shape[axis + 1 :])
        means = self.add("reduce_mean", inner, mean, x=squares, axes=[axis], keep_dims=True)
        more = self.add("add", inner, mean, x=means, y=np.array(0.25, DTYPES[inner]))
        root = self.add("rsqrt", inner, mean, x=more, epsilon=np.array(0.125, DTYPES[inner]))
        normal = self.add("mul", inner, shape, x=wide, y=root)
        late = self.rng.random() < 0.5
        if late:
            self.weighted(inner, normal, axis)
        if widened:
            narrow = self.add("cast", dtype, shape, x=self.values[-1], dtype=dtype)
            self.weighted(dtype, narrow, axis)

    def rotary(self, dtype: str) -> None:
        *batch, size, other = self.shape(self.rng.choice([2, 3, 4]), LARGEST // 2)
        along = self.rng.choice([-1, -2])
        whole = [*batch, size, other]
        half = tuple(whole)
        whole[along] *= 2
        shape, axis = tuple(whole), len(whole) + along
        x, tables = self.made(dtype, shape), shape[min(along, -2) :]
        if self.rng.random() < 0.5:
            first, second = self.several("split", [(dtype, half)] * 2, x=x, num_splits=2, axis=axis)
        else:
            middle = [n if i == axis else 0 for i, n in enumerate(half)]
            first = self.add("slice_by_index", dtype, half, x=x, begin=[0] * len(half), end=[*half])
            second = self.add("slice_by_index", dtype, half, x=x, begin=middle, end=[*shape])
        joined = {"axis": along, "interleave": False}
        if self.rng.random() < 0.5:
            minus = self.add("mul", dtype, half, x=second, y=np.array(-1, DTYPES[dtype]))
            second = self.rng.choice([minus, minus, second])
            turned = self.add("concat", dtype, shape, values=[second, first], **joined)
            cos, sin = (self.made(dtype, tables) for _ in range(2))
            parts = [self.add("mul", dtype, shape, x=x, y=cos)]
            parts += [self.add("mul", dtype, shape, x=turned, y=sin)]
            self.add("add", dtype, shape, x=parts[0], y=parts[1])
            return
        cos, sin = (self.made(dtype, half[min(along, -2) :]) for _ in range(2))
        pairs = [(first, cos), (second, sin), (second, cos), (first, sin)]
        products = [self.add("mul", dtype, half, x=a, y=b) for a, b in pairs]
        halves = [self.add("sub", dtype, half, x=products[0], y=products[1])]
        halves += [self.add("add", dtype, half, x=products[2], y=products[3])]
        self.add("concat", dtype, shape, values=halves, **joined)

    def gated(self, dtype: str) -> None:
        shape = self.shape(self.rng.choice([1, 2, 3]))
        gate = self.add("silu", dtype, shape, x=self.made(dtype, shape))
        self.add("mul", dtype, shape, x=gate, y=self.made(dtype, shape))

    # --- products -----------------------------------------------------------------------------

    def matmul(self, dtype: str) -> None:
        batch = self.shape(self.rng.choice([0, 0, 1, 2]), 6)
        rows, depth, columns = self.some(), self.some(*DEEP), self.some()
        turns = [self.rng.random() < 0.2, self.rng.random() < 0.5]
        x, y = (*batch, rows, depth), (*batch, depth, columns)
        x = (*batch, depth, rows) if turns[0] else x
        y = (*batch, columns, depth) if turns[1] else y
        if self.rng.random() < 0.3:
            y = y[-2:]
        self.add("matmul", dtype, (*batch, rows, columns), x=self.operand(dtype, x, depth=1),
                 y=self.operand(dtype, y), transpose_x=turns[0], transpose_y=turns[1])  # fmt: skip

    def weight(self, dtype: str, shape: Shape) -> Value:
        """A matrix, as it is or as int8 with a scale for each row."""
        if self.rng.random() < 0.7:
            return self.factor(dtype, shape)
        data = self.numbers.integers(-127, 128, shape).astype(np.int32)
        scale = self.numbers.uniform(0.2, 1, (shape[0], *[1] * (len(shape) - 1))) / 64
        data = Value(const(data, "int8"), "int8", shape)
        name = "constexpr_blockwise_shift_scale"
        return self.add(name, dtype, shape, data=data, scale=scale.astype(DTYPES[dtype]))

    def product(self, dtype: str) -> None:
        batch, depth, made = self.shape(self.rng.choice([1, 2])), self.some(*DEEP), self.some()
        bias = {"bias": self.factor(dtype, (made,))} if self.rng.random() < 0.5 else {}
        batch = batch if prod(batch) <= 70 else batch[:1]
        self.add("linear", dtype, (*batch, made), x=self.operand(dtype, (*batch, depth), depth=1),
                 weight=self.weight(dtype, (made, depth)), **bias)  # fmt: skip

    def conv(self, dtype: str) -> None:
        axes = self.rng.choice([1, 2])
        spatial = self.shape(axes, 70)
        batch, depth, made = self.rng.choice([1, 1, 2]), self.some(), self.some()
        bias = {"bias": self.factor(dtype, (made,))} if self.rng.random() < 0.5 else {}
        weight = self.weight(dtype, (made, depth, *[1] * axes))
        x = self.operand(dtype, (batch, depth, *spatial), depth=1)
        self.add("conv", dtype, (batch, made, *spatial), x=x, weight=weight, strides=[1] * axes,
                 pad_type="valid", pad=[0] * 2 * axes, dilations=[1] * axes, groups=1,
                 **bias)  # fmt: skip

    def einsum(self, dtype: str) -> None:
        batch = self.rng.choice([(), (), (1,), (2,), (3,)])
        rows, heads, depth = self.some(), self.rng.choice([1, 2, 3, 5]), self.some()
        columns = self.some(16, 17)
        x, y = (*batch, rows, heads, depth), (*batch, depth, heads, columns)
        if self.rng.random() < 0.4:  # turned, as it is read without a copy
            perm = [*range(len(batch)), *range(len(x))[:-4:-1]]
            turned = self.operand(dtype, tuple(x[axis] for axis in perm), depth=1)
            first = self.add("transpose", dtype, x, x=turned, perm=perm)
        else:
            first = self.operand(dtype, x)
        equation = "nchw,nwhu->nchu" if batch else "chw,whr->chr"
        self.add("einsum", dtype, (*batch, rows, heads, columns), equation=equation,
                 values=[first, self.operand(dtype, y)])  # fmt: skip

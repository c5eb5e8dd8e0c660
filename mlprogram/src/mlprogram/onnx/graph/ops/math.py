"""Elementwise arithmetic, activations, and matrix products."""

import numpy as np

from . import Constant, Unsayable, operator
from ._common import (
    Tensor,
    as_float,
    as_int,
    binary,
    first,
    is_float,
    is_int,
    joined,
    like,
    mb,
    one_axis,
    rank,
    select,
    unary,
)

# --- one tensor


for _name in (
    "Abs", "Acos", "Asin", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Round",
    "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
):  # fmt: skip
    unary(_name, _name.lower())

operator("Acosh")(  # log(x + sqrt(x^2 - 1))
    lambda x: mb.log(x=mb.add(x=x, y=mb.sqrt(x=mb.sub(x=mb.mul(x=x, y=x), y=1.0))))
)
operator("Log")(lambda x: mb.log(x=x, epsilon=np.float32(0)))
operator("Neg")(lambda x: mb.mul(x=x, y=like(x, -1)))
operator("Reciprocal")(  # MIL's `inverse` adds something to x first
    lambda x: mb.real_div(x=np.float32(1), y=x)
)


@operator("Asinh")
def asinh(x: Tensor) -> Tensor:
    """sign(x) log(|x| + sqrt(x^2 + 1)), which does not cancel for x far below zero."""
    size = mb.abs(x=x)
    root = mb.sqrt(x=mb.add(x=mb.mul(x=x, y=x), y=1.0))
    return mb.mul(x=mb.sign(x=x), y=mb.log(x=mb.add(x=size, y=root)))


@operator("Sign")
def sign(x: Tensor) -> Tensor:
    return mb.sign(x=x) if is_float(x) else as_int(mb.sign(x=as_float(x)))


# --- activations


operator("Relu")(lambda x: mb.relu(x=x) if is_float(x) else mb.maximum(x=x, y=np.int32(0)))
operator("LeakyRelu")(lambda x, *, alpha=0.01: mb.leaky_relu(x=x, alpha=np.float32(alpha)))
operator("Elu")(lambda x, *, alpha=1.0: mb.elu(x=x, alpha=np.float32(alpha)))
operator("Selu")(
    lambda x, *, alpha=1.6732632423543772, gamma=1.0507009873554805: mb.mul(
        x=mb.elu(x=x, alpha=np.float32(alpha)), y=np.float32(gamma)
    )
)
operator("HardSigmoid")(
    lambda x, *, alpha=0.2, beta=0.5: mb.sigmoid_hard(
        x=x, alpha=np.float32(alpha), beta=np.float32(beta)
    )
)
operator("Gelu")(
    lambda x, *, approximate=b"none": mb.gelu(
        x=x, mode="TANH_APPROXIMATION" if approximate == b"tanh" else "EXACT"
    )
)
operator("Softmax", since=13)(lambda x, *, axis=-1: mb.softmax(x=x, axis=one_axis(axis, rank(x))))


@operator("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """One slope per channel of an image is MIL's own op; other shapes are composed."""
    known = isinstance(slope, np.ndarray)
    if known and rank(x) == 4 and slope.shape == (int(x.shape[1]), 1, 1):
        return mb.prelu(x=x, alpha=slope.reshape(-1))
    low = mb.mul(x=mb.minimum(x=x, y=like(x, 0)), y=slope)
    return mb.add(x=mb.maximum(x=x, y=like(x, 0)), y=low)


@operator("Swish")
def swish(x: Tensor, *, alpha=1.0) -> Tensor:
    if alpha == 1:
        return mb.silu(x=x)
    return mb.mul(x=x, y=mb.sigmoid(x=mb.mul(x=x, y=np.float32(alpha))))


@operator("Shrink")
def shrink(x: Tensor, *, bias=0.0, lambd=0.5) -> Tensor:
    """Move x toward zero by the bias; zero where |x| <= lambd."""
    x = as_float(x)
    far = mb.greater(x=mb.abs(x=x), y=np.float32(lambd))
    nearer = mb.sub(x=x, y=mb.mul(x=mb.sign(x=x), y=np.float32(bias)))
    return select(far, nearer, np.float32(0))


@operator("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """MIL's `clip`, one op on the ANE, if both bounds are constant; else maximum and minimum."""
    limit = np.finfo(np.float32).max
    bounds = [-limit if low is None else low, limit if high is None else high]
    known = all(isinstance(bound, np.ndarray | np.generic) for bound in bounds)
    if known and is_float(x):
        lowest, highest = map(float, bounds)
        if lowest <= highest:
            return mb.clip(x=x, alpha=np.float32(lowest), beta=np.float32(highest))
    x = x if low is None else mb.maximum(x=x, y=low)
    return x if high is None else mb.minimum(x=x, y=high)


@operator("Hardmax", since=13)
def hardmax(x: Tensor, *, axis=-1) -> Tensor:
    """1 at the first largest element, 0 elsewhere."""
    axis = one_axis(axis, rank(x))
    where = mb.reduce_argmax(x=x, axis=axis, keep_dims=False)
    return mb.one_hot(
        indices=where, one_hot_vector_size=int(x.shape[axis]), axis=axis, on_value=1.0,
        off_value=0.0,
    )  # fmt: skip


# --- two tensors and more


binary("Add", "add")
binary("Sub", "sub")
binary("Mul", "mul")


@operator("Div", since=7)
def div(x: Tensor, y: Tensor) -> Tensor:
    """Divide; integers round toward zero, as in C, while MIL's `floor_div` rounds down."""
    if is_float(x):
        return mb.real_div(x=x, y=y)
    size = mb.floor_div(x=mb.abs(x=x), y=mb.abs(x=y))
    return mb.mul(x=size, y=mb.mul(x=sign(x), y=sign(y)))


@operator("Mod")
def mod(x: Tensor, y: Tensor, *, fmod=0) -> Tensor:
    """The remainder with the divisor's sign, or with fmod the dividend's.

    MIL's `mod` has the dividend's sign on a Mac, and the divisor's where coremltools folds
    constants. So it is given no negative numbers.
    """
    if is_int(x) and not fmod:
        return mb.sub(x=x, y=mb.mul(x=mb.floor_div(x=x, y=y), y=y))
    rest = mb.mul(x=sign(x), y=mb.mod(x=mb.abs(x=x), y=mb.abs(x=y)))
    if fmod:
        return rest
    opposite = mb.less(x=mb.mul(x=sign(rest), y=y), y=np.float32(0))
    return select(opposite, mb.add(x=rest, y=y), rest)


@operator("Pow", since=7)
def power(x: Tensor, y: Tensor) -> Tensor:
    """x to the y in x's type; integers are computed in fp32, which is exact up to 2^24."""
    if not is_float(x):
        return as_int(mb.round(x=power(as_float(x), y)))
    # Core ML takes `pow` of a constant 2, or of what fp16 rounds to 2, for the square of y.
    if isinstance(x, np.ndarray) and np.allclose(x, 2, atol=1e-3):
        return mb.exp2(x=mb.mul(x=as_float(y), y=np.log2(x)))
    return mb.pow(x=x, y=as_float(y))


@operator("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: bytes) -> Tensor:
    """x times 2^y, or divided by it and rounded down, in two steps, since 2^32 is no int32.

    A negative y shifts all bits out, as one of the whole width does.
    """
    powers = np.int32(2) ** np.arange(17, dtype=np.int32)
    if isinstance(y, np.ndarray):
        y = np.where(y < 0, 32, y.clip(max=32))
        factors = [powers[by] for by in (y // 2, y - y // 2)]
    else:
        most = np.int32(32)
        y = select(mb.less(x=y, y=np.int32(0)), most, mb.minimum(x=y, y=most))
        half = mb.floor_div(x=y, y=np.int32(2))
        factors = [mb.gather(x=powers, indices=by) for by in (half, mb.sub(x=y, y=half))]
    for factor in factors:
        x = mb.mul(x=x, y=factor) if direction == b"LEFT" else mb.floor_div(x=x, y=factor)
    return x


operator("Max", since=8)(lambda *tensors: joined(tensors, mb.maximum))
operator("Min", since=8)(lambda *tensors: joined(tensors, mb.minimum))
operator("Sum", since=8)(lambda *tensors: joined(tensors, mb.add))


@operator("Mean", since=8)
def mean(*tensors: Tensor) -> Tensor:
    return mb.mul(x=joined(tensors, mb.add), y=np.float32(1 / len(tensors)))


# --- matrices


@operator("MatMul")
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Multiply as numpy does: a vector is a row on the left, a column on the right. Integers are
    computed as real numbers."""
    if is_int(x):
        return as_int(mb.round(x=matmul(as_float(x), as_float(y))))
    left, right = rank(x) == 1, rank(y) == 1
    x = mb.expand_dims(x=x, axes=[0]) if left else x
    y = mb.expand_dims(x=y, axes=[1]) if right else y
    product = mb.matmul(x=x, y=y)
    gone = [-2] * left + [-1] * right
    return mb.squeeze(x=product, axes=gone) if gone else product


@operator("Gemm", since=7)
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha=1.0, beta=1.0, transA=0, transB=0
) -> Tensor:
    """alpha A B + beta C; alpha is folded into a constant B."""
    if is_int(a):
        raise Unsayable("products of whole numbers")
    if isinstance(b, np.ndarray) and not transA:
        weight = np.asarray(b if transB else b.T, np.float32)
        weight = weight if alpha == 1 else weight * np.float32(alpha)
        if isinstance(c, np.ndarray) and c.shape in [(len(weight),), (1, len(weight))]:
            bias = c.reshape(-1) * np.float32(beta)
            return mb.linear(x=a, weight=weight, bias=bias)
        product = mb.linear(x=a, weight=weight)
    else:
        product = mb.matmul(x=a, y=b, transpose_x=bool(transA), transpose_y=bool(transB))
        product = product if alpha == 1 else mb.mul(x=product, y=np.float32(alpha))
    if c is None:
        return product
    return mb.add(x=product, y=c if beta == 1 else mb.mul(x=c, y=np.float32(beta)))


@operator("CumSum")
def cumsum(x: Tensor, axis: Constant, *, exclusive=0, reverse=0) -> Tensor:
    return mb.cumsum(
        x=x, axis=one_axis(first(axis), rank(x)), exclusive=bool(exclusive), reverse=bool(reverse)
    )


@operator("TopK", since=10)
def topk(x: Tensor, k: Constant, *, axis=-1, largest=1, sorted=1) -> tuple[Tensor, Tensor]:
    """Always sorted, which ONNX allows where it does not demand it."""
    return tuple(mb.topk(x=x, k=first(k), axis=axis, ascending=not largest))

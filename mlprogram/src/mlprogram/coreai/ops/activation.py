"""Activations."""

from typing import Any

from coreai import authoring as ai
import numpy as np

from . import op
from .common import like, reshaped, shape_of, wide
from .elementwise import clip, greater_equal


@op()
def gelu(x: Any, mode: str = "EXACT") -> Any:
    if mode == "SIGMOID_APPROXIMATION":
        return wide(
            lambda x: ai.broadcasting_mul(x, ai.sigmoid(ai.broadcasting_mul(x, like(x, 1.702)))), x
        )
    return ai.gelu(x, approximate="none" if mode == "EXACT" else "tanh")


@op()
def relu6(x: Any) -> Any:
    return clip(x, 0, 6)


@op()
def clamped_relu(x: Any, alpha: float, beta: float) -> Any:
    return ai.broadcasting_minimum(leaky_relu(x, alpha), like(x, beta))


@op()
def leaky_relu(x: Any, alpha: float) -> Any:
    positive = ai.broadcasting_greater(x, like(x, 0))
    return ai.broadcasting_where(positive, x, ai.broadcasting_mul(x, like(x, alpha)))


@op()
def prelu(x: Any, alpha: Any) -> Any:
    """alpha may be single where x is half."""
    slope = ai.cast(reshaped(alpha, [1, -1, *[1] * (len(shape_of(x)) - 2)]), np.float32)
    positive = ai.broadcasting_greater(x, like(x, 0))
    return ai.broadcasting_where(positive, x, wide(lambda x: ai.broadcasting_mul(x, slope), x))


@op()
def elu(x: Any, alpha: float) -> Any:
    positive = ai.broadcasting_greater(x, like(x, 0))
    bent = wide(
        lambda x: ai.broadcasting_mul(
            ai.broadcasting_sub(ai.exp(ai.broadcasting_minimum(x, like(x, 0))), like(x, 1)),
            like(x, alpha),
        ),
        x,
    )
    return ai.broadcasting_where(positive, x, bent)


@op()
def linear_activation(x: Any, alpha: float, beta: float) -> Any:
    return ai.broadcasting_add(ai.broadcasting_mul(x, like(x, alpha)), like(x, beta))


@op()
def scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    return ai.broadcasting_mul(ai.tanh(ai.broadcasting_mul(x, like(x, beta))), like(x, alpha))


@op()
def sigmoid_hard(x: Any, alpha: float, beta: float) -> Any:
    return clip(linear_activation(x, alpha, beta), 0, 1)


@op()
def softplus(x: Any) -> Any:
    """max(x, 0) + log(1 + exp(-|x|)), which no x overflows."""

    def make(x: Any) -> Any:
        falling = ai.exp(ai.broadcasting_sub(like(x, 0), ai.abs_(x)))
        return ai.broadcasting_add(
            ai.broadcasting_maximum(x, like(x, 0)),
            ai.log(ai.broadcasting_add(falling, like(x, 1))),
        )

    return wide(make, x)


@op()
def softsign(x: Any) -> Any:
    return ai.broadcasting_divide(x, ai.broadcasting_add(ai.abs_(x), like(x, 1)))


@op()
def thresholded_relu(x: Any, alpha: float) -> Any:
    kept = greater_equal(x, like(x, alpha))
    return ai.broadcasting_where(kept, x, like(x, 0))


@op()
def softmax(x: Any, axis: int = -1) -> Any:
    return ai.softmax(x, np.int32(axis))


@op()
def softplus_parametric(x: Any, alpha: Any, beta: Any) -> Any:
    """alpha * log(1 + exp(beta * x)), one alpha and beta a channel."""
    shape = [1, -1, *[1] * (len(shape_of(x)) - 2)]

    def make(x: Any) -> Any:
        a, b = (ai.cast(reshaped(value, shape), np.float32) for value in (alpha, beta))
        return ai.broadcasting_mul(softplus(ai.broadcasting_mul(x, b)), a)

    return wide(make, x)

"""Claim activations-int8: weights and activations in int8 run at up to 1.88 times half precision's
speed (Apple, cadamcat); refused by the engine's compiler on iOS (CoreML-LLM).

Question: Does the engine take weights and activations in int8, and how fast is it with them?
"""

from _settle import Case, all_found, conv, graph, main, mb, milliseconds, random
import numpy as np

CHANNELS, COLUMNS, LAYERS = 1024, 256, 8


def half(path):
    def build(x):
        for _ in range(LAYERS):
            x = mb.relu(x=conv(x, CHANNELS))
        return mb.identity(x=x, name="y")

    graph(path, [(1, CHANNELS, 1, COLUMNS)], build)


def rounded(x, scale: float):
    """x as int8 and back: what marks an activation as of 8 bits."""
    scale = np.float16(scale)
    return mb.dequantize(input=mb.quantize(input=x, scale=scale, output_dtype="int8"), scale=scale)


def eight_bits(path):
    def build(x):
        for layer in range(LAYERS):
            weight = random(CHANNELS, CHANNELS, 1, 1, scale=CHANNELS**-0.5, seed=layer)
            weight = weight.astype(np.float32)
            scale = np.abs(weight).max(axis=(1, 2, 3), keepdims=True) / 127
            data = np.round(weight / scale).astype(np.int8)
            stored = mb.constexpr_blockwise_shift_scale(data=data, scale=scale.astype(np.float16))
            x = mb.relu(x=mb.conv(x=rounded(x, 0.04), weight=stored))
        return mb.identity(x=x, name="y")

    graph(path, [(1, CHANNELS, 1, COLUMNS)], build)


def decide(results):
    a, b = milliseconds(results, "fp16"), milliseconds(results, "int8 times int8")
    said = all_found(results)
    return f"{a / b:.2f} times half precision's speed ({a:.3g} and {b:.3g} ms). {said}"


CASES = [Case("fp16", half), Case("int8 times int8", eight_bits)]

if __name__ == "__main__":
    main("activations-int8", "activations-int8", CASES, decide)

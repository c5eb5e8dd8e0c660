"""The form of attention that Apple asks for: other shapes and products."""

from collections import Counter

from ane_book.evidence.parity import check_parity
from mlprogram import MLProgram
import pytest

CONTEXT = 32


@pytest.mark.parametrize("function", ["decode", "prefill"])
def test_the_shapes_and_products_are_apples(function, tiny_bundle):
    bundle = tiny_bundle("llama", kv="state", form="apple")[1]
    program = MLProgram(bundle.path / bundle.manifest.shards[0].package, function)
    config, T = bundle.config, program.inputs["hidden"].shape[3]
    n, H, KV = config.num_layers, config.num_heads, config.num_kv_heads * config.head_dim
    assert program.states["keys"].shape == program.states["values"].shape == (n, KV, 1, CONTEXT)
    assert program.inputs["mask"].shape == (1, CONTEXT + T, 1, T)
    assert program.inputs["rope_cos"].shape == (1, config.head_dim, 1, T)
    ops = Counter(op.type for op in program.operations)
    assert ops["einsum"] == 2 * H * n and ops["softmax"] == H * n and ops["transpose"] == n
    assert not ops["matmul"] and not ops["tile"]
    softmax = next(op for op in program.operations if op.type == "softmax")
    assert softmax.outputs[0][1].shape == (1, CONTEXT + T, 1, T)


def test_a_tail_may_be_as_wide_as_a_cache(tiny_bundle):
    """What is kept is told apart by its name."""
    bundle = tiny_bundle("lfm2", kv="host", form="apple", context=3, prefill=2)[1]
    assert bundle.config.taps - 1 == bundle.manifest.context == 3
    assert check_parity(bundle).passed

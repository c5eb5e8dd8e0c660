"""The form of silu by tanh has none of the engine's op; its numbers are in `test_options.py`."""

from collections import Counter

from mlprogram import MLProgram


def ops(bundle, function: str) -> Counter:
    """The types of all ops of a bundle's function."""
    paths = [bundle.path / part.package for part in bundle.manifest.shards]
    return Counter(op.type for path in paths for op in MLProgram(path, function).operations)


def test_three_ops_more_a_layer_and_none_of_silu(tiny_bundle):
    native, tanh = (tiny_bundle("llama", silu=form)[1] for form in ("native", "tanh"))
    for function in ("decode", "prefill"):
        old, new = ops(native, function), ops(tanh, function)
        assert not new["silu"] and new["tanh"] == old["silu"] > 0
        assert (new - old)["mul"] == 2 * old["silu"] and (new - old)["add"] == old["silu"]

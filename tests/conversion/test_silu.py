"""The form of silu by tanh: the same numbers in single precision, and none of the engine's op."""

from collections import Counter

from _tiny import prompt
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np


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


def test_the_engines_own_activations_change_it_less(tiny_bundle):
    ids, off = prompt(9), []
    for form in ("native", "tanh"):
        bundle = tiny_bundle("llama", silu=form)[1]
        half, engine = (Session(bundle, p).logits(ids) for p in ("fp16", "ane"))
        off.append(np.abs(engine - half).max())
    assert off[1] < off[0] / 2

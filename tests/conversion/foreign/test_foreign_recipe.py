"""Language models by coremltools' two paths alone, against `transformers` with the same weights.

Apple's recipe ("On Device Llama 3.1 with Core ML", Machine Learning Research, November 2024) traces
the model of `transformers` with a cache of two states, a query of any length, and a mask whose last
size says where the cache ends. torch.export takes sizes that depend on data badly, so what goes
that way has one query and all slots; the states are read once and written once, at the end.

Letters: L layers, G key-value heads, P positions in the cache, D head size.
"""

from _foreign import agree, exported, package
from _foreign_decoders import SlotCache, StatefulLlama
from _foreign_llama import PROMPT, P, answer, causal, llama
from _long import long_but
import coremltools as ct
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput
from mlprogram.kernels import native
import numpy as np
import pytest
import torch


@pytest.mark.parametrize(
    "fused", long_but([False, True], False), ids=["transformers 5", "transformers 4"]
)
def test_apples_recipe(fused, tmp_path):
    """`transformers` 5 passes a scale, which coremltools 9 spells out; version 4 passed none."""
    model = StatefulLlama(llama(), P, fused)
    query, end = (ct.RangeDim(1, P, default=1) for _ in range(2))
    state = dict(shape=model.keyCache.shape, dtype=np.float16)
    path = package(
        model,
        tmp_path / "recipe.mlpackage",
        (torch.zeros((1, 2), dtype=torch.int32), torch.zeros((1, 1, 2, 5))),
        inputs=[
            ct.TensorType("inputIds", (1, query), dtype=np.int32),
            ct.TensorType("causalMask", (1, 1, query, end), dtype=np.float16),
        ],
        outputs=[ct.TensorType("logits", dtype=np.float16)],
        states=[
            ct.StateType(ct.TensorType(**state), name=name) for name in ("keyCache", "valueCache")
        ],
    )
    attention = {o.type for o in MLProgram(path).operations} & {"scaled_dot_product_attention"}
    assert bool(attention) == fused
    kernels = {step.kernel for step in MLProgram(path).plan.main.steps}
    assert kernels >= {"size", "expand"}
    if native.available():
        assert kernels >= {"attention", "rms_norm_spelled_out", "rotary", "gated"}
    tokens, logits = answer()
    chunks = [range(4), range(4, 5), *(range(i, i + 1) for i in range(5, len(tokens) - 1))]
    calls, expected = [], []
    for chunk in chunks:
        new = np.array([tokens[chunk.start : chunk.stop]], np.int32)
        mask = causal(chunk.start, len(chunk), chunk.stop, -np.inf)
        calls.append({"inputIds": new, "causalMask": mask})
        expected.append({"logits": logits[None, chunk.start : chunk.stop]})
    for results in agree(path, calls, expected, half=5e-3):
        chosen = [int(result["logits"][0, -1].argmax()) for result in results]
        assert chosen[1:] == tokens[len(PROMPT) :]
    program = MLProgram(path)
    with pytest.raises(InvalidInput, match="inputIds"):
        program.predict(calls[0] | {"inputIds": calls[0]["inputIds"][0]}, program.make_state())


@pytest.mark.long
def test_an_exported_decoder(tmp_path):
    example = torch.zeros((1, 1), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    path = exported(SlotCache(llama(), P), tmp_path / "exported.mlpackage", example)
    program, (tokens, logits) = MLProgram(path), answer()
    kinds = [operation.type for operation in program.operations]
    assert kinds.count("write_state") == 2 and {"pow", "rsqrt", "sin", "tile"} < {*kinds}
    calls = [
        {"ids": np.array([[token]], np.int32), "position": np.array([place], np.int32)}
        for place, token in enumerate(tokens[:-1])
    ]
    (name,) = program.outputs
    expected = [{name: logits[None, place : place + 1]} for place in range(len(calls))]
    for results in agree(path, calls, expected, half=5e-3):
        chosen = [int(result[name].argmax()) for result in results]
        assert chosen[len(PROMPT) - 1 :] == tokens[len(PROMPT) :]

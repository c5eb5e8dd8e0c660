"""BERT's encoders against `transformers`: the same weights, the same vectors."""

from _encoders import SIZES, tiny_bert
from ane_book.conversion.write.lowering import lower
from ane_book.host import MASKED, text_mask
from ane_book.models.base.decoder import block_weights
from ane_book.models.base.encoder import LayerNorm
from ane_book.models.bert import Bert
from ane_book.runtime.encoder import pack
import numpy as np
import pytest
import torch


def ours(model, ids: torch.Tensor, dtype=torch.float32) -> torch.Tensor:
    """Hidden states (n, T, C) of padded ids (n, T), 0 being padding, a text a call."""
    bert = Bert()
    config = bert.config(model.config.to_dict())
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    parts = {part: weights[tensor.name] for part, tensor in bert.outer(config).items()}
    norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
    norm.weight.data.view(-1).copy_(torch.from_numpy(parts["first.weight"]))
    norm.bias.data.view(-1).copy_(torch.from_numpy(parts["first.bias"]))
    blocks = [bert.block(config) for _ in range(config.num_layers)]
    for i, block in enumerate(blocks):
        block.load_state_dict(block_weights(config, i, weights.__getitem__))
    rows = parts["embedding"][ids] + parts["positions"][: ids.shape[1]] + parts["types"][0]
    found = []
    for hidden, text in zip(torch.from_numpy(rows), ids, strict=True):
        mask = torch.where(text > 0, 0.0, MASKED).expand(1, 1, len(text), -1).to(dtype)
        hidden = norm.to(dtype)(hidden.T[None, :, None].to(dtype))
        for block in blocks:
            hidden = block.to(dtype)(hidden, mask)
        found.append(hidden[0, :, 0].T.float())
    return torch.stack(found).detach()


def padded_ids(model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, model.config.vocab_size, (3, 24), generator=generator)
    ids[1, 7:] = 0
    ids[2, 1:] = 0
    return ids


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_hidden_states_equal_those_of_transformers(size, dtype):
    model = tiny_bert(size)
    ids = padded_ids(model)
    expected = model(ids, attention_mask=(ids > 0).long()).last_hidden_state[ids > 0]
    found = ours(model, ids, dtype)[ids > 0]
    if dtype == torch.float32:
        # 1/sqrt(D) is in the queries' weights, which are then rounded to fp16 once more; for D = 16
        # it is a power of two.
        tolerance = 1e-5 if size != "odd" else 2e-3
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.cosine_similarity(found, expected, dim=1).min() > 0.9999


def test_a_norm_is_one_op_with_its_own_eps():
    piece = lower(LayerNorm(48, 1e-12), {"x": torch.zeros(1, 48, 1, 8)}, ["y"], 1e-12)
    (norm,) = [operation for operation in piece.operations if operation.type != "const"]
    assert norm.type == "layer_norm"
    constants = {o.outputs[0].name: o for o in piece.operations if o.type == "const"}
    taken = {key: argument.arguments[0].name for key, argument in norm.inputs.items()}
    assert taken.keys() == {"x", "axes", "gamma", "beta", "epsilon"}
    assert constants.keys() == set(taken.values()) - {"x"}  # none is left over
    epsilon = constants[taken["epsilon"]].attributes["val"].immediateValue.tensor.floats.values
    assert list(epsilon) == [np.float32(1e-12)]
    assert {piece.parameters[taken[key]] for key in ("gamma", "beta")} == {"weight", "bias"}


@pytest.mark.parametrize("most", [8, 32])
def test_every_text_has_its_call_and_no_call_is_too_long(most):
    lengths = np.random.default_rng(0).integers(1, most + 1, 200).tolist()
    calls = pack(lengths, most)
    assert sorted(i for call in calls for i in call) == list(range(200))
    full = [sum(lengths[i] for i in call) for call in calls]
    assert max(full) <= most
    assert sum(full) / (most * len(calls)) > 0.9  # how full they are
    assert pack([], most) == []
    assert pack([most], most) == [[0]]


def test_a_text_sees_itself_alone():
    assert (text_mask([2, 1], 5)[0, 0] == 0).astype(int).tolist() == [
        [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1],
    ]  # fmt: skip
    assert set(text_mask([2, 1], 5).ravel().tolist()) == {0.0, MASKED}

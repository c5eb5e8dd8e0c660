"""Privacy Filter's blocks against `transformers`: the same weights, the same scores of labels."""

import sys

from _taggers import SIZES, tiny_tagger
from ane_book.conversion.write.lowering import lower
from ane_book.host import text_mask
from ane_book.models.base.architecture import TensorSpec
from ane_book.models.base.decoder import block_weights
from ane_book.models.base.experts import DEEPEST, Experts, layers
from ane_book.models.base.experts.layers import TopGates, chosen
from ane_book.models.privacy_filter import PrivacyFilter
from coremltools.proto import MIL_pb2
import numpy as np
import pytest
import torch


def ours(model, ids: torch.Tensor, strategy: str = "packed", dtype=torch.float32) -> torch.Tensor:
    """Logits (T, N) of token ids (T,)."""
    architecture = PrivacyFilter()
    config = architecture.config(model.config.to_dict()).model_copy(update={"experts": strategy})
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    outer = {part: weights[t.name] for part, t in architecture.outer(config).items()}
    last = architecture.ends(config)["last"]
    for name, value in last.named_parameters():
        value.data.view(-1).copy_(torch.from_numpy(outer[f"last.{name}"]).view(-1))
    host, T = architecture.host(config), len(ids)
    feeds = [torch.from_numpy(table) for table in host.tables(np.arange(T), T).values()]
    feeds.append(torch.from_numpy(text_mask([T], T, config.sliding_window)))
    feeds = [feed.to(dtype) for feed in feeds]
    hidden = torch.from_numpy(outer["embedding"][ids.numpy()]).T[None, :, None].to(dtype)
    for i in range(config.num_layers):
        block = architecture.block(config)
        block.load_state_dict(block_weights(config, i, weights.__getitem__))
        hidden = block.to(dtype)(hidden, *feeds)
    return last.to(dtype)(hidden)[0, :, 0].T.float().detach()


def some_ids(model, tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(0, model.config.vocab_size, (tokens,), generator=generator)


@pytest.mark.parametrize("strategy", ["dispatch", "packed"])
@pytest.mark.parametrize("size", SIZES)
def test_scores_of_labels_equal_those_of_transformers(size, strategy):
    """At lengths below the band, just at it, just above it, and far beyond it."""
    model = tiny_tagger(size)
    band = model.config.sliding_window
    for tokens in {1, band, band + 1, band + 2, 3 * band + 40}:
        ids = some_ids(model, tokens)
        expected = model(ids[None]).logits[0]
        torch.testing.assert_close(ours(model, ids, strategy), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_half_precision_keeps_the_direction_of_the_scores(size):
    model = tiny_tagger(size)
    ids = some_ids(model, 60)
    expected = model(ids[None]).logits[0]
    found = ours(model, ids, dtype=torch.float16)
    assert torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.999


@pytest.mark.parametrize("error", ["top 3 of 4", "gates by 4 once", "band of 6", "rope by halves"])
def test_a_deliberate_error_is_seen(monkeypatch, error):
    """Each is a slip that a port could make; the scores are then off by far more than rounding."""
    gates, mask = TopGates.forward, text_mask
    patches = {
        "top 3 of 4": (layers, "chosen", lambda scores, k: chosen(scores, k - 1)),
        "gates by 4 once": (TopGates, "forward", lambda self, x: gates(self, x) / self.k),
        "band of 6": (sys.modules[__name__], "text_mask", lambda n, t, w: mask(n, t, w + 1)),
        "rope by halves": (TensorSpec, "rows", lambda self, array: array),
    }
    model = tiny_tagger("usual")
    ids = some_ids(model, 60)
    monkeypatch.setattr(*patches[error])
    assert (ours(model, ids) - model(ids[None]).logits[0]).abs().max() > 0.1


class TestChoice:
    @pytest.mark.parametrize("k", [1, 2, 4, 7])
    def test_is_that_of_topk(self, k):
        scores = torch.randn(1, 7, 1, 50, generator=torch.Generator().manual_seed(k))
        expected = torch.zeros(scores.shape, dtype=torch.bool)
        expected.scatter_(1, scores.topk(k, dim=1).indices, True)
        assert torch.equal(chosen(scores, k), expected)

    def test_of_equal_scores_takes_the_first_ones_and_never_more_than_k(self):
        scores = torch.tensor([1.0, 3.0, 1.0, 1.0, 2.0]).view(1, 5, 1, 1)
        assert chosen(scores, 3).flatten().tolist() == [True, True, False, False, True]
        assert chosen(torch.zeros(1, 5, 1, 1), 2).flatten().tolist() == [True, True] + [False] * 3

    def test_gates_add_up_to_one_and_are_zero_elsewhere(self):
        scores = torch.randn(1, 9, 1, 20, generator=torch.Generator().manual_seed(0))
        for dtype in (torch.float32, torch.float16):
            gates = TopGates(4)(scores.to(dtype))
            assert ((gates > 0).sum(dim=1) == 4).all()
            torch.testing.assert_close(gates.sum(dim=1), torch.ones_like(gates[:, 0]))

    @pytest.mark.parametrize("k", [1, 4])
    def test_in_a_program_counts_in_half_precision(self, k):
        """The engine computes no int32."""
        piece = lower(TopGates(k), {"scores": torch.zeros(1, 9, 1, 4)}, ["gates"])
        computed = [value for o in piece.operations if o.type != "const" for value in o.outputs]
        found = {value.type.tensorType.dataType for value in computed}
        assert found == {MIL_pb2.FLOAT16, MIL_pb2.BOOL}


class TestLayout:
    def test_of_the_real_model_keeps_every_product_narrow(self):
        packed = Experts(128, 640, 640, "packed", biases=True, flipped=True)
        assert [len(group) for group in packed.groups] == [32] * 4
        for parts in packed.parameters().values():
            assert max(parts[0].given) <= 65_536  # the engine's longest axis
        downs = [p[0].given for n, p in packed.parameters().items() if "down.w" in n]
        assert downs == [(640, DEEPEST)] * 4

    @pytest.mark.parametrize("flipped", [False, True])
    @pytest.mark.parametrize(("strategy", "groups"), [("dispatch", 3), ("packed", 1)])
    def test_of_experts_stored_either_way_round_computes_what_each_says(
        self, strategy, groups, flipped
    ):
        from ane_book.models.base.experts.layers import Mixture

        E, C, F, T = 3, 6, 4, 5
        torch.manual_seed(0)
        gate_up, down = torch.randn(E, 2 * F, C), torch.randn(E, C, F)
        layout = Experts(E, C, F, strategy, flipped=flipped, theirs="e")
        assert len(layout.groups) == groups
        stored = {"e.gate_up_proj": gate_up, "e.down_proj": down}
        stored = {n: (v.mT if flipped else v).contiguous().numpy() for n, v in stored.items()}
        mixture = Mixture(layout, lambda gate, up: torch.sigmoid(gate) * up)
        for name, (part,) in layout.parameters().items():
            assert stored[part.name].shape == part.shape
            rows = part.rows(stored[part.name])
            assert rows.shape == part.given
            parameter = mixture.get_parameter(name.removeprefix("mixture."))
            parameter.data.copy_(torch.from_numpy(rows).view(parameter.shape))
        x, gates = torch.randn(C, T), torch.rand(E, T)
        expected = torch.zeros(C, T)
        for e in range(E):
            gate, up = (gate_up[e] @ x).chunk(2)
            expected += gates[e] * (down[e] @ (torch.sigmoid(gate) * up))
        found = mixture(x[None, :, None], gates[None, :, None])
        torch.testing.assert_close(found[0, :, 0], expected, rtol=1e-5, atol=1e-5)

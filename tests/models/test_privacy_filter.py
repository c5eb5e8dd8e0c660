"""Privacy Filter's blocks against `transformers`: the same weights, the same scores of labels."""

from _taggers import SIZES, tiny_tagger
from ane_book.conversion.write.lowering import lower
from ane_book.host import text_mask
from ane_book.models.base.decoder import block_weights
from ane_book.models.base.experts import DEEPEST, Experts
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
        half = ours(model, ids, strategy, torch.float16)
        assert torch.cosine_similarity(half.flatten(), expected.flatten(), dim=0) > 0.999


class TestChoice:
    def test_of_equal_scores_takes_the_first_ones_and_never_more_than_k(self):
        scores = torch.tensor([1.0, 3.0, 1.0, 1.0, 2.0]).view(1, 5, 1, 1)
        assert chosen(scores, 3).flatten().tolist() == [True, True, False, False, True]
        assert chosen(torch.zeros(1, 5, 1, 1), 2).flatten().tolist() == [True, True] + [False] * 3

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

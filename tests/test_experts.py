"""Experts as programs: the host calls those that a token chose, and the result is the same."""

from _taggers import SIZES, tiny_tagger
from ane_book.host import text_mask
from ane_book.runtime import Tagger
import numpy as np
import pytest
import torch

APART = ["dispatch", "functions"]


def scores(tagger: Tagger, ids) -> np.ndarray:
    return np.concatenate(list(tagger.logits(np.asarray(ids))))


def some_ids(tokens: int, vocabulary: int = 257) -> np.ndarray:
    return np.random.default_rng(tokens).integers(0, vocabulary, tokens)


def experts_of(tagger: Tagger) -> set[tuple[int, int]]:
    """Layer and number of every expert that was called."""
    layers = {(p.package, p.expert): p.layers[0] for p in tagger.bundle.manifest.packages}
    return {(layers[name], name[1]) for name in tagger.calls if name[1] is not None}


def chosen_by(model, ids) -> set[tuple[int, int]]:
    """Layer and number of every expert that `transformers` chooses for some token."""
    found = set()

    def note(layer: int, scores: torch.Tensor) -> None:
        best = scores.topk(model.config.num_experts_per_tok, dim=-1).indices
        found.update((layer, expert) for expert in best.flatten().tolist())

    hooks = [
        block.mlp.router.register_forward_hook(
            lambda module, inputs, outputs, i=i: note(i, inputs[0] @ module.weight.T + module.bias)
        )
        for i, block in enumerate(model.model.layers)
    ]
    model(torch.from_numpy(np.asarray(ids))[None])
    for hook in hooks:
        hook.remove()
    return found


class TestScores:
    @pytest.mark.parametrize("strategy", APART)
    @pytest.mark.parametrize("size", SIZES)
    def test_are_those_of_all_experts_in_the_graph(self, tagger, size, strategy):
        """Below, at and above the band; and those of `transformers`."""
        model, bundle = tagger(size, experts=strategy)
        dense, apart = (Tagger(b, "fp32") for b in (tagger(size, experts="dense")[1], bundle))
        half = Tagger(bundle)
        band = model.config.sliding_window
        for tokens in (1, band, band + 1, 3 * band + 11):
            ids = some_ids(tokens, model.config.vocab_size)
            found = scores(apart, ids)
            np.testing.assert_allclose(found, scores(dense, ids), atol=1e-4)
            expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
            np.testing.assert_allclose(found, expected, atol=1e-3)
            ours = scores(half, ids).ravel()
            cosine = ours @ expected.ravel() / np.linalg.norm(ours) / np.linalg.norm(expected)
            assert cosine > 0.999


class TestCalls:
    @pytest.mark.parametrize("strategy", APART)
    def test_are_of_experts_that_a_token_chose_and_no_others(self, tagger, strategy):
        """One token, then another: each wakes its own; padding, of 31 columns, wakes nobody."""
        model, bundle = tagger("narrow", experts=strategy)
        tagging = Tagger(bundle, "fp32")
        for token in (3, 200):
            tagging.calls.clear()
            scores(tagging, [token])
            assert experts_of(tagging) == chosen_by(model, [token])
            assert tagging.calls.total() == 4 + 3  # trunks, and an expert in each of three layers

    def test_of_many_tokens(self, tagger):
        model, bundle = tagger("narrow", experts="dispatch")
        tagging, ids = Tagger(bundle, "fp32"), some_ids(20)
        scores(tagging, ids)
        chosen = chosen_by(model, ids)
        assert experts_of(tagging) == chosen and len(chosen) < 3 * 8
        assert tagging.calls.total() == 4 + len(chosen)

    def test_of_experts_in_the_graph_are_of_its_programs(self, tagger):
        tagging = Tagger(tagger("narrow", experts="packed")[1], "fp32")
        scores(tagging, some_ids(20))
        assert tagging.calls == {("layers_00-03.mlpackage", None): 1}

    def test_of_two_texts_in_one_call(self, tagger):
        """Side by side, each sees itself alone: its scores are those that it has by itself."""
        _, bundle = tagger("usual", experts="dispatch")
        tagging, manifest = Tagger(bundle, "fp32"), bundle.manifest
        lengths = [11, 17]
        texts = [some_ids(n) for n in lengths]

        def host(T: int) -> dict[str, np.ndarray]:
            places = np.concatenate([*map(np.arange, lengths), np.arange(T - sum(lengths))])
            tables = manifest.host.tables(places, manifest.context)
            return tables | {"mask": text_mask(lengths, T, manifest.tags.window)}

        together = tagging._call(bundle.embedding[np.concatenate(texts)], host)
        alone = np.concatenate([scores(tagging, ids) for ids in texts])
        np.testing.assert_allclose(together, alone, atol=1e-4)


def test_ties_in_the_routers_scores(tmp_path):
    """Experts that are equal to the last bit: the first ones are taken, by every strategy."""
    from _taggers import write_tagger
    import ane_book

    model = tiny_tagger("odd")
    for block in model.model.layers:
        block.mlp.router.weight.zero_()
        block.mlp.router.bias.zero_()
    folder = write_tagger(model, tmp_path / "model")
    found = {}
    for strategy in ("dense", "dispatch"):
        bundle = ane_book.convert(str(folder), tmp_path / strategy, context=32, experts=strategy)
        tagging = Tagger(bundle)
        found[strategy] = scores(tagging, some_ids(9, 263))
    np.testing.assert_allclose(found["dispatch"], found["dense"], rtol=2e-2, atol=2e-2)
    assert experts_of(tagging) == {(0, expert) for expert in range(4)}

"""Experts as programs: the host calls those that a token chose, and the result is the same."""

from functools import partial
import json
from pathlib import Path
import shutil

from _long import long_but
from _taggers import SIZES, tiny_tagger, write_tagger
import ane_book
from ane_book.bundle import Bundle
from ane_book.conversion.plan import plan
from ane_book.errors import InvalidBundle
from ane_book.host import text_mask
from ane_book.runtime import Tagger
from ane_book.runtime.backends import MILBackend
import numpy as np
import pytest
import torch


def scores(tagger: Tagger, ids) -> np.ndarray:
    return np.concatenate(list(tagger.logits(np.asarray(ids))))


def some_ids(tokens: int, vocabulary: int = 257) -> np.ndarray:
    return np.random.default_rng(tokens).integers(0, vocabulary, tokens)


def experts_of(tagger: Tagger) -> set[tuple[int, int]]:
    """Layer and number of every expert that was called."""
    called = [part for part in tagger.bundle.manifest.packages if part.package in tagger.calls]
    return {(part.layers[0], part.expert) for part in called if part.expert is not None}


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
    @pytest.mark.parametrize("size", long_but(SIZES, "usual"))
    def test_are_those_of_all_experts_in_the_graph(self, tagger, size):
        """Below, at and above the band; and those of `transformers`."""
        model, bundle = tagger(size, experts="dispatch")
        packed, apart = (Tagger(b, "fp32") for b in (tagger(size, experts="packed")[1], bundle))
        half = Tagger(bundle)
        band = model.config.sliding_window
        for tokens in (1, band, band + 1, 3 * band + 11):
            ids = some_ids(tokens, model.config.vocab_size)
            found = scores(apart, ids)
            np.testing.assert_allclose(found, scores(packed, ids), atol=1e-4)
            expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
            np.testing.assert_allclose(found, expected, atol=1e-3)
            ours = scores(half, ids).ravel()
            cosine = ours @ expected.ravel() / np.linalg.norm(ours) / np.linalg.norm(expected)
            assert cosine > 0.999


class TestCalls:
    def test_are_of_experts_that_a_token_chose_and_no_others(self, tagger):
        """One token, then another: each wakes its own; padding, of 31 columns, wakes nobody."""
        model, bundle = tagger("narrow", experts="dispatch")
        tagging = Tagger(bundle, "fp32")
        for token in (3, 200):
            tagging.calls.clear()
            scores(tagging, [token])
            assert experts_of(tagging) == chosen_by(model, [token])
            assert tagging.calls.total() == 4 + 3  # trunks, and an expert in each of three layers

    def test_none_is_opened_before_it_is_called(self, tagger):
        """Loading opens the trunks; then each expert is opened once, for all sessions."""
        opened = []

        class Counting(MILBackend):
            def load(self, package: Path, function: str):
                opened.append((package.name, function))
                return super().load(package, function)

        model, bundle = tagger("narrow", experts="dispatch")
        functions = len(bundle.manifest.functions)
        tagging = Tagger(bundle, backend=Counting("fp32"))
        assert len(opened) == 4 * functions
        woken = set()
        for token in (3, 200, 3):
            woken |= chosen_by(model, [token])
            scores(tagging, [token])
            assert len(opened) == len(set(opened)) == (4 + len(woken)) * functions
        assert len(woken) < 3 * 8

    def test_of_many_tokens(self, tagger):
        model, bundle = tagger("narrow", experts="dispatch")
        tagging, ids = Tagger(bundle, "fp32"), some_ids(20)
        scores(tagging, ids)
        chosen = chosen_by(model, ids)
        assert experts_of(tagging) == chosen and len(chosen) < 3 * 8
        assert tagging.calls.total() == 4 + len(chosen)

    def test_of_two_texts_in_one_call(self, tagger):
        """Side by side, each sees itself alone: its scores are those that it has by itself."""
        _, bundle = tagger("usual", experts="dispatch")
        tagging, manifest = Tagger(bundle, "fp32"), bundle.manifest
        lengths = [11, 17]
        texts = [some_ids(n) for n in lengths]
        T = tagging._width(sum(lengths))
        places = np.concatenate([*map(np.arange, lengths), np.arange(T - sum(lengths))])
        inputs = manifest.host.tables(places, manifest.context)
        inputs["mask"] = text_mask(lengths, T, manifest.tags.window)
        rows = bundle.embedding[np.concatenate(texts)]
        together = tagging._call(tagging._steps, rows, "logits", inputs)
        alone = np.concatenate([scores(tagging, ids) for ids in texts])
        np.testing.assert_allclose(together, alone, atol=1e-4)


def test_ties_in_the_routers_scores(tmp_path):
    """Experts that are equal to the last bit: the first ones are taken, by every strategy."""
    model = tiny_tagger("odd")
    for block in model.model.layers:
        block.mlp.router.weight.zero_()
        block.mlp.router.bias.zero_()
    folder = write_tagger(model, tmp_path / "model")
    found = {}
    for strategy in ("packed", "dispatch"):
        bundle = ane_book.convert(str(folder), tmp_path / strategy, context=32, experts=strategy)
        tagging = Tagger(bundle)
        found[strategy] = scores(tagging, some_ids(9, 263))
    np.testing.assert_allclose(found["dispatch"], found["packed"], rtol=2e-2, atol=2e-2)
    assert experts_of(tagging) == {(0, expert) for expert in range(4)}


class TestDamage:
    """Every kind is told in one clear error, when the bundle is opened or its packages are."""

    @pytest.fixture
    def copy(self, tagger, tmp_path):
        return Path(shutil.copytree(tagger("narrow", experts="dispatch")[1].path, tmp_path / "b"))

    def test_a_package_is_missing(self, copy):
        shutil.rmtree(copy / "layer_00_expert_005.mlpackage")
        with pytest.raises(InvalidBundle, match=r"expert_005.mlpackage\S* is missing"):
            Bundle.open(copy)

    def test_a_package_is_damaged(self, copy):
        (file,) = (copy / "layer_00_expert_005.mlpackage").rglob("*.mlmodel")
        file.write_bytes(bytes(file.stat().st_size))
        tagging, every = Tagger(copy, "fp32"), np.arange(257)
        with pytest.raises(InvalidBundle, match=r"expert_005.mlpackage, function 'encode_32_5': "):
            scores(tagging, every)

    def test_packages_of_different_layers_that_changed_places(self, copy):
        manifest = json.loads((copy / "manifest.json").read_text())
        parts = {part["package"]: part for part in manifest["packages"]}
        trunk, other = parts["trunk_01.mlpackage"], parts["trunk_02.mlpackage"]
        trunk["package"], other["package"] = other["package"], trunk["package"]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InvalidBundle, match=r"trunk_02.mlpackage.*manifest.json says"):
            Tagger(copy)


class TestConversion:
    @pytest.mark.parametrize("step", long_but(("layer 2", "head"), "layer 2"))
    def test_goes_on_where_it_stopped(self, tagger, tmp_path, step):
        expected = tagger("narrow", experts="dispatch")[1]
        folder = write_tagger(tiny_tagger("narrow"), tmp_path / "model")
        convert = partial(ane_book.convert, str(folder), tmp_path / "b", context=64)

        def stop(description: str, done: int, total: int) -> None:
            if description.startswith(step):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert(experts="dispatch", progress=stop)
        assert convert(experts="dispatch").manifest.files == expected.manifest.files

    def test_of_experts_quantised(self, tagger):
        """As in one graph: the quality that the scheme leaves; the bytes that were planned."""
        model, bundle = tagger("usual", experts="dispatch", quant="int8")
        ids = some_ids(40)
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy().ravel()
        found = scores(Tagger(bundle), ids).ravel()
        assert found @ expected / np.linalg.norm(found) / np.linalg.norm(expected) > 0.999
        written = {file.parents[3].name: file.stat().st_size
                   for file in bundle.path.rglob("weight.bin")}  # fmt: skip
        assert written == plan(bundle.config, bundle.recipe).packages

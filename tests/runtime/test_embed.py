"""Encoders' bundles, from conversion to vectors: the numbers of `transformers`; what is refused.

The real model is in test_minilm.py; the blocks by themselves are in test_bert.py.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
import json
from pathlib import Path
import shutil

from _command import ane_book as command
from _command import refused
from _encoders import CLS, SEP, SIZES, pooled, tiny_bert, write_encoder
from _long import long_but
import ane_book
from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import (
    InvalidBundle,
    InvalidInput,
    PromptTooLong,
    TextCut,
)
from ane_book.models import read_config
from ane_book.runtime import Embedder, Session
from ane_book.weights.random import RandomSource
import numpy as np
from numpy.lib.format import open_memmap
import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::ane_book.errors.TextCut")  # where none is tested

TEXTS = ["A stone.", "", "Two stones, or three?", "x", "é ü 🙂 \x00 \n\t", "A long one. " * 30]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """`encoder(size)` -> (transformers model, bundle), converted once."""

    @cache
    def make(size: str = "usual"):
        model = tiny_bert(size)
        folder = write_encoder(model, tmp_path_factory.mktemp(size))
        out = tmp_path_factory.mktemp("bundles") / size
        return model, ane_book.convert(str(folder), out=out)

    return make


def cosines(embedder: Embedder, model) -> torch.Tensor:
    """Of the vectors of `TEXTS`, to those of transformers."""
    expected = pooled(model, [embedder.encode(text) for text in TEXTS])
    return torch.cosine_similarity(torch.from_numpy(embedder.embed(TEXTS)), expected)


class TestVectors:
    @pytest.mark.parametrize("size", long_but(SIZES, "usual", "odd"))
    @pytest.mark.parametrize("precision", ["fp32", "fp16"])
    def test_are_those_of_transformers(self, encoder, size, precision):
        model, bundle = encoder(size)
        embedder = Embedder(bundle, precision)
        found = embedder.embed(TEXTS)
        assert (found.dtype, found.shape) == (np.float32, (6, model.config.hidden_size))
        assert cosines(embedder, model).min() > (0.99999 if precision == "fp32" else 0.9999)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)

    def test_cut_to_fewer_dimensions_have_length_one_again(self, encoder):
        embedder = Embedder(encoder()[1], "fp32")
        whole, found = embedder.embed(TEXTS), embedder.embed(TEXTS, dimensions=10)
        expected = whole[:, :10] / np.linalg.norm(whole[:, :10], axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        for wrong in (0, 65):
            with pytest.raises(InvalidInput, match=f"dimensions: 1 to 64, not {wrong}"):
                embedder.embed(TEXTS, dimensions=wrong)

    def test_a_prompt_stands_before_each_text(self, tmp_path):
        settings = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "query"}
        folder = write_encoder(tiny_bert("odd"), tmp_path / "m", **settings, truncate_dim=12)
        embedder = Embedder(ane_book.convert(str(folder), out=tmp_path / "b"), "fp32")
        assert embedder.prompts == {"query": "Find: ", "document": ""} and embedder.size == 12
        asked = embedder.embed(["Find: a stone", "a"], prompt="document")
        np.testing.assert_array_equal(embedder.embed(["a stone"]), asked[:1])  # the default
        np.testing.assert_array_equal(embedder.embed(["a stone"], prompt="query"), asked[:1])
        np.testing.assert_array_equal(embedder.embed(["stone"], prompt="Find: a "), asked[:1])
        np.testing.assert_array_equal(embedder.embed(["a"], prompt=""), asked[1:])
        with pytest.raises(InvalidInput, match="called 'qeury'; there are: query, document"):
            embedder.embed(["a"], prompt="qeury")

    def test_do_not_depend_on_what_is_beside_them(self, encoder):
        embedder = Embedder(encoder()[1], "fp32")
        alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
        np.testing.assert_allclose(embedder.embed(TEXTS[::-1])[::-1], alone, atol=1e-5)
        np.testing.assert_allclose(embedder.embed(TEXTS * 50)[::6], alone[[0] * 50], atol=1e-5)

    def test_of_none_are_none(self, encoder):
        assert Embedder(encoder()[1]).embed([]).shape == (0, 64)
        assert Embedder(encoder()[1]).embed(iter(["a", "b"])).shape == (2, 64)

    def test_threads_take_turns(self, encoder):
        embedder = Embedder(encoder()[1], "fp32")
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda text: embedder.embed([text]), TEXTS * 5))
        np.testing.assert_allclose(np.concatenate(found[:6]), embedder.embed(TEXTS), atol=1e-5)
        for row, again in zip(found[:6] * 4, found[6:], strict=True):
            np.testing.assert_array_equal(row, again)

    def test_of_random_weights(self, tmp_path):
        fields = {
            "model_type": "bert", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 300,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64,
        }  # fmt: skip
        source = RandomSource(fields)
        config = read_config(source.config())
        builder = BundleBuilder("random", source, config, make_recipe(config))
        embedder = Embedder(builder.build(tmp_path / "b", "key"), "fp32")
        golden = embedder.bundle.golden()  # what PyTorch says of the same weights
        (found,) = embedder.vectors([golden["tokens"]])
        assert found @ golden["vector"] > 0.999999
        with pytest.raises(InvalidInput, match="text 1 has no tokens"):  # nothing is put around it
            embedder.embed(["a", ""])


class TestTokens:
    def test_a_long_text_keeps_what_is_put_around_it(self, encoder):
        embedder = Embedder(encoder()[1])
        assert embedder.max_tokens == 40  # max_seq_length, not the 7 of tokenizer.json
        whole = embedder.encode("abc" * 100)
        assert len(whole) == 40 and (whole[0], whole[-1]) == (CLS, SEP)
        assert whole[:-1] == embedder.encode("abc" * 13)[:39]
        assert embedder.encode("") == [CLS, SEP]

    def test_a_long_text_is_cut_with_a_warning_or_refused(self, encoder, recwarn):
        embedder = Embedder(encoder()[1])
        long = "abc" * 100
        tokens = len(embedder._tokenizer.encode(long, special=True))
        told = f"text 1 is cut to the first 40 of its {tokens} tokens"
        with pytest.warns(TextCut) as caught:
            embedder.embed(["a", long, "b"])
        assert [str(warning.message) for warning in caught] == [told]
        assert caught[0].filename == __file__
        with pytest.warns(TextCut) as caught:
            embedder.embed(["a", long, "b", long, long])
        assert [str(w.message) for w in caught] == [f"{told}; so are 2 more of 5 texts"]
        with pytest.warns(TextCut, match=f"line 7 is cut to the first 40 of its {tokens} tokens"):
            embedder.encode(long, "line 7")
        recwarn.clear()
        with pytest.raises(PromptTooLong, match=f"text 1 has {tokens} tokens; 40 at most"):
            embedder.embed(["a", long], cut=False)
        whole = "abc" * 13  # with the two tokens around it: what the model reads, to the last
        embedder.embed([whole[:-1]], cut=False)
        assert not recwarn.list

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ([[1, 2], []], "text 1 has no tokens"),
            ([[1] * 41], "text 0 has 41 tokens, more than 40"),
            ([[1, 257]], "token id 257 is outside the vocabulary of 257"),
            ([[-1]], "token id -1 is outside"),
            ([[0.5]], "text 0: token ids are whole numbers"),
        ],
    )
    def test_that_no_text_has(self, encoder, ids, message):
        with pytest.raises(InvalidInput, match=message):
            Embedder(encoder()[1]).vectors(ids)


class TestRefused:
    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ("one", r"a list of str, not str: embed\(\[text\]\)"),
            (b"one", "a list of str, not bytes"),
            (None, "a list of str, not NoneType"),
            (["a", None], "text 1 is NoneType, not str"),
            ([3], "text 0 is int, not str"),
        ],
    )
    def test_what_is_no_list_of_texts(self, encoder, texts, message):
        with pytest.raises(TypeError, match=message) as caught:
            Embedder(encoder()[1]).embed(texts)
        assert isinstance(caught.value, InvalidInput)

    def test_an_encoder_where_a_decoder_belongs_and_the_other_way_round(self, encoder, tiny_bundle):
        bundle, decoder = encoder()[1], tiny_bundle("llama", kv="state")[1]
        with pytest.raises(InvalidInput, match=r"makes vectors of texts.*ane-book embed"):
            Session(bundle)
        with pytest.raises(InvalidInput, match=r"generates text.*ane-book run"):
            Embedder(decoder)
        assert isinstance(ane_book.load(bundle.path), Embedder)
        assert isinstance(ane_book.load(decoder.path), Session)

    def test_texts_whose_mask_no_memory_holds(self, encoder, tmp_path):
        copy, T = Path(shutil.copytree(encoder()[1].path, tmp_path / "b")), 1_000_000
        fields = json.loads((copy / "manifest.json").read_text())
        table = open_memmap(copy / "positions.npy", "w+", np.float16, (T, 64))
        del table  # a file with a hole
        fields["files"]["positions.npy"] = (copy / "positions.npy").stat().st_size
        fields["context"] = fields["vectors"]["positions"]["shape"][0] = T
        longest = fields["packages"][0]["functions"]["encode_40"]
        longest["tokens"] = T
        hidden = {"dtype": "fp16", "shape": [1, 64, 1, T]}
        longest["inputs"] = {"hidden": hidden, "mask": {"dtype": "fp16", "shape": [1, 1, T, T]}}
        longest["outputs"] = {"hidden_out": hidden}
        (copy / "manifest.json").write_text(json.dumps(fields))
        with pytest.raises(InvalidBundle, match="takes 8,000.0 GB"):
            Embedder(copy)

    def test_a_model_that_leaves_half_precision(self, tmp_path):
        model = tiny_bert("odd")
        for name, value in model.named_parameters():
            if "dense.weight" in name:
                value.mul_(3000)
        folder = write_encoder(model, tmp_path / "m")
        bundle = ane_book.convert(str(folder), out=tmp_path / "b")
        with pytest.raises(InvalidBundle, match=r"a vector of length nan\).*fp32"):
            Embedder(bundle).embed(TEXTS)
        assert cosines(Embedder(bundle, "fp32"), model).min() > 0.999


class TestCommand:
    def test_cosines_to_the_first_text(self, encoder):
        model = "--model", encoder()[1].path
        done = command("embed", *model, "Hi", "you", "Hi", "--precision", "fp32")
        head, *lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == 3
        assert head == "cosine of each text to the first:"
        assert [line.split("  ", 1)[1] for line in lines] == ["Hi", "you", "Hi"]
        vectors = Embedder(encoder()[1], "fp32").embed(["Hi", "you"])
        expected = [1, float(vectors[0] @ vectors[1]), 1]
        assert [float(line.split()[0]) for line in lines] == pytest.approx(expected, abs=6e-4)
        assert "64 numbers" in done.stderr

    def test_lines_of_stdin_as_json(self, encoder):
        bundle = encoder()[1]
        options = "--model", bundle.path, "--json", "--precision", "fp32"
        done = command("embed", *options, "-", input="Hi\n\né you")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["text"] for row in rows] == ["Hi", "", "é you"]
        expected = Embedder(bundle, "fp32").embed(["Hi", "", "é you"])
        found = np.array([row["embedding"] for row in rows], np.float32)
        np.testing.assert_array_equal(found, expected)  # as printed: every bit
        assert command("embed", *options, "-").stdout == ""

    def test_a_prompt_and_fewer_dimensions(self, encoder):
        options = "--model", encoder()[1].path, "--json", "--precision", "fp32"
        done = command("embed", *options, "--prompt", "to: ", "--dimensions", "5", "Hi")
        expected = Embedder(encoder()[1], "fp32").embed(["to: Hi"], dimensions=5)
        found = json.loads(done.stdout)
        assert found["text"] == "Hi"
        np.testing.assert_array_equal(np.float32(found["embedding"]), expected[0])
        assert "dimensions: 1 to 64" in refused("embed", *options, "--dimensions", "65", "Hi")
        assert "no prompt of" in refused("embed", *options, "--prompt", "query", "Hi")

    def test_a_text_that_is_cut_is_told_by_its_number(self, encoder):
        model, texts = ("--model", encoder()[1].path), "\n".join(["a"] * 299 + ["abc" * 100])
        done = command("embed", *model, "-", input=texts)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 301
        assert "warning: text 300 is cut to the first 40 of its 302 tokens\n" in done.stderr
        done = command("embed", *model, "--strict", "-", input=texts)
        assert done.returncode == 2
        assert done.stderr.endswith("error: text 300 has 302 tokens; 40 at most\n")

    def test_the_wrong_kind_of_model_is_told_the_right_command(self, encoder, tiny, tiny_bundle):
        bundle, (_, folder) = encoder()[1].path, tiny("llama")
        for model in (bundle, "all-minilm-l6-v2"):
            for words in (("run", model, "Hi"), ("chat", model)):
                assert f"`ane-book embed --model {model} TEXT`" in refused(*words)
        for model in (tiny_bundle("llama", kv="state")[1].path, folder, "smollm2-135m-instruct"):
            assert f"`ane-book run {model} PROMPT`" in refused("embed", "--model", model, "Hi")

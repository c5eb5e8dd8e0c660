"""Conversion end to end on tiny models: the packages against `transformers` and coremltools.

Every bundle here is converted for real and run by the executor through `Session`.
"""

import shutil
import time
from typing import NamedTuple

from _command import processes
from _long import long_but
from _tiny import TINY, greedy, prompt
import ane_book
from ane_book.bundle import Bundle, Recipe
from ane_book.conversion.plan import plan
from ane_book.conversion.plan.programs import head_splits
from ane_book.conversion.target.journal import Journal
from ane_book.conversion.write import lowering
from ane_book.conversion.write.decoder import lower_blocks
from ane_book.errors import InvalidBundle, InvalidInput, WeightsNotFound
from ane_book.models import DecoderConfig
from ane_book.runtime import Session
from mlprogram.machine import parse_bytes
import numpy as np
import pytest
import torch

ONE_LAYER_EACH = 100_000  # a shard limit that only one layer of a tiny model stays under
CONTEXT, PREFILL = 32, 8


def expected_logits(model, ids: list[int]) -> np.ndarray:
    return model(torch.tensor([ids])).logits[0].numpy()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The smallest cosine over rows (n, V)."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()


class Pair(NamedTuple):
    """Of a model and its bundle: what it is made of."""

    family: str
    limit: str | int
    kv: str


#: Every family whole; the boundaries between shards know nothing of families. Quick are a plain
#: one, whole and cut, and one of norms after its blocks; test_models.py and test_family_bundles.py
#: have others in bundles, and all of them in PyTorch.
SHARDED = [(family, "1GB") for family in TINY] + [("llama", ONE_LAYER_EACH)]
PAIRS = [Pair(family, limit, kv) for family, limit in SHARDED for kv in ("state", "host")]
QUICK = [
    ("llama", "1GB", "state"), ("llama", ONE_LAYER_EACH, "host"), ("olmo2", "1GB", "state"),
]  # fmt: skip


@pytest.fixture(scope="module", params=long_but(PAIRS, *QUICK), ids=lambda p: "-".join(map(str, p)))
def pair(request, tiny_bundle):
    return tiny_bundle(request.param.family, kv=request.param.kv, shard_limit=request.param.limit)


@pytest.fixture(scope="module")
def single(pair):
    """A session in single precision."""
    return Session(pair[1], precision="fp32")


class TestLogits:
    """Whole prompts and single steps, both caches, both precisions, all shard boundaries."""

    def test_fp32_equals_transformers(self, pair, single):
        for tokens in (1, PREFILL - 1, PREFILL, PREFILL + 1, CONTEXT - 1, CONTEXT):
            ids = prompt(tokens)
            expected = expected_logits(pair[0], ids)
            single.reset()
            np.testing.assert_allclose(single.logits(ids), expected, rtol=1e-4, atol=2e-4)

    def test_steps_equal_the_whole_prompt(self, pair, single):
        ids = prompt(CONTEXT)
        single.reset()
        found = np.stack([single.decode(token) for token in ids])
        np.testing.assert_allclose(found, expected_logits(pair[0], ids), rtol=1e-4, atol=2e-4)

    def test_fp16_stays_close(self, pair):
        model, bundle = pair
        ids = prompt(CONTEXT)
        assert cosine(Session(bundle).logits(ids), expected_logits(model, ids)) > 0.999

    def test_greedy_tokens_equal_transformers(self, pair, single):
        ids = prompt(5)
        expected = greedy(pair[0], ids, 20)
        single.reset()
        logits, found = single.prefill(ids), []
        for _ in range(20):
            found.append(int(logits.argmax()))
            logits = single.decode(found[-1])
        assert found == expected[len(ids) :]


def test_argmax_output_gives_the_token_of_the_logits(tiny_bundle):
    _, bundle = tiny_bundle("llama", kv="state")
    _, chooser = tiny_bundle("llama", kv="state", argmax_output=True, head_rows=100)
    assert plan(chooser.config, chooser.recipe).splits == (85, 86, 86)
    whole, choosing = Session(bundle), Session(chooser)
    for tokens in (3, PREFILL + 2):
        assert choosing.prefill(prompt(tokens)) == whole.prefill(prompt(tokens)).argmax()


def test_golden_numbers_are_those_of_transformers(tiny_bundle):
    model, bundle = tiny_bundle("qwen3", kv="state", shard_limit=ONE_LAYER_EACH)
    golden = bundle.golden()
    expected = expected_logits(model, golden["tokens"].tolist())
    np.testing.assert_allclose(golden["logits"], expected[-1], rtol=1e-4, atol=2e-4)
    assert golden["argmax"].tolist() == expected.argmax(axis=1).tolist()


def test_coremltools_reads_what_the_linker_writes(tiny_bundle, tmp_path):
    """Types and shapes of every op, re-inferred by coremltools from the package on disk."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto import load

    for kv, quant in [("state", "int8"), ("host", "lut4")]:
        _, bundle = tiny_bundle("qwen2", kv=kv, quant=quant)
        for package in bundle.path.glob("*.mlpackage"):
            # MLModel rewrites what it opens
            copy = shutil.copytree(package, tmp_path / kv / quant / package.name)
            model = ct.models.MLModel(str(copy), skip_model_load=True)
            spec = model.get_spec()
            for name in ("decode", "prefill"):
                program = load.load(
                    spec,
                    specification_version=spec.specificationVersion,
                    file_weights_dir=model.weights_dir,
                    function_name=name,
                )
                program.validate(check_essential_scope=False)
                assert program.functions[name].outputs


def test_graph_size():
    """Ops per layer: the peers have 65 to 102 (PEERS.md)."""
    config = DecoderConfig(
        architecture="llama", hidden_size=64, intermediate_size=96, num_layers=1, num_heads=4,
        num_kv_heads=2, head_dim=32, vocab_size=257, rms_norm_eps=1e-5, rope_theta=1e4,
        max_position=64,
    )  # fmt: skip
    for name, pieces in lower_blocks(config, Recipe(context=32, prefill=8)).items():
        (piece,) = pieces.blocks.values()
        ops = [operation.type for operation in piece.operations if operation.type != "const"]
        assert len(ops) <= 41, (name, ops)


class TestPlan:
    def test_sizes(self):
        assert parse_bytes("250MB") == 250_000_000
        assert parse_bytes("1.5 gb") == 1_500_000_000
        assert parse_bytes(17) == 17
        for bad in ("much", "-1GB", "1TB", "", "9" * 400 + "GB"):
            with pytest.raises(InvalidInput, match="is not a size"):
                parse_bytes(bad)

    def test_the_vocabulary_is_cut_evenly(self):
        assert head_splits(49152, 16384) == (16384, 16384, 16384)
        splits = head_splits(151936, 16384)
        assert sum(splits) == 151936 and max(splits) <= 16384 and max(splits) - min(splits) <= 1


class TestWholeOrNotAtAll:
    def test_a_second_call_finds_the_first_bundle(self, tiny, tmp_path):
        _, folder = tiny("llama")
        arguments = {"out": tmp_path / "b", "context": 32, "prefill": 8}
        first = ane_book.convert(str(folder), **arguments)
        stamp = (first.path / "manifest.json").stat().st_mtime_ns
        again = ane_book.convert(str(folder), **arguments)
        assert (again.path / "manifest.json").stat().st_mtime_ns == stamp
        said = "another conversion, of .* with context=32, not 64, quant=none, not int8, .*; choose"
        with pytest.raises(InvalidInput, match=said):
            ane_book.convert(str(folder), **arguments | {"context": 64, "quant": "int8"})
        with pytest.raises(WeightsNotFound, match="a bundle, which is converted already"):
            ane_book.convert(str(first.path))
        forced = ane_book.convert(str(folder), **arguments | {"context": 64}, force=True)
        assert forced.recipe.context == 64

    @pytest.mark.parametrize("seconds", long_but([0.0, 0.3, 0.8, 1.5], 0.3))
    def test_killed_at_any_moment_it_leaves_nothing_that_loads_and_goes_on(
        self, tiny, tmp_path, seconds
    ):
        _, folder = tiny("llama", num_hidden_layers=6)
        out = tmp_path / "bundle"
        recipe = {"context": 32, "prefill": 8, "shard_limit": ONE_LAYER_EACH}
        child = processes.Process(target=ane_book.convert, args=(str(folder), out), kwargs=recipe)
        child.start()
        time.sleep(seconds)
        child.kill()
        child.join()
        if out.exists():  # it was faster than we were: then the bundle is whole
            Bundle.open(out)
        else:
            with pytest.raises(InvalidBundle, match="not a bundle"):
                Bundle.open(out)
            partial = out.with_name("bundle.partial")
            if partial.exists():
                with pytest.raises(InvalidBundle):
                    Bundle.open(partial)
        bundle = ane_book.convert(str(folder), out=out, **recipe)
        golden = bundle.golden()
        logits = Session(bundle, precision="fp32").logits(golden["tokens"].tolist())
        assert logits.argmax(axis=1).tolist() == golden["argmax"].tolist()
        assert not out.with_name("bundle.partial").exists()

    def test_an_interrupted_conversion_keeps_its_finished_shards(self, tiny, tiny_bundle, tmp_path):
        """And makes golden numbers between shards again with which the machine went down."""
        _, folder = tiny("llama", num_hidden_layers=4)
        out = tmp_path / "bundle"

        def stop(description: str, done: int, total: int) -> None:
            if description.startswith("layer 3"):
                raise KeyboardInterrupt

        recipe = {"context": 32, "prefill": 8, "shard_limit": ONE_LAYER_EACH}
        with pytest.raises(KeyboardInterrupt):
            ane_book.convert(str(folder), out=out, **recipe, progress=stop)
        kept = out.with_name("bundle.partial") / "layers_01-02.mlpackage"
        stamp = (kept / "Manifest.json").stat().st_mtime_ns
        kept.with_name("hidden_002.npz").write_bytes(b"")
        bundle = ane_book.convert(str(folder), out=out, **recipe)
        assert (bundle.path / kept.name / "Manifest.json").stat().st_mtime_ns == stamp
        _, whole = tiny_bundle("llama", (("num_hidden_layers", 4),), **recipe)
        found, expected = bundle.golden(), whole.golden()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_the_journal_leaves_alone_what_is_being_written(tmp_path):
    """Evidence is written under another name first, while the journal's thread looks around."""
    folder = tmp_path / "partial"
    with Journal(folder, "key") as journal:
        for name in ("golden.npz", "unfinished_golden.npz", "evidence.json.1.part"):
            (folder / name).write_bytes(b"1")
        journal.note()
        assert set(journal.hashes()) == {"golden.npz"}


def test_the_journal_of_who_was_killed_before_it_was_whole_is_taken_away(tmp_path):
    folder = tmp_path / "partial"
    folder.mkdir()
    (folder / "unfinished_journal.json").write_text('{"key": "ke')
    with Journal(folder, "key") as journal:
        assert journal.hashes() == {}
    assert [path.name for path in folder.iterdir()] == ["journal.json"]
    journal.remove()
    (folder / "unfinished_journal.json").write_text("")
    (folder / "mine").write_text("")
    with pytest.raises(InvalidInput, match="neither empty nor a bundle"):
        Journal(folder, "key")


@pytest.mark.parametrize(("number", "kinds"), [(6e4, ["mul"]), (7e4, ["cast", "mul", "cast"])])
def test_what_half_precision_cannot_hold_stays_in_single(number, kinds):
    class Times(torch.nn.Module):
        def forward(self, x):
            return x * number

    piece = lowering.lower(Times(), {"x": torch.zeros(1, 8, 1, 1)}, ["y"])
    assert [o.type for o in piece.operations if o.type != "const"] == kinds

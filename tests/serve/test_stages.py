"""Where layers go, and stages at work, without Ray: cuts, packages that are sent, plans."""

from itertools import combinations
from pathlib import Path
from random import Random
import shutil

from _tiny import prompt
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidBundle, InvalidInput, OutOfSpace
from ane_book.runtime import Session
from ane_book.runtime.model_runner import HostInputs
from ane_serve.cluster.files import PIECE, Files, pieces
from ane_serve.cluster.layout import crossing, cut, sizes, units
from ane_serve.cluster.plan import split
from ane_serve.cluster.stage import Stage
import numpy as np
import pytest

LIMIT = 100_000  # bytes: a shard for each of the tiny model's three layers


@pytest.fixture(scope="module")
def bundle(tiny_bundle) -> Bundle:
    bundle = tiny_bundle("llama", kv="state", shard_limit=LIMIT)[1]
    assert len(units(bundle.manifest)) == 3
    return bundle


def opened(bundle: Bundle, first: int, last: int, path: Path | None = None) -> Stage:
    stage = Stage()
    text = (bundle.path / "manifest.json").read_text()
    assert (stage.open(str(path or bundle.path), text, first, last) == []) == (path is None)
    return stage


def loaded(bundle: Bundle, first: int, last: int) -> Stage:
    stage = opened(bundle, first, last)
    assert stage.load("fp32", "mil", 1) == "mil"
    return stage


def files(bundle: Bundle, first: int, last: int, path: Path) -> Files:
    parts = [part for own in units(bundle.manifest)[first:last] for part in own]
    text = (bundle.path / "manifest.json").read_text()
    return Files(path, text, bundle.manifest, [part.package for part in parts])


class TestCut:
    @pytest.mark.parametrize("seed", range(100))
    def test_the_largest_range_is_the_least_there_is(self, seed):
        draw = Random(seed)
        costs = [draw.randint(1, 50) for _ in range(draw.randint(1, 7))]
        machines, first = draw.randint(1, 5), draw.choice([0, 10, 80])
        found = cut(costs, machines, first)
        count = min(machines, len(costs))
        assert [i for own in found for i in own] == list(range(len(costs)))
        assert len(found) == count and all(len(own) for own in found)

        def largest(starts) -> int:
            ends = (*starts[1:], len(costs))
            sums = [sum(costs[a:b]) for a, b in zip(starts, ends, strict=True)]
            return max(sums[0] + first, *sums[1:], 0)

        ways = combinations(range(1, len(costs)), count - 1)
        assert largest([own[0] for own in found]) == min(largest((0, *way)) for way in ways)

    def test_a_bundle_is_cut_between_its_shards(self, bundle):
        costs, head = sizes(bundle.manifest)
        assert len(costs) == 3 and min(costs) > 50_000 and head > 30_000
        assert sum(costs) + head < sum(bundle.manifest.files.values())
        assert [crossing(bundle.manifest, i) for i in range(4)] == [{"hidden": 64}] * 4


class TestStage:
    def test_stages_in_a_row_are_the_whole(self, bundle):
        """Two sessions, their tokens one by one and in turn; what a cache holds stays its own."""
        first, second = loaded(bundle, 0, 1), loaded(bundle, 1, 3)
        feeds = HostInputs(bundle, np.dtype(np.float32))
        ids = np.array(prompt(20))
        texts = {1: ids[:9], 2: ids[9:18]}
        found = {1: [], 2: []}
        for at in range(9):
            for session, own in texts.items():
                values = {"hidden": feeds.columns(own[at : at + 1])[None, :, None]}
                for stage in (first, second):
                    values = stage.run(session, [], "decode", at, values)
                assert list(values) == ["hidden"]
                found[session].append(values["hidden"])
        for session, own in texts.items():
            whole = Session(bundle, precision="fp32")
            for at, hidden in enumerate(found[session]):
                expected = whole._runner.forward("decode", own[at : at + 1], at)
                np.testing.assert_array_equal(hidden, expected)
        assert set(first._caches) == {1, 2}
        first.run(3, [1, 2, 7], "decode", 0, {"hidden": np.zeros((1, 64, 1, 1), np.float32)})
        assert set(first._caches) == {3}

    @pytest.mark.parametrize("form", ["rows", "apple"])
    def test_a_chunk_needs_no_padding_on_the_wire(self, tiny_bundle, form):
        bundle = tiny_bundle("llama", kv="state", shard_limit=LIMIT, form=form)[1]
        feeds, ids = HostInputs(bundle, np.dtype(np.float32)), np.array(prompt(5))
        values = {"hidden": feeds.columns(ids)[None, :, None]}
        found = loaded(bundle, 0, 3).run(1, [], "prefill", 0, values)["hidden"]
        expected = Session(bundle, precision="fp32")._runner.forward("prefill", ids, 0)
        assert found.shape == (1, 64, 1, 5)
        np.testing.assert_array_equal(found, expected[..., :5])


class TestFiles:
    """A machine without the bundle is sent its packages; each is kept whole or not at all."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))

    def send(self, bundle: Bundle, there: Files, package: str, damage: bytes = b"") -> None:
        there.begin(package)
        for name in bundle.manifest.files:
            if name.startswith(f"{package}/"):
                for piece in pieces(bundle.path / name):
                    there.receive(name, damage or piece)

    def test_what_is_sent_runs_and_is_kept(self, bundle, tmp_path):
        there = files(bundle, 1, 3, tmp_path / "none")
        missing = there.missing()
        assert missing == [own[0].package for own in units(bundle.manifest)[1:]]
        for package in missing:
            self.send(bundle, there, package)
            assert not (there.folder / package).exists()
            there.keep(package)
        assert there.missing() == files(bundle, 2, 3, tmp_path / "none").missing() == []
        assert files(bundle, 0, 2, tmp_path / "none").missing() == ["layers_00-01.mlpackage"]
        (entry,) = ane_book.bundle.cache.entries()
        assert entry.path == there.folder and entry.bytes > 100_000
        text = (bundle.path / "manifest.json").read_text()
        stage = Stage()
        assert stage.open(str(tmp_path / "none"), text, 1, 3) == []
        assert stage.load("fp16", None, 1)

    def test_what_arrives_damaged_is_not_kept(self, bundle, tmp_path):
        there = files(bundle, 0, 1, tmp_path)
        (package,) = there.missing()
        self.send(bundle, there, package, damage=b"x")
        reason = r"arrived with .*weight.bin.* changed: on the machine that sent it `ane-book"
        with pytest.raises(InvalidBundle, match=reason):
            there.keep(package)
        assert list(there.folder.iterdir()) == []
        self.send(bundle, there, package)  # cut off in the middle
        self.send(bundle, there, package)
        there.keep(package)
        assert there.missing() == []

    def test_what_is_damaged_in_the_cache_is_sent_again(self, bundle, tmp_path):
        there = files(bundle, 0, 1, tmp_path)
        (package,) = there.missing()
        self.send(bundle, there, package)
        there.keep(package)
        weights = next((there.folder / package).rglob("weight.bin"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        assert there.missing() == [package]
        self.send(bundle, there, package)
        there.keep(package)
        assert there.missing() == []

    def test_a_bundle_of_its_own_that_is_damaged_is_told(self, bundle, tmp_path):
        own = Path(shutil.copytree(bundle.path, tmp_path / "b"))
        weights = next((own / "layers_02-03.mlpackage").rglob("weight.bin"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        assert files(bundle, 0, 2, own).missing() == []  # not its part
        with pytest.raises(InvalidBundle, match=r"layers_02-03.*weight\.bin; copy the bundle"):
            files(bundle, 0, 3, own).missing()

    @pytest.mark.parametrize("name", ["tokenizer.json", "../x", "layers_01-02.mlpackage/a"])
    def test_nothing_else_is_written(self, bundle, tmp_path, name):
        with pytest.raises(InvalidBundle, match="no file of"):
            files(bundle, 0, 1, tmp_path).receive(name, b"x")
        assert not (tmp_path / "cache").exists()

    def test_a_cache_that_cannot_be_written(self, bundle, tmp_path):
        (tmp_path / "cache").write_text("a file")
        there = files(bundle, 0, 1, tmp_path)
        with pytest.raises(OutOfSpace, match="cannot be written"):
            self.send(bundle, there, there.missing()[0])

    def test_pieces_are_the_file(self, tmp_path):
        path = tmp_path / "f"
        for size in (0, 1, PIECE, PIECE + 1):
            path.write_bytes(bytes(size))
            found = list(pieces(path))
            assert b"".join(found) == bytes(size) and len(found) == max(1, -(-size // PIECE))


class TestPlan:
    def test_two_machines(self):
        plan = ane_book.plan("phi-4-mini-instruct", quant="int8")
        found = split(plan, 2)
        assert sum(found.weights) == plan.weight_bytes
        assert [i for own in found.layers for i in own] == list(range(32))
        assert found.token_bytes == 2 * 2 * 3072  # 2 C there and 2 C back
        assert 1 < found.gain <= 2
        text = "\n".join(" ".join(line) for line in found.rows())
        assert "12,288 bytes a token, 786,432 for 64 tokens" in text
        assert "1 Gbit/s: at most 20,345 tokens/s" in text  # 1e9 / 8 / (2 * 3072)

    def test_more_machines_than_programs(self):
        found = split(ane_book.plan("smollm2-135m-instruct"), 2)
        text = "\n".join(" ".join(line) for line in found.rows())
        assert len(found.layers) == 1 and "--shard-limit 107MB or less" in text
        again = split(ane_book.plan("smollm2-135m-instruct", shard_limit="107MB"), 2)
        assert len(again.layers) == 2

    def test_what_cannot_be_cut(self):
        with pytest.raises(InvalidInput, match="generates no text"):
            split(ane_book.plan("all-minilm-l6-v2"), 2)
        with pytest.raises(InvalidInput, match="1 or more"):
            split(ane_book.plan("smollm2-135m-instruct"), 0)


@pytest.mark.parametrize(("family", "said"), [
    pytest.param("gemma4_text", "for which the machines of a cluster have no table",
                 marks=pytest.mark.long),
    ("qwen3_5_text", "its layers have a memory, of which a cluster keeps no"),
])  # fmt: skip
def test_layers_that_no_stage_can_run_are_refused(tiny_bundle, family, said):
    pytest.importorskip("ray")
    from ane_serve.cluster.pipeline import ClusterPipeline

    with pytest.raises(InvalidInput, match=said):
        ClusterPipeline(tiny_bundle(family, kv="state")[1])

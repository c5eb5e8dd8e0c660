"""The plan of a conversion: what it says is what is written; the three partitions; full disks.

Every bundle here is converted for real and run by the executor.
"""

from collections.abc import Iterator
from functools import partial
import json
from pathlib import Path
import re
import shutil
import subprocess
import sys

from _command import ane_book as command
from _command import refused
from _tiny import TINY, tiny_model, write_checkpoint
import ane_book
from ane_book.bundle import Bundle
from ane_book.conversion import limits, reference_models
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.quantize import SCHEMES, encode
from ane_book.conversion.recipe import make_recipe
from ane_book.conversion.shards import blob_bytes
from ane_book.errors import (
    InvalidBundle,
    InvalidInput,
    InvalidWeights,
    OutOfSpace,
    UnknownModel,
    UnsupportedModel,
    WeightsNotFound,
)
from ane_book.mil.package.weight_file import stored_bytes
from ane_book.runtime import Session
from ane_book.runtime.backends import MILBackend
import numpy as np
import pytest
import torch

PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]
CUT = {"partition": "projections", "head_rows": 100}
QWEN = "qwen2.5-0.5b-instruct"
PHI = "phi-4-mini-instruct"


def weight_bytes(bundle: Bundle) -> dict[str, int]:
    """Package -> bytes of its weight file."""
    files = bundle.path.glob("*.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
    return {file.parents[3].name: file.stat().st_size for file in files}


class Counting(MILBackend):
    """The executor, counting the calls of programs."""

    calls = 0

    def load(self, package: Path, function: str):
        program = super().load(package, function)
        predict = program.predict

        def counted(*arguments):
            self.calls += 1
            return predict(*arguments)

        program.predict = counted
        return program


class TestBytes:
    """Planned and written are the same number, not close."""

    def check(self, bundle: Bundle) -> None:
        planned, written = plan(bundle.config, bundle.recipe), weight_bytes(bundle)
        assert written == {program.package: program.bytes for program in planned.programs}
        assert bundle.manifest.packages == [program.package for program in planned.programs]
        assert planned.weight_bytes == sum(written.values())
        embedding = (bundle.path / "embedding.npy").stat().st_size
        assert 0 < embedding - planned.embedding_bytes <= 128  # the header of a .npy file

    @pytest.mark.parametrize("family", TINY)
    def test_of_every_family(self, tiny_bundle, family):
        for recipe in ({"kv": "state"}, CUT):
            self.check(tiny_bundle(family, **recipe)[1])

    @pytest.mark.parametrize("quant", ["int4", "lut6-tensor"])
    def test_of_shards(self, tiny_bundle, quant):
        self.check(tiny_bundle("qwen2", quant=quant, quant_head="none", shard_limit=200_000)[1])

    @pytest.mark.parametrize("quant", SCHEMES)
    @pytest.mark.parametrize("outputs", [64, 257])  # of the second no group of 8 is whole
    def test_of_every_scheme(self, quant, outputs):
        weight = torch.randn(outputs, 96, 1, 1, generator=torch.Generator().manual_seed(0))
        operands = encode(weight, SCHEMES[quant]).operands.values()
        stored = [stored_bytes(dtype, array.shape) for dtype, array in operands]
        assert blob_bytes((outputs, 96, 1, 1), SCHEMES[quant]) == stored

    def test_the_limit_is_for_the_bytes_as_stored(self):
        config = find_config(PHI)
        sizes = {}
        for quant in ("none", "int8", "lut4"):
            made = plan(config, make_recipe(quant=quant, shard_limit="250MB"))
            sizes[quant] = len(made.shards)
            assert max(program.bytes for program in made.programs) <= 250_000_000
        assert sizes == {"none": 32, "int8": 16, "lut4": 8}


#: Converts in a process of its own and prints the most memory that it held, in bytes.
PEAK = """
import sys
import ane_book
from ane_book.mil.analysis.memory import peak_resident
ane_book.convert(sys.argv[1], out=sys.argv[2], context=32, prefill=8)
print(peak_resident())
"""


class TestEffort:
    """What a plan says of bytes and memory, against what conversions took."""

    FULL_SIZE = Path(__file__).parents[1] / "research" / "measurements" / "full_size.json"
    MODELS = json.loads(FULL_SIZE.read_text())["models"]

    @pytest.mark.parametrize("name", MODELS)
    def test_files_at_full_size_had_the_planned_bytes(self, name):
        found = self.MODELS[name]
        recipe = make_recipe(quant=found["quant"], shard_limit=found["limit"])
        planned = plan(find_config(name), recipe)
        assert {p.package: p.bytes for p in planned.programs} == found["programs"]
        assert planned.embedding_bytes == found["embedding_bytes"]

    @pytest.mark.slow
    def test_a_conversion_takes_the_planned_memory(self, tmp_path):
        """Most of it for the embedding of 77 million weights: a factor wrong by one is seen."""
        model = tiny_model("llama", vocab_size=100_000, hidden_size=768, tie_word_embeddings=True)
        folder = write_checkpoint(model, tmp_path / "model")
        planned = plan(find_config(str(folder)), make_recipe(context=32, prefill=8))
        command = [sys.executable, "-c", PEAK, folder, tmp_path / "bundle"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert planned.memory_bytes == pytest.approx(int(done.stdout), rel=0.15)


class TestPartitions:
    def tokens(self, session: Session, count: int) -> list[int]:
        logits, found = session.prefill(PROMPT), []
        for _ in range(count):
            found.append(int(logits.argmax()))
            logits = session.decode(found[-1])
        return found

    @pytest.mark.parametrize("family", TINY)
    def test_projections_give_the_tokens_of_layers(self, tiny_bundle, family):
        """fp32: 20 greedy tokens, and the logits of all to within the order of a sum."""
        _, layers = tiny_bundle(family, kv="state")
        _, cut = tiny_bundle(family, **CUT)
        sessions = [Session(bundle, precision="fp32") for bundle in (layers, cut)]
        tokens = [self.tokens(session, 20) for session in sessions]
        assert tokens[0] == tokens[1]
        for session in sessions:
            session.reset()
        whole = PROMPT + tokens[0][:10]
        logits = [session.logits(whole) for session in sessions]
        np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)

    def test_projections_in_half_precision(self, tiny_bundle):
        model, bundle = tiny_bundle("qwen3", **CUT)
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
        found = Session(bundle).logits(PROMPT)
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9999

    def test_projections_forget(self, tiny_bundle):
        session = Session(tiny_bundle("phi3", **CUT)[1], precision="fp32")
        first = session.logits(range(20))
        session.rewind(3)
        np.testing.assert_allclose(session.logits(range(3, 20)), first[3:], rtol=1e-4, atol=1e-4)
        session.reset()
        np.testing.assert_array_equal(session.logits(range(20)), first)

    def test_whole_is_one_program_whatever_the_limit(self):
        made = plan(find_config(PHI), make_recipe(partition="whole", shard_limit="1MB"))
        assert [shard.layers for shard in made.shards] == [range(32)]
        assert [list(program.parts) for program in made.head] == [list(range(13))]

    @pytest.mark.parametrize("partition", ["layers", "projections"])
    def test_a_token_takes_the_dispatches_that_were_planned(self, tiny_bundle, partition):
        _, bundle = tiny_bundle("qwen2", partition=partition, head_rows=100, shard_limit=150_000)
        planned = len(plan(bundle.config, bundle.recipe).programs)
        assert planned == {"layers": 3 + 1, "projections": 3 * 7 + 3}[partition]
        backend = Counting("fp32")
        session = Session(bundle, backend=backend)
        session.decode(1)
        assert backend.calls == planned

    def test_a_head_in_several_programs(self, tiny_bundle):
        """The vocabulary too is cut by the limit, not by `head_rows` alone."""
        changes = (("vocab_size", 2003),)
        model, bundle = tiny_bundle("llama", changes, kv="state", shard_limit=70_000)
        packages = dict.fromkeys(bundle.manifest.head.packages)
        assert len(packages) == 4 and sum(bundle.manifest.head.splits) == 2003
        assert max(weight_bytes(bundle).values()) <= 70_000
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
        found = Session(bundle, precision="fp32").logits(PROMPT)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)
        np.testing.assert_allclose(bundle.golden()["logits"].shape, (2003,))

    def test_the_engine_of_the_documents(self):
        """Qwen2.5-0.5B: 24 x 7 matrices, and a head of 16 x 9,496 rows."""
        recipe = make_recipe(partition="projections", head_rows=9496)
        made = plan(find_config(QWEN), recipe)
        assert (len(made.shards), len(made.head)) == (24 * 7, 16)
        assert set(made.splits) == {9496}
        assert [s.projection for s in made.shards[:7]] == ["q", "k", "v", "o", "gate", "up", "down"]
        assert recipe.kv == "host"

    @pytest.mark.parametrize("step", ["layer 2", "head"])
    def test_projections_go_on_where_they_stopped(self, tiny, tiny_bundle, tmp_path, step):
        (_, folder), (_, expected) = tiny("llama"), tiny_bundle("llama", **CUT)
        convert = partial(ane_book.convert, str(folder), tmp_path / "b", context=32, prefill=8)

        def stop(description: str, done: int, total: int) -> None:
            if description.startswith(step):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert(**CUT, progress=stop)
        assert convert(**CUT).manifest.files == expected.manifest.files

    def test_a_bundle_that_lacks_a_projection(self, tiny_bundle, tmp_path):
        _, bundle = tiny_bundle("llama", **CUT)
        copy = shutil.copytree(bundle.path, tmp_path / "b")
        manifest = json.loads((copy / "manifest.json").read_text())
        del manifest["shards"][3]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InvalidBundle, match="layers 0 to 0 out of order"):
            Bundle.open(copy)

    def test_a_program_of_another_shape(self, tiny_bundle, tmp_path):
        _, bundle = tiny_bundle("llama", **CUT)
        copy = shutil.copytree(bundle.path, tmp_path / "b")
        manifest = json.loads((copy / "manifest.json").read_text())
        up, down = (shard for shard in manifest["shards"][5:7])
        up["package"], down["package"] = down["package"], up["package"]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InvalidBundle, match=r"has shape .* manifest.json says"):
            Session(copy)


class TestNotes:
    """Evidence is shown where a plan touches it, with its grade and source, and nowhere else."""

    def notes(self, model: str, **options) -> str:
        return "\n".join(plan(find_config(model), make_recipe(**options)).notes())

    def test_nothing_is_said_of_a_plan_within_all_limits(self):
        assert self.notes(QWEN, quant="int8", shard_limit="150MB") == ""

    @pytest.mark.parametrize(
        ("touched", "model", "options"),
        [
            (limits.WEIGHTS[:1], QWEN, {}),
            ((*limits.WEIGHTS[:2], limits.LOADED), PHI, {"shard_limit": "1.1GB"}),
            ((*limits.WEIGHTS, limits.LOADED), PHI, {"partition": "whole"}),
            ((limits.SMALL,), "smollm2-135m-instruct", {"shard_limit": "10MB"}),
            (limits.WEIGHTS[:1] + limits.AXIS[:1], QWEN, {"head_rows": 50_000}),
            (limits.WEIGHTS[:1] + limits.AXIS, QWEN, {"head_rows": 200_000}),
            ((limits.SMALL, limits.CALLS), QWEN, {"partition": "projections"}),
        ],
    )
    def test_each_limit_where_it_is_touched(self, touched, model, options):
        said = self.notes(model, **options)
        everything = (*limits.WEIGHTS, *limits.AXIS, limits.SMALL, limits.LOADED, limits.CALLS)
        for limit in everything:
            line = f"{limit.says} ({limit.grade}: {limit.source})"
            assert (line in said) == (limit in touched), limit

    def test_the_quality_that_was_measured(self):
        for quant, said in (("int8", "+0.7 % perplexity"), ("lut4", "+925 % perplexity"),
                            ("lut6-g8", "not measured")):  # fmt: skip
            facts = dict(plan(find_config(QWEN), make_recipe(quant=quant)).facts())
            assert facts["quality"] == f"{said}, on SmolLM2-135M"
        assert dict(plan(find_config(QWEN), make_recipe()).facts())["quality"].startswith(
            "as the source"
        )

    def test_the_warning_of_a_scheme(self):
        assert "lut4 broke SmolLM2-135M" in self.notes(QWEN, quant="lut4")
        assert "coremltools issue 2510" in self.notes(QWEN, quant="int4", shard_limit="150MB")


class TestConfiguration:
    def test_the_command_needs_no_weights(self, tmp_path):
        config = reference_models()[QWEN].config
        (tmp_path / "config.json").write_text(json.dumps(config))
        done = command("plan", tmp_path, "--quant", "int8", "--limit", "150MB")
        assert (done.returncode, done.stderr) == (0, "")
        planned = plan(find_config(QWEN), make_recipe(quant="int8", shard_limit="150MB"))
        for heading, text in planned.facts():
            assert f"{heading} " in done.stdout and f" {text}" in done.stdout
        assert "layers 0 to 7: 119.5 MB" in done.stdout
        assert "4 dispatches in decode" in done.stdout

    def test_a_limit_smaller_than_one_layer(self):
        message = refused("convert", QWEN, "--source", "random", "--limit", "10MB")
        assert "one layer has 29.8 MB" in message and "raise the limit" in message

    def test_of_a_checkpoint(self, tiny):
        model, folder = tiny("llama")
        assert find_config(str(folder)).hidden_size == model.config.hidden_size

    def test_folders_that_say_nothing_of_use(self, tmp_path):
        with pytest.raises(WeightsNotFound, match="holds config.json"):
            find_config(str(tmp_path))
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(InvalidWeights, match="config.json: not JSON"):
            find_config(str(tmp_path))
        (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
        with pytest.raises(UnsupportedModel, match=r"'mamba' .* supported: .*llama"):
            find_config(str(tmp_path))
        with pytest.raises(UnknownModel, match="did you mean qwen2.5"):
            find_config("qwen2.5-0.5b")


class TestRefusals:
    def test_a_projection_beyond_the_limit(self):
        with pytest.raises(InvalidInput, match="projection gate has 8.7 MB .* raise the limit"):
            plan(find_config(QWEN), make_recipe(partition="projections", shard_limit="8MB"))

    @pytest.mark.parametrize(
        "options", [{"shard_limit": "100MB"}, {"partition": "projections"}], ids=str
    )
    def test_a_head_that_cannot_be_split(self, options):
        with pytest.raises(InvalidInput, match="argmax_output picks the token inside one program"):
            plan(find_config(QWEN), make_recipe(argmax_output=True, **options))

    def test_no_rows_in_a_part(self):
        with pytest.raises(InvalidInput, match="at least one row, not 0"):
            plan(find_config(QWEN), make_recipe(head_rows=0))

    def test_another_partition(self):
        with pytest.raises(InvalidInput, match='"layers", "whole", "projections", not \'heads\''):
            make_recipe(partition="heads")


CHILD = """
import resource, sys
import ane_book
from ane_book.errors import OutOfSpace
folder, out, *sizes = sys.argv[1:]
for most in sizes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), resource.RLIM_INFINITY))
    try:
        ane_book.convert(folder, out=out, context=32, prefill=8)
    except OutOfSpace as error:
        print(error)
"""


class TestFullDisk:
    def check(self, folder: Path, out: Path, expected: Bundle) -> None:
        """Nothing that loads is there; with room again, the conversion ends as if undisturbed."""
        assert not out.exists()
        with pytest.raises(InvalidBundle):
            Bundle.open(out.with_name(f"{out.name}.partial"))
        recipe = {} if expected.recipe.partition == "layers" else CUT
        made = ane_book.convert(str(folder), out=out, context=32, prefill=8, **recipe)
        assert made.manifest.files == expected.manifest.files

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
    def test_a_file_that_cannot_be_written(self, tiny, tiny_bundle, tmp_path):
        """The embedding, which numpy writes; the weights of a package, which C++ writes."""
        (_, folder), (_, expected) = tiny("llama"), tiny_bundle("llama", kv="state")
        out = tmp_path / "b"
        command = [sys.executable, "-c", CHILD, folder, out, "20000", "100000"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        assert len(lines) == 2 and "Traceback" not in done.stderr, done.stderr
        for line, step in zip(lines, (0, 3), strict=True):
            assert f"b.partial: the disk took no more after step {step} of 6; make" in line
        self.check(folder, out, expected)

    @pytest.fixture
    def small_disk(self, tmp_path) -> Iterator[Path]:
        """A file system of one megabyte."""
        path = tmp_path / "disk"
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
        if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("only root of a Linux machine may mount a small disk")
        yield path
        subprocess.run(["umount", str(path)], check=True)

    def test_a_disk_that_fills_up_in_the_middle(self, tiny, tiny_bundle, small_disk):
        (_, folder), (_, expected) = tiny("llama"), tiny_bundle("llama", **CUT)
        filler = small_disk / "filler"

        def fill(description: str, done: int, total: int) -> None:
            if description.startswith("layer 1") and not filler.exists():
                filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 20_000))

        convert = partial(ane_book.convert, str(folder), context=32, prefill=8)
        with pytest.raises(OutOfSpace, match="took no more after step 3 of 6; make room"):
            convert(out=small_disk / "b", **CUT, progress=fill)
        filler.unlink()
        self.check(folder, small_disk / "b", expected)

    def test_a_disk_too_small_from_the_start(self, tiny, small_disk):
        _, folder = tiny("llama")
        (small_disk / "filler").write_bytes(bytes(900_000))
        with pytest.raises(OutOfSpace) as error:
            ane_book.convert(str(folder), out=small_disk / "b", context=32, prefill=8)
        needed, free = re.findall(r"([\d.]+) MB", str(error.value))
        assert float(needed) > float(free) and float(needed) < 1


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_projections_of_the_real_model_give_the_tokens_of_layers():
    """SmolLM2, 64 greedy tokens in fp32, of a prompt in one call and of one in several."""
    from _common import bundle
    from parity import PROMPTS, greedy, token_ids

    layers = Session(bundle(kv="state"), precision="fp32")
    backend = Counting("fp32")
    cut = Session(bundle(partition="projections"), backend=backend)
    for prompt in (PROMPTS[0], PROMPTS[-1]):
        ids = token_ids(layers, prompt)
        assert greedy(cut, ids) == greedy(layers, ids)
    before = backend.calls
    cut.rewind(0)
    cut.decode(0)
    assert backend.calls - before == 30 * 7 + 3

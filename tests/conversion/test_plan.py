"""The plan of a conversion: what it says is what is written."""

import json
from pathlib import Path
import subprocess
import sys

from _command import ane_book as command
from _long import long_but
from _tiny import REPRESENTATIVES
import ane_book
from ane_book.bundle import Bundle
from ane_book.conversion import reference_models
from ane_book.conversion.plan import find_config, plan, report
from ane_book.conversion.plan.programs import blob_bytes
from ane_book.conversion.quantize.encoded import encode
from ane_book.conversion.quantize.schemes import SCHEMES
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import (
    InvalidWeights,
    UnknownModel,
    UnsupportedModel,
    WeightsNotFound,
)
from mlprogram.package.weight_file import stored_bytes
import pytest
import torch

CUT = {"kv": "host", "head_rows": 100, "shard_limit": 200_000}
APART = {"experts": "dispatch", "shard_limit": "30MB"}
QWEN = "qwen2.5-0.5b-instruct"
PHI = "phi-4-mini-instruct"


def weight_bytes(bundle: Bundle) -> dict[str, int]:
    """Package -> bytes of its weight file."""
    files = bundle.path.glob("*.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
    return {file.parents[3].name: file.stat().st_size for file in files}


class TestBytes:
    """Planned and written are the same number, not close."""

    def check(self, bundle: Bundle) -> None:
        planned, written = plan(bundle.config, bundle.recipe), weight_bytes(bundle)
        assert written == planned.packages
        assert [part.package for part in bundle.manifest.packages] == [*planned.packages]
        assert planned.weight_bytes == sum(written.values())
        embedding = (bundle.path / "embedding.npy").stat().st_size
        assert 0 < embedding - planned.embedding_bytes <= 128  # the header of a .npy file
        for program, part in zip(planned.programs, bundle.manifest.packages, strict=True):
            assert {*planned.functions(program)} == {*part.functions} >= {*planned.called(program)}
        counts = {program.package: len(planned.called(program)) for program in planned.programs}
        assert planned.wired.functions == sum(counts.values())
        assert planned.wired.shared == planned.weight_bytes
        assert planned.wired.copied == sum(counts[name] * size for name, size in written.items())

    @pytest.mark.parametrize("family", long_but(REPRESENTATIVES, "llama", "qwen3_5_text"))
    def test_of_every_kind_of_family(self, tiny_bundle, family):
        self.check(tiny_bundle(family, kv="state")[1])
        self.check(tiny_bundle(family, **CUT)[1])

    def test_of_tiers(self, tiny_bundle):
        self.check(tiny_bundle("llama", context=64, tiers=(32,), verify=4)[1])

    def test_of_shards(self, tiny_bundle):
        self.check(tiny_bundle("qwen2", quant="lut6", quant_head="none", shard_limit=200_000)[1])

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
import json
import sys
import ane_book
from mlprogram.analysis.memory import peak_resident
ane_book.convert(sys.argv[1], sys.argv[2], "random", **json.loads(sys.argv[3]))
print(peak_resident())
"""


SMOLLM = "smollm2-135m-instruct"
LONG_CALLS = {"context": 8192, "prefill": 1024}


class TestEffort:
    """What a plan says of bytes and memory, against what conversions took."""

    FULL_SIZE = Path(__file__).parents[2] / "research" / "measurements" / "full_size.json"
    MODELS = json.loads(FULL_SIZE.read_text())["models"]

    @pytest.mark.parametrize("name", MODELS)
    def test_files_at_full_size_had_the_planned_bytes(self, name):
        found = self.MODELS[name]
        recipe = make_recipe(quant=found["quant"], shard_limit=found["limit"])
        planned = plan(find_config(name), recipe)
        assert {p.package: p.bytes for p in planned.programs} == found["programs"]
        assert planned.embedding_bytes == found["embedding_bytes"]

    @pytest.mark.parametrize("name", MODELS)
    def test_conversions_at_full_size_took_the_planned_memory(self, name):
        found = self.MODELS[name]
        planned = ane_book.plan(name, quant=found["quant"], shard_limit=found["limit"])
        assert planned.memory_bytes == pytest.approx(found["convert"]["peak_bytes"], rel=0.15)

    @pytest.mark.long
    @pytest.mark.parametrize("name, options", [(QWEN, {}), (SMOLLM, LONG_CALLS)])
    def test_a_conversion_takes_the_planned_memory(self, tmp_path, monkeypatch, name, options):
        """Half of it is for the vocabulary, or most for scores. The cache is empty, so that blocks
        are lowered."""
        monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
        planned = ane_book.plan(name, **options)
        command = [sys.executable, "-c", PEAK, name, tmp_path / "bundle", json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert planned.memory_bytes == pytest.approx(int(done.stdout), rel=0.15)


class TestNotes:
    """Evidence is shown where a plan touches it, with its grade and source, and nowhere else."""

    def notes(self, model: str, **options) -> str:
        return "\n".join(plan(find_config(model), make_recipe(**options)).notes())

    def test_nothing_is_said_of_a_plan_within_all_limits(self):
        assert self.notes(QWEN, quant="int8", shard_limit="150MB") == ""

    @pytest.mark.parametrize(
        ("touched", "model", "options"),
        [
            ((report.PROGRAM,), QWEN, {}),
            ((report.PROGRAM, report.LOADED), PHI, {"shard_limit": "1.1GB"}),
            ((report.PROGRAM, report.LOADED), PHI, {"partition": "whole"}),
            (
                (report.PROGRAM, report.FILE[0], *report.AXIS, report.LOADED),
                PHI,
                {"partition": "whole", "head_rows": 200_064},
            ),
            ((report.SMALL,), "smollm2-135m-instruct", {"shard_limit": "10MB"}),
            ((report.PROGRAM, report.AXIS[0]), QWEN, {"head_rows": 50_000}),
            ((report.PROGRAM, *report.AXIS), QWEN, {"head_rows": 200_000}),
            ((report.SMALL, report.LOADED, report.CALLS), "zaya1-8b", APART),
        ],
    )
    def test_each_limit_where_it_is_touched(self, touched, model, options):
        said = self.notes(model, **options)
        sizes = (report.PROGRAM, *report.FILE, report.SMALL, report.LOADED)
        for limit in (*sizes, *report.AXIS, report.CALLS):
            line = f"{limit.statement} ({limit.evidence})"
            assert (line in said) == (limit in touched), limit

    def test_the_evidence_is_shown_where_it_is_asked_for(self):
        planned = ane_book.plan(PHI)
        short, whole = (" ".join(f"{a} {b}" for a, b in planned.rows(why)) for why in (False, True))
        for note in planned.notes():
            assert note in whole and note not in short
        assert "end in error -14 (conflicting)" in short

    def test_the_warning_of_a_scheme(self):
        assert "lut4 broke SmolLM2-135M" in self.notes(QWEN, quant="lut4")
        assert "apple/coremltools#2510" in self.notes(QWEN, quant="int4", shard_limit="150MB")


class TestConfiguration:
    def test_the_command_needs_no_weights(self, tmp_path):
        config = reference_models()[QWEN].config
        (tmp_path / "config.json").write_text(json.dumps(config))
        done = command("plan", tmp_path, "--quant", "int8", "--shard-limit", "150MB")
        assert (done.returncode, done.stderr) == (0, "")
        planned = plan(find_config(QWEN), make_recipe(quant="int8", shard_limit="150MB"))
        said = " ".join(done.stdout.split())
        for heading, text in planned.rows():
            assert f"{heading} {' '.join(text.split())}" in said
        assert "3 of layers, 1 of the head: " in done.stdout
        assert "4 dispatches in decode" in done.stdout

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
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(UnsupportedModel, match="it has no model_type"):
            find_config(str(tmp_path))

    def test_a_mistyped_folder_is_told_what_lies_beside_it(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "models" / "my-llama").mkdir(parents=True)
        with pytest.raises(UnknownModel, match="did you mean models/my-llama[?]"):
            find_config("models/my-lama")
        with pytest.raises(UnknownModel, match="no such file or folder; did you mean models/my-l"):
            find_config("./models/my-lama")
        with pytest.raises(UnknownModel, match="named 'quite-other'; known: .* an .onnx graph"):
            find_config("quite-other")

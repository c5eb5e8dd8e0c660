"""Every law is found where it is broken, by exactly its rule; sound packages break none."""

import json
from pathlib import Path
import shutil
import struct
from urllib.parse import quote

from _broken import BROKEN, X, model, pointwise, sound
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram.ane import claims, laws
from mlprogram.ane.laws import OF_ASSETS, OF_FUNCTIONS, OF_PACKAGES, LawReport
from mlprogram.ane.laws.graph import Seen
from mlprogram.ane.laws.rule import Place
from mlprogram.errors import InvalidInput
from mlprogram.package.container import save
from mlprogram.package.files import proto
import numpy as np
import pytest

#: Every package here but the sound one is small, which is a finding of its own.
SMALL = "program-small"
MODEL = Path("Data/com.apple.CoreML/model.mlmodel")
WEIGHTS = Path("Data/com.apple.CoreML/weights/weight.bin")


def broken(rule: str) -> ct.models.MLModel:
    """The first package that breaks a law."""
    return next(one for one in BROKEN if one.rule == rule).make()


def found(report) -> dict[str, str]:
    return {finding.rule.id: finding.seen for finding in report.findings}


class TestLaws:
    @pytest.mark.parametrize("one", BROKEN, ids=lambda one: f"{one.rule}: {one.said}"[:60])
    def test_a_broken_one_is_found_by_exactly_its_rule(self, one):
        seen = found(laws.check(one.make()))
        assert one.said in seen.pop(one.rule, f"not found, but {seen}")
        assert seen.keys() == one.others | {SMALL}

    def test_a_sound_package_has_none(self):
        report = laws.check(sound())
        assert report.findings == [] and report.summary == "nothing found in 1 package"

    def test_arithmetic_on_shapes_is_no_arithmetic(self):
        """A reshape to sizes that the program computes of its input's shape: nothing is refused."""

        def edit(spec):
            function = spec.mlProgram.functions["main"]
            function.inputs[0].type.tensorType.dimensions[3].unknown.SetInParent()
            for low, high in ((1, 1), (64, 64), (1, 1), (32, 64)):
                sizes = spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges
                sizes.add(lowerBound=low, upperBound=high)

        @model(X, edit=edit)
        def made(x):
            size = mb.gather(x=mb.shape(x=x), indices=np.int32([3]), axis=0)
            wide = mb.mul(x=size, y=np.int32(64))
            shape = mb.concat(values=[np.int32([1]), wide], axis=0)
            return mb.relu(x=mb.reshape(x=x, shape=shape))

        assert found(laws.check(made)).keys() == {"flexible-cpu", SMALL}

    def test_every_rule_is_a_claim_with_a_check_and_a_package_that_breaks_it(self):
        rules, apart = laws.load(), {"partitions", "loaded-3gb", "sum-most"}
        of_assets = OF_ASSETS.keys() - OF_FUNCTIONS.keys() | {"asset-locations"}
        assert rules.keys() == OF_FUNCTIONS.keys() | OF_PACKAGES.keys() | of_assets | apart
        assert all(rule.claim is claims.find(name) for name, rule in rules.items())
        planted = {one.rule for one in BROKEN}
        # those of assets in tests/core_ai
        tested_below_and_with_runs = {*OF_PACKAGES, *of_assets, "loaded-3gb", "sum-most"}
        assert rules.keys() - planted == tested_below_and_with_runs

    def test_thresholds_are_those_of_the_registry(self):
        """A kernel of 15 is taken and one of 16 is not, because the claim says 15."""

        def width(kernel):
            @model(((1, 4, 64, 64), X[1]))
            def made(x):
                return mb.conv(x=x, weight=np.ones((4, 4, 3, kernel), np.float16), pad_type="same")

            return found(laws.check(made))

        limit = claims.find("conv-width").value
        assert "conv-width" not in width(limit)
        assert "conv-width" in width(limit + 1)


# --- sizes


def sized(folder: Path, blobs: int) -> Path:
    """A package with so many weights of 537 MB, in a file that takes no room on the disk."""
    width = 1 << 14

    @model(((1, 4, 1, 64), X[1]))
    def made(x):
        for _ in range(blobs):
            x = mb.conv(x=x, weight=np.ones((4, 4, 1, 1), np.float16))
        return x

    made.save(str(folder))
    spec = proto("Model_pb2").Model()
    spec.ParseFromString((folder / MODEL).read_bytes())
    records, end = b"", 64
    size = 2 * width * width
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    for operation in block.operations:
        for output in operation.outputs:
            _widen(output.type, width)
        value = operation.attributes["val"] if operation.type == "const" else None
        if value and len(value.type.tensorType.dimensions) == 4:
            _widen(value.type, width)
            value.blobFileValue.fileName = "@model_path/weights/weight.bin"
            value.blobFileValue.offset = end + len(records)
            start = 4096 + len(records) // 64 * size
            records += struct.pack("<IIQQQ32x", 0xDEADBEEF, 1, size, start, 0)
    for given in spec.mlProgram.functions["main"].inputs:
        _widen(given.type, width)
    (folder / MODEL).write_bytes(spec.SerializeToString())
    (folder / WEIGHTS).parent.mkdir(exist_ok=True)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<II56x", blobs, 2) + records)
        file.truncate(4096 + blobs * size)
    return folder


def _widen(type_, width: int) -> None:
    sizes = [dimension.constant.size for dimension in type_.tensorType.dimensions]
    for dimension in type_.tensorType.dimensions if len(sizes) == 4 else ():
        if dimension.constant.size == 4:
            dimension.constant.size = width


SIZES = {name: rule for name, rule in laws.load().items() if name in (*OF_PACKAGES, "loaded-3gb")}


class TestSizes:
    @pytest.mark.parametrize(
        ("blobs", "rule", "said"),
        [
            (1, "program-250mb", "536.9 MB of weights"),
            (2, "program-1gb", "1,073.7 MB of weights in one file"),
            (4, "program-2gb", "2,147.5 MB of weights in one file"),
        ],
    )
    def test_each_is_found_by_the_largest_that_it_passes(self, tmp_path, blobs, rule, said):
        package = sized(tmp_path / "large.mlpackage", blobs)
        assert found(laws.check(package, SIZES)) == {rule: said}

    def test_those_that_are_loaded_together(self, tmp_path):
        for name in ("a", "b"):
            sized(tmp_path / f"{name}.mlpackage", 3)
        assert "loaded-3gb" not in found(laws.check(tmp_path, SIZES))  # each may be a model
        seen = found(laws.check(tmp_path, SIZES, together=True))
        assert seen["loaded-3gb"] == "3.2 GB of weights in all"


# --- what is checked


class TestSources:
    def test_a_package_a_compiled_model_and_one_in_memory_say_the_same(self, tmp_path):
        made = broken("max-pool")
        made.save(str(tmp_path / "a.mlpackage"))
        save(tmp_path / "a.mlpackage", tmp_path / "a.mlmodelc")
        shutil.copytree(tmp_path / "a.mlpackage", tmp_path / "renamed")
        for name in ("a.mlpackage", "a.mlmodelc", "renamed"):
            assert found(laws.check(tmp_path / name)) == found(laws.check(made)), name

    def test_a_folder_is_all_its_packages_and_says_how_far_it_is(self, tmp_path):
        steps = []
        for number, one in enumerate(BROKEN[:3]):
            one.make().save(str(tmp_path / "inner" / f"{number}.mlpackage"))
        report = laws.check(tmp_path, progress=lambda *step: steps.append(step))
        assert report.packages == 3
        assert steps == [(f"checked {i}.mlpackage", i + 1, 3) for i in range(3)]
        assert report.findings[0].places[0].package == "inner/2.mlpackage"  # the only warning

    @pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # theirs
    def test_the_line_of_the_torch_source(self):
        """coremltools knows it of a model that it has just converted from torch.export."""
        import torch

        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.cumsum(x, dim=1)  # the line

        exported = torch.export.export(Net(), (torch.ones(1, 8),)).run_decompositions({})
        made = ct.convert(exported, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
        (finding,) = [f for f in laws.check(made).findings if f.rule.id == "ops-refused"]
        file, line = finding.places[0].line.rsplit(":", 1)
        assert Path(file) == Path(__file__)
        assert Path(__file__).read_text().splitlines()[int(line) - 1].endswith("# the line")


class TestRulesFile:
    def load(self, tmp_path, text):
        (tmp_path / "own.toml").write_text(text)
        return laws.load(tmp_path / "own.toml")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[max-pool]\nseverity = "grave"', "severity 'grave' is none of error, warning, note"),
            ('[max-pool]\ngrade = "certain"', "unknown key 'grade'"),
            ("[max-poole]", "no such rule; there are layout-channels"),
            ("max-pool = 3", "a table is wanted"),
            ("[max-pool", "no file of rules"),
            ("", "names no rule, so that nothing would be looked for"),
            ("[max-pool]\ninstead = 3", "instead is text, not 3"),
            ('[max-pool]\nleaves = "no"', "leaves is true or false, not 'no'"),
            ("#" * 1_000_001, "more than 1,000,000 bytes"),
        ],
    )
    def test_a_broken_one_is_told(self, tmp_path, text, said):
        with pytest.raises(InvalidInput, match="own.toml") as failed:
            self.load(tmp_path, text)
        assert said in str(failed.value)

    def test_is_read_again_when_it_has_changed(self, tmp_path):
        for severity in ("error", "note"):
            rules = self.load(tmp_path, f'[max-pool]\nseverity = "{severity}"\n')
            assert rules["max-pool"].severity == severity


# --- forms


@pytest.fixture(scope="module")
def report():
    return laws.check(broken("partitions"))


class TestReport:
    def test_text_has_law_grade_and_first_place_and_with_why_sources_and_advice(self, report):
        short, text = report.text(), report.text(why=True)
        law = "warning ops-refused: the engine does not take this op"
        assert f"{law} (measured)\n  main, op 2" in short
        assert "751K" not in short and "instead" not in short.partition("note ")[2]
        assert f"{law} (measured: 751K/" in text
        assert "  main, op 2 of 5, cumsum 'cumsum_0', x 2: cumsum\n" in text
        assert "\n  instead: do it on the host" in text
        assert text.endswith("2 warnings, 1 note in 1 package")

    def of_nine(self, rule: str) -> LawReport:
        report = LawReport("p", 1)
        for number in range(9):
            report.add(laws.load()[rule], Seen(f"no. {number}"), Place("p"))
        assert report.text(why=True).count("no. ") == 9
        return report

    def test_of_many_findings_the_first_stand_for_all(self):
        text = self.of_nine("conv-width").text()
        assert text.count("no. ") == 4 and "\n  and 5 more\n" in text

    def test_a_note_is_one_line(self):
        text = self.of_nine("last-axis-short").text(72)
        (note,) = [line for line in text.splitlines() if line.startswith("note")]
        assert note.startswith("note last-axis-short (9): ") and len(note) <= 72
        assert "no. " not in text and "--why" in text

    def test_json(self, report):
        facts = json.loads(json.dumps(report.to_json()))
        assert (facts["errors"], facts["warnings"], facts["notes"]) == (0, 2, 1)
        refused = facts["findings"][0]
        assert refused["rule"] == "ops-refused" and refused["count"] == 2
        assert refused["grade"] == "measured" and refused["for"][0].startswith("751K/")
        assert refused["places"][1]["number"] == 4

    def test_annotations_are_one_line_each_and_escaped(self, report):
        lines = list(report.annotations())
        assert len(lines) == 3
        assert lines[0].startswith(
            "::warning file=the model,title=ops-refused (measured)::main, op 2 of 5, cumsum"
        )
        assert not any("\n" in line for line in lines)

    def test_a_name_that_a_terminal_would_obey_is_spelled_out(self):
        @model(X)
        def made(x):
            return mb.cumsum(x=pointwise(x), axis=1, name="red")

        spec = made.get_spec()
        (block,) = spec.mlProgram.functions["main"].block_specializations.values()
        block.operations[-1].outputs[0].name = block.outputs[0] = "\x1b[31mred\n::error::x"
        edited = ct.models.MLModel(spec, weights_dir=made.weights_dir, skip_model_load=True)
        report = laws.check(edited)
        assert "\x1b" not in report.text()
        assert not any("\n" in line or "\x1b" in line for line in report.annotations())


#: What the published schema of SARIF 2.1.0 requires of each object that is written here, and the
#: values it allows (docs.oasis-open.org/sarif/sarif/v2.1.0, appendix and sections named).
REQUIRED = {
    "log": {"version", "runs"},  # 3.13
    "run": {"tool"},  # 3.14
    "tool": {"driver"},  # 3.18
    "driver": {"name"},  # 3.19
    "rule": {"id"},  # 3.49
    "result": {"message"},  # 3.27
}


class TestSarif:
    def test_has_what_the_schema_requires(self, report):
        log = report.sarif()
        assert log.keys() >= REQUIRED["log"] and log["version"] == "2.1.0"
        (run,) = log["runs"]
        assert run.keys() >= REQUIRED["run"] and run["tool"].keys() >= REQUIRED["tool"]
        driver = run["tool"]["driver"]
        assert driver.keys() >= REQUIRED["driver"]
        assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"]) == 3
        for rule in driver["rules"]:
            assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
            assert rule["helpUri"].startswith("https://") and rule["help"]["text"]
        for result in run["results"]:
            assert result.keys() >= REQUIRED["result"] and result["message"]["text"]
            assert result["level"] in ("none", "note", "warning", "error")
            assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
            assert result["occurrenceCount"] >= 1
            for location in result["locations"]:
                assert location["physicalLocation"]["artifactLocation"]["uri"]
                region = location["physicalLocation"].get("region", {"startLine": 1})
                assert region["startLine"] >= 1

    def test_a_path_is_a_uri(self, tmp_path):
        broken("max-pool").save(str(tmp_path / "50 % net.mlpackage"))
        (result, _) = laws.check(tmp_path).sarif()["runs"][0]["results"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri == quote(f"{tmp_path}/50 % net.mlpackage")

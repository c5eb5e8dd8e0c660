"""Whole packages: verdict, shares, what is open, what would change it; and as JSON."""

import json
import os
from pathlib import Path
import shutil

from _command import mlprogram as command
from _command import refused
from _networks import convolutions, half, save
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram import save as write
from mlprogram.ane.placement import place
from mlprogram.ane.placement.edits import edits
import numpy as np
import pytest
import torch

X = (1, 64, 32, 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four convolutions, which go to the ANE, and two, which do not."""
    folder = tmp_path_factory.mktemp("placement")
    save(folder / "four.mlpackage", convolutions(4), X)
    save(folder / "two.mlpackage", convolutions(2), X)
    two = convolutions(2)
    save(folder / "more.mlpackage", lambda x: mb.identity(x=two(x), name="out"), X)
    return folder


def test_two_convolutions_stay_and_four_go(folder):
    """The source's own example: a 3x3 convolution of 64 channels saves 0.095 ms, and 0.25 pays."""
    four, two = (place(folder / f"{name}.mlpackage") for name in ("four", "two"))
    assert (four.verdict, two.verdict) == ("ANE", "CPU")
    assert four.best.work == four.worst.work == four.best.weights == 1.0
    assert four.best.partitions == 1
    assert not four.open and not edits(four)


def test_what_is_too_small_is_told_how_much_more_would_pay(folder):
    (edit,) = edits(place(folder / "two.mlpackage"))
    assert "2 times as much in one program" in edit.what
    assert (edit.before, edit.after) == (0.0, 1.0)


def test_an_op_that_no_ane_takes_draws_a_small_network_to_the_cpu(tmp_path):
    """And the edit that mends it is named, with the op."""
    before, after = convolutions(2), convolutions(2)

    def network(x):
        return after(mb.cumsum(x=before(x), axis=3))

    placement = place(save(tmp_path / "cut.mlpackage", network, X))
    assert placement.verdict == "CPU"
    (edit,) = edits(placement)
    assert "cumsum" in edit.what and len(edit.ops) == 1
    assert edit.after == pytest.approx(1.0)
    assert "(ops-refused)" in command("place", tmp_path / "cut.mlpackage", "--why").stdout


def test_an_argmax_at_the_end_is_left_behind(tmp_path):
    network = convolutions(6)
    path = save(tmp_path / "argmax.mlpackage", lambda x: mb.reduce_argmax(x=network(x), axis=1), X)
    placement = place(path)
    assert placement.verdict == "ANE"
    assert placement.devices[-1] == "CPU"
    assert placement.placed[-1].support.claim == "argmax-integer"


def test_a_product_larger_than_any_that_was_seen_is_a_range(tmp_path):
    """A head of 29 million weights at one position: by one reading it pays, by the other not."""
    path = save(
        tmp_path / "head.mlpackage", lambda x: mb.conv(x=x, weight=half(50_000, 576, 1, 1)),
        (1, 576, 1, 1),
    )  # fmt: skip
    placement = place(path)
    assert placement.verdict == "depends"
    assert [placement.best.on_ane, placement.worst.on_ane] == [[True], [False]]
    low, high = placement.placed[0].times["ane"]
    assert low < high
    assert any("never seen" in what for what in placement.open)


def test_a_compiled_model_is_placed_as_its_package(folder):
    write(folder / "four.mlpackage", folder / "four.mlmodelc")
    facts = [place(folder / f"four.{kind}").to_json() for kind in ("mlpackage", "mlmodelc")]
    for each in facts:
        del each["package"]
    assert facts[0] == facts[1]


def test_weights_with_scales_along_their_input_are_open(tmp_path):
    """Reports on them conflict; with one scale a row they are taken."""
    data = np.zeros((64, 64, 1, 1), np.int8)
    for groups, taken in ((1, True), (4, None)):
        scale = half(64, groups, 1, 1)

        def network(x, scale=scale):
            weight = mb.constexpr_blockwise_shift_scale(data=data, scale=scale)
            return mb.conv(x=x, weight=weight)

        (placed,) = place(save(tmp_path / f"{groups}.mlpackage", network, X)).placed
        assert placed.support.ane is taken
        assert placed.op.weight_bytes == 64 * 64 + 2 * 64 * groups


def test_a_pipeline_is_placed_part_by_part(folder, tmp_path):
    parts = [ct.models.MLModel(str(folder / name), skip_model_load=True)
             for name in ("two.mlpackage", "more.mlpackage")]  # fmt: skip
    ct.utils.make_pipeline(*parts).save(str(tmp_path / "both.mlpackage"))
    result = command("place", tmp_path / "both.mlpackage")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("both.mlpackage  main  CPU") == 2
    told = " ".join(result.stdout.split())
    assert "main: 2 programs stay on the CPU, each too small; merged into one" in told
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_command(folder):
    result = command("place", folder / "two.mlpackage")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("two.mlpackage, main: CPU (chip m4)\n")
    assert "holds for     cpuAndNeuralEngine" in result.stdout
    assert "actual: unmeasured (needs a Mac)" in result.stdout
    assert "stands on" not in result.stdout
    result = command("place", folder / "two.mlpackage", "--why")
    assert "stands on     an M4's estimates and support, macOS 27.0.1" in result.stdout
    result = command("place", folder / "four.mlpackage", "--ops")
    assert result.stdout.count("  conv  ") == 4


def test_the_command_in_json(folder):
    facts = json.loads(command("place", folder / "four.mlpackage", "--json").stdout)
    assert facts["verdict"] == "ANE"
    assert [op["type"] for op in facts["ops"]] == ["conv", "relu"] * 4
    assert facts["worst"]["share_of_operations"] == 1.0
    assert facts["actual"] == {"measured": False, "reason": "needs a Mac"}
    assert facts["edits"] == []
    assert facts["compute_units"] == "cpuAndNeuralEngine"
    assert facts["stands_on"] == "an M4's estimates and support, macOS 27.0.1"


@pytest.mark.parametrize("chip", ["any", "m2", "m4", "m6", "m5-max", "a19"])
def test_a_verdict_says_on_whose_figures_it_stands(folder, chip):
    for path in (folder / "four.mlpackage", folder):
        text = command("place", path, "--chip", chip, "--why").stdout
        assert "cpuAndNeuralEngine" in text and f"chip {chip}" in text
        assert max(map(len, text.splitlines())) <= 80
        assert "an M4's estimates" in text, "those of the M6 and the M2 are the M4's too"


def test_a_gain_within_what_chips_differ_by_is_open(tmp_path):
    """One convolution of 128 channels: by the M5's own estimates on the CPU, by the M4's not."""
    weight = half(128, 128, 3, 3)
    path = save(
        tmp_path / "one.mlpackage", lambda x: mb.conv(x=x, weight=weight, pad_type="same"),
        (1, 128, 32, 32),
    )  # fmt: skip
    verdicts = {chip: place(path, chip).verdict for chip in ("m4", "m2", "m5", "any")}
    assert verdicts == {"m4": "ANE", "m2": "ANE", "m5": "depends", "any": "depends"}
    assert [*place(path, "m5").open] == ["the estimates are another chip's"]


def test_a_weight_file_of_more_than_two_gibibytes_takes_all_off_the_engine(folder, tmp_path):
    """A hole in the file counts: it is the file's length that Core ML looks at."""
    for size, verdict in ((2**31, "depends"), (2**31 + 1, "CPU")):
        package = Path(shutil.copytree(folder / "four.mlpackage", tmp_path / str(size)))
        os.truncate(package / "Data/com.apple.CoreML/weights/weight.bin", size)
        placement = place(package)
        assert placement.verdict == verdict
        assert {each.support.claim for each in placement.placed} == {"program-2gb"}
    (edit,) = edits(placement)
    assert "several files" in edit.what and edit.after == 1.0


def test_a_program_with_states_is_open_as_a_whole(tmp_path):
    """Not one op on the CPU: what is reported is of whole programs."""
    network = convolutions(4)

    def cached(x, cache):
        old = mb.read_state(input=cache)
        return network(mb.coreml_update_state(state=cache, value=mb.add(x=old, y=x)))

    placement = place(save(tmp_path / "cached.mlpackage", cached, X, states=[X]))
    assert placement.verdict == "depends" and {*placement.devices} == {"depends"}
    (edit,) = edits(placement)
    assert "keep the cache on the host" in edit.what and edit.after == 1.0
    save(tmp_path / "other.mlpackage", network, X)
    assert "reports on states conflict" in command("place", tmp_path).stdout  # of a folder, too


@pytest.mark.parametrize(
    "name, fail_on, code",
    [
        ("four.mlpackage", "depends", 0),
        ("two.mlpackage", "never", 0),
        ("two.mlpackage", "cpu", 1),
        (".", "cpu", 1),
    ],
)
def test_a_pull_request_can_be_gated(folder, name, fail_on, code):
    result = command("place", folder / name, "--fail-on", fail_on)
    assert result.returncode == code, result.stderr
    assert "actual: unmeasured" in result.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("two.mlpackage", "--chip", "m9"), "'m9', but for a15, a16, a17-pro"),
        (("two.mlpackage", "--function", "decode"), "no function 'decode'; it has main"),
        (("none.mlpackage",), "no such package"),
    ],
)
def test_the_command_refuses_in_one_line(folder, arguments, message):
    name, *options = arguments
    assert message in refused("place", folder / name, *options, by=command)


def test_a_size_that_is_open_leaves_the_verdict_open(tmp_path):
    """The same convolutions go to the ANE at 32 x 32; at a size that nobody named it depends."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)]
    size = ct.RangeDim(8, 64, default=32)
    inputs = [ct.TensorType("x", (1, 64, 32, size), dtype=np.float16)]
    traced = torch.jit.trace(torch.nn.Sequential(*layers).eval(), torch.zeros(X))
    target = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    outputs = [ct.TensorType("y")]
    ct.convert(traced, inputs=inputs, outputs=outputs, **target).save(
        str(tmp_path / "open.mlpackage")
    )
    found = place(tmp_path / "open.mlpackage")
    assert found.verdict == "depends"
    assert found.best.work == 1 and found.worst.work == 0

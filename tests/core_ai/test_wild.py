"""What others' packages give by Core AI's runtime, of which a sample here, and the first op that
parts where a translation is wrong."""

from _foreign import IN_SINGLE, build, normal, package, quiet
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.cli import app
from mlprogram.coreai import save_asset
from mlprogram.coreai.compare import compare_with_executor
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.errors import InvalidInput
import numpy as np
import pytest
import torch
from typer.testing import CliRunner
import wild

pytest.importorskip("coreai", reason="coreai-core is not installed")


def apart(path, given: dict) -> float:
    """How far the two runtimes are apart in single precision, over the largest number."""
    program = MLProgram(path, precision="fp32")
    want = program.predict(given)
    found = CoreAIBackend("fp32").load(path, program.name).predict(given)
    gaps = []
    for name, right in want.items():
        got = np.atleast_1d(found[name])
        assert (got.shape, got.dtype.kind) == (right.shape, right.dtype.kind), name
        gaps.append(np.abs(got.astype(float) - right).max() / max(1e-9, np.abs(right).max()))
    return max(gaps)


WEIGHT = normal(6, 4, 3, 3, seed=1)
GATES = {n: normal(32, k, seed=n) / 2 for n, k in ((1, 5), (2, 8), (3, 5), (4, 8))}
STATE = normal(2, 16, seed=5)
NEGATIVE = np.array([[0, -1], [1, -2], [-1, 0]], np.int32)

#: name -> (the shape of x, what is made of it).
OPS = {
    "sliding windows": ((2, 9, 3), lambda x: mb.sliding_windows(x=x, axis=1, size=4, stride=2)),
    "backwards": (
        (3, 7, 4), lambda x: mb.slice_by_index(
            x=x, begin=[2, 5, 1], end=[0, 0, 3], stride=[-1, -2, 1], end_mask=[True, False, False])
    ),
    "a norm over channels": ((2, 7, 3, 4), lambda x: mb.local_response_norm(
        x=x, size=4, alpha=2.0)),
    "l2 pool": ((1, 2, 7, 5), lambda x: mb.l2_pool(
        x=x, kernel_sizes=[3, 2], strides=[2, 1], pad_type="same")),
    "transposed, same": ((1, 6, 5, 4), lambda x: mb.conv_transpose(
        x=x, weight=WEIGHT, strides=[2, 3], pad_type="same", bias=normal(4))),
    "transposed, padded": ((1, 6, 5, 4), lambda x: mb.conv_transpose(
        x=x, weight=WEIGHT, strides=[2, 2], pad_type="custom", pad=[1, 0, 2, 1])),
    "transposed, groups of a row": ((1, 6, 5), lambda x: mb.conv_transpose(
        x=x, weight=WEIGHT[:, :, 0], strides=[2], groups=2, dilations=[2])),
    "resize": ((1, 2, 5, 4), lambda x: mb.resize(
        x=x, shape=np.uint32([9, 3]), resized_dims=np.uint32(2), sampling_mode="UNALIGN_CORNERS")),
    "space to batch": ((1, 2, 4, 6), lambda x: mb.space_to_batch(
        x=x, block_shape=[2, 3], paddings=[[1, 1], [0, 0]])),
    "batch to space": ((6, 2, 4, 3), lambda x: mb.batch_to_space(
        x=x, block_shape=[2, 3], crops=[[1, 0], [0, 2]])),
    "parts reversed": ((3, 5, 2), lambda x: mb.reverse_sequence(
        x=x, lengths=[1, 5, 3], seq_axis=1, batch_axis=0)),
    "gather by batch": ((2, 3, 4), lambda x: mb.gather(
        x=x, indices=np.array([[2, 0], [1, 1]], np.int32), axis=1, batch_dims=1)),
    "scatter": ((3, 4), lambda x: mb.scatter_nd(
        data=x, indices=NEGATIVE % [3, 4], updates=normal(3), mode="add")),
    "mod": ((4, 5), lambda x: mb.mod(x=x, y=np.float32([[0.3], [-0.3], [2], [-1.5]]))),
    "lstm": ((7, 2, 5), lambda x: mb.lstm(
        x=x, initial_h=STATE, initial_c=STATE[::-1] / 2, direction="bidirectional",
        output_sequence=True, weight_ih=GATES[1], weight_hh=GATES[2],
        weight_ih_back=GATES[3], weight_hh_back=GATES[4], bias=normal(32))[0]),
    "gru": ((7, 2, 5), lambda x: mb.gru(
        x=x, initial_h=STATE[:, :8], direction="reverse", output_sequence=True, reset_after=True,
        weight_ih=GATES[1][:24], weight_hh=GATES[2][:24], bias=normal(24))[0]),
    "rnn": ((7, 2, 5), lambda x: mb.rnn(
        x=x, initial_h=STATE[:, :8], weight_ih=GATES[1][:8], weight_hh=GATES[2][:8])[0]),
    "eight bits": ((3, 4), lambda x: mb.dequantize(
        input=mb.quantize(input=x, scale=np.float32([0.02, 0.01, 0.5]), axis=0,
                          zero_point=np.int8([3, -100, 0]), output_dtype="int8"),
        scale=np.float32(0.1), zero_point=np.int8(7))),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_an_op_gives_the_executors_numbers(name, tmp_path):
    shape, make = OPS[name]
    path = build(tmp_path / "p.mlpackage", (shape, types.fp32), **IN_SINGLE)(lambda x: make(x))
    assert apart(path, {"x": normal(*shape)}) < 1e-6


#: Of the suites of foreign packages: tests, what is carried of them, and what is refused.
WILD = [
    ("mlprogram", "test_vision or nested_loops", {"vision"}, {"p"}),
    ("conversion", "group_by_group or sampling", {"decoder", "head"}, set()),
]


@pytest.mark.long
@pytest.mark.parametrize(("suite", "tests", "carried", "refused"), WILD)
def test_packages_of_others_are_carried_and_equal_or_refused_by_name(
    suite, tests, carried, refused
):
    found = wild.run("-k", tests, paths=[path for path in wild.FOREIGN if suite in path.parts])
    found = [row for row in found if row["precision"] == "fp32"]
    said = {row["package"]: row["refused"] for row in found if "refused" in row}
    assert all("Core AI has no counterpart for" in said[name] for name in refused)
    found = [row for row in found if "refused" not in row]
    assert {row["package"] for row in found} >= carried
    assert all(row["calls"] and row["difference"] < wild.EXACT for row in found), found


# --- what the runtime would do wrong --------------------------------------------------------------


@pytest.mark.parametrize("written", ["before", "after"])
def test_a_second_update_of_a_states_memory_is_refused(written, tmp_path):
    """Core AI's runtime would write it into the state, which was to have the first one alone."""

    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), states=[(2, 4)])
    def path(row, memory):
        before = mb.read_state(input=memory)
        first = mb.slice_update(x=before, update=row, begin=[0, 0], end=[1, 4])
        after = mb.coreml_update_state(state=memory, value=first)
        x = before if written == "before" else after
        return mb.slice_update(x=x, update=row, begin=[1, 0], end=[2, 4], name="second")

    with pytest.raises(InvalidInput, match="slice_update 'second.*: a second update of a state's"):
        CoreAIBackend("fp32").load(path, "main")


def test_nor_is_an_update_for_another_state_written_into_the_first(tmp_path):
    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), states=[(2, 4), (2, 4)])
    def path(row, one, two):
        first = mb.slice_update(x=mb.read_state(input=one), update=row, begin=[0, 0], end=[1, 4])
        now = mb.coreml_update_state(state=one, value=first)
        copy = mb.coreml_update_state(state=two, value=now)
        other = mb.slice_update(x=copy, update=row, begin=[1, 0], end=[2, 4], name="other")
        return mb.coreml_update_state(state=two, value=other)

    with pytest.raises(InvalidInput, match="slice_update 'other.*: a second update of a state's"):
        CoreAIBackend("fp32").load(path, "main")


def test_a_state_that_no_call_changes(tmp_path):
    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), states=[(2, 4)])
    def path(row, memory):
        return mb.add(x=mb.read_state(input=memory), y=row, name="sum")

    function = CoreAIBackend("fp32").load(path, "main")
    state, row = function.make_state(), normal(1, 4)
    state.write_state("memory", normal(2, 4))
    found = function.predict({"row": row}, state)["sum"]
    np.testing.assert_array_equal(found, normal(2, 4) + row)


def test_an_asset_read_back_has_the_packages_large_ops(tmp_path):
    """There is no way back to a program; coreai-core prints the graph, whose ops can be counted."""
    from coreai.authoring import AIModelAsset

    @build(tmp_path / "p.mlpackage", ((1, 4, 8, 8), types.fp32))
    def path(x):
        x = mb.conv(x=x, weight=WEIGHT[:4, :, :, :], pad_type="same")
        x = mb.max_pool(x=mb.relu(x=x), kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid")
        x = mb.conv_transpose(x=mb.conv(x=x, weight=WEIGHT[:4]), weight=WEIGHT[:4])
        return mb.softmax(x=x, axis=1)

    asset = save_asset(path, tmp_path / "p.aimodel")
    printed = str(AIModelAsset.load(asset).program._module)
    for theirs, ours in (
        ("conv2d", "conv"), ("conv_transpose2d", "conv_transpose"), ("max_pool_2d", "max_pool"),
        ("softmax", "softmax"),
    ):  # fmt: skip
        made = [operation.type for operation in MLProgram(path).operations].count(ours)
        assert printed.count(f"coreai.{theirs} ") == made > 0


# --- flexible sizes -------------------------------------------------------------------------------


def test_functions_of_fixed_sizes_are_made_as_the_refusal_says(tmp_path):
    path, fixed = tmp_path / "open.mlpackage", tmp_path / "fixed.mlpackage"
    inputs = [ct.TensorType("x", (1, ct.RangeDim(2, 9, default=5)))]
    outputs, example = [ct.TensorType("y")], (torch.zeros(1, 5),)
    package(torch.nn.Softmax(-1), path, example, inputs=inputs, outputs=outputs, **IN_SINGLE)
    with pytest.raises(InvalidInput, match="flexible size, of x.*materialize_dynamic") as told:
        save_asset(path, tmp_path / "open.aimodel")
    call = str(told.value).partition("coremltools.utils.")[2]
    assert "{\"fixed\": {'x': (1, 5)}}" in call
    model = ct.models.MLModel(str(path), skip_model_load=True)
    with quiet():
        ct.utils.materialize_dynamic_shape_mlmodel(model, {"fixed": {"x": (1, 5)}}, str(fixed))
    backend, x = CoreAIBackend("fp32"), normal(1, 5)
    want = MLProgram(path, precision="fp32").predict({"x": x})["y"]
    np.testing.assert_allclose(backend.load(fixed, "fixed").predict({"x": x})["y"], want, atol=1e-6)
    with pytest.raises(InvalidInput, match="function 'main': a flexible size"):
        backend.load(fixed, "main")


# --- diff -----------------------------------------------------------------------------------------


@pytest.fixture
def soft(tmp_path):
    @build(tmp_path / "p.mlpackage", ((2, 6), types.fp32), **IN_SINGLE)
    def path(x):
        y = mb.gelu(x=mb.add(x=x, y=np.float32(0.5)), mode="EXACT", name="bent")
        y = mb.softplus(x=mb.reverse(x=y, axes=[-1]), name="soft")
        return mb.reduce_sum(x=y, axes=[-1], name="total")

    return path


def test_both_runtimes_agree_on_every_value(soft):
    found = compare_with_executor(soft, tolerance=1e-5)
    assert found.equal and found.facts["compared"] == found.facts["values"] == 5


def test_the_first_op_that_parts_is_named(soft, monkeypatch):
    """A wrong translation in the middle: what follows it is wrong too, and is not what is named."""
    from mlprogram.coreai import ops

    right = ops.COREAI_OPS["softplus"]
    monkeypatch.setitem(ops.COREAI_OPS, "softplus", lambda x: ops.elementwise.square(right(x)))
    run = CliRunner().invoke(app, ["diff", str(soft), "--backend", "coreai", "--json"])
    assert run.exit_code == 1, run.output
    assert '"name": "soft", "op": "softplus"' in " ".join(run.output.split())
    run = CliRunner().invoke(app, ["diff", str(soft), "--backend", "coreai"])
    assert "first apart: softplus 'soft'" in run.output

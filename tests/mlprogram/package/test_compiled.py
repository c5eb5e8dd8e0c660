"""Compiled models: MIL as text, read and written, against the packages that they were made of."""

from pathlib import Path
import struct

from _command import end, mlprogram
from _foreign import build, package, quiet
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram, save
from mlprogram.cli import app
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package.compiled.reader import read_text
from mlprogram.package.compiled.writer import write_text
from mlprogram.package.container import open_container
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

OLD = """program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-version", "3404.23.1"}})]
{
    func main<ios16>(tensor<fp32, [2, 3]> x) {
            tensor<int32, []> n = const()[val = tensor<int32, []>(-1)];
            tensor<fp32, [2, 1]> a, tensor<fp32, [2, 1]> b, tensor<fp32, [2, 1]> c = split(\
axis = n, num_splits = tensor<int32, []>(3), x = x)[name = tensor<string, []>("say \\"hi\\"")];
            tensor<fp32, [2, 4]> d = concat(axis = n, interleave = tensor<bool, []>(false), \
values = (c, a, b, tensor<fp32, [2, 1]>([[0x1.8p+1], [-0x1p-1]])));
        } -> (d, a);
}"""
NEW = """program(1.3)
[buildInfo = dict<string, string>({})]
{
    func main<ios18>(fp16 x, state<tensor<fp16, [1, 2]>> kept) {
            fp16 low = const()[name = string("low"), val = fp16(-inf)];
            fp16 one = const()[val = fp16(0x1p+0)];
            string half = const()[val = string("fp16")];
            tensor<fp16, [1, 2]> before = read_state(input = kept);
            fp16 larger = maximum(x = low, y = x);
            tensor<fp16, [1, 2]> after = add(x = before, y = larger);
            write_state(data = after, input = kept);
            tensor<fp16, [1, 2]> y = mul(x = after, y = tensor<fp16, [1, 2]>([[0x1p+0, nan]]));
        } -> (y);
    func second<ios18>(tensor<int32, [2]> x) {
            tensor<uint8, [2]> cut = cast(dtype = string("uint8"), x = x);
            tensor<int32, [2]> y = cast(dtype = string("int32"), x = cut);
        } -> (y);
}"""


def folder(path: Path, text: str) -> Path:
    path = path / "model.mlmodelc"
    path.mkdir()
    (path / "model.mil").write_text(text)
    return path


# --- the text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, version", [(OLD, 8), (NEW, 9)], ids=["1.0", "1.3"])
def test_both_dialects_come_back_as_they_were(text, version):
    assert write_text(read_text(text, "t"), version) == text


def test_a_text_in_the_old_dialect_runs(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = MLProgram(folder(tmp_path, OLD)).predict({"x": x})
    np.testing.assert_array_equal(results["d"], [[2, 0, 1, 3], [5, 3, 4, -0.5]])
    np.testing.assert_array_equal(results["a"], x[:, :1])


def test_a_text_in_the_new_dialect_keeps_state_and_has_functions(tmp_path):
    program = MLProgram(folder(tmp_path, NEW))
    assert program.package.specification_version == 9 and program.functions == ["main", "second"]
    state = program.make_state()
    for count in (1, 2):
        y = program.predict({"x": np.float16(2)}, state)["y"]
        assert y[0, 0] == 2 * count and np.isnan(y[0, 1])
    second = program.function("second").predict({"x": np.int32([1, 300])})
    assert second["y"].tolist() == [1, 44]


@pytest.mark.parametrize(
    "type_, literal, values",
    [
        ("tensor<int8, [2]>", "[-128, 127]", [-128, 127]),
        ("tensor<uint64, [1]>", "[18446744073709551615]", [2**64 - 1]),
        ("tensor<int64, [1]>", "[-9223372036854775808]", [-(2**63)]),
        ("tensor<uint4, [3]>", "[15, 0, 9]", [15, 0, 9]),
        ("tensor<int4, [3]>", "[-8, 7, -1]", [-8, 7, -1]),
        ("tensor<uint3, [5]>", "[7, 0, 1, 2, 5]", [7, 0, 1, 2, 5]),
        ("tensor<bool, [2]>", "[true, false]", [True, False]),
        ("tensor<fp32, [2, 0]>", "[[], []]", [[], []]),
        ("tensor<fp32, [2]>", "[0x1.99999ap-4, -inf]", [float(np.float32(0.1)), -np.inf]),
        ("tensor<fp32, [2]>", "[1e5, -2.5]", [1e5, -2.5]),
        ("tensor<fp64, [1]>", "[0x1.999999999999ap-4]", [0.1]),
        ("tensor<fp16, [1]>", "[0x1p-24]", [2.0**-24]),
        ("tensor<string, [2]>", r'["a\\b\"c", "]("]', ['a\\b"c', "]("]),
        ("tensor<int32, [2, 1, 2]>", "[[[1, 2]], [[3, -4]]]", [[[1, 2]], [[3, -4]]]),
        ("tensor<fp32, [3]>", "0x1p+1", [2.0, 2.0, 2.0]),
        ("list<string, 2>", '["tabby", "tiger cat"]', ["tabby", "tiger cat"]),
    ],
)
def test_values_of_every_dtype(type_, literal, values, tmp_path):
    text = "program(1.3) { func main<ios18>(fp32 x) { " + (
        f"{type_} c = const()[val = {type_}({literal})]; fp32 y = relu(x = x); }} -> (y); }}"
    )
    if type_.startswith("tensor"):
        found = MLProgram(folder(tmp_path, text)).package.functions["main"].block.operations[0]
        assert found.inputs["val"][0].value == values
    written = write_text(read_text(text, "t"), 9)
    assert write_text(read_text(written, "t"), 9) == written


STRING = "tensor<string, []>"
FLEXIBLE = f"""program(1.0) {{
    func main<ios17>(tensor<fp32, [1, ?]> x) [FlexibleShapeInformation = \
tuple<tuple<{STRING}, dict<{STRING}, tensor<int32, [?]>>>, \
tuple<{STRING}, dict<{STRING}, list<tensor<int32, [2]>, ?>>>>\
((("DefaultShapes", {{{{"x", [1, 3]}}}}), ("RangeDims", {{{{"x", [[1, 1], [2, 8]]}}}})))] {{
        tensor<fp32, [1, ?]> y = relu(x = x);
    }} -> (y);
}}"""


def test_ranges_are_kept_where_only_the_text_has_them(tmp_path):
    program = MLProgram(folder(tmp_path, FLEXIBLE))
    assert program.features["x"].shape == (1, 3)
    assert program.predict({"x": np.ones((1, 8), np.float32)})["y"].shape == (1, 8)
    with pytest.raises(InvalidInput, match=r"Size \(9\) of dimension \(1\)"):
        program.predict({"x": np.ones((1, 9), np.float32)})


@pytest.mark.parametrize(
    "old, new, place, match",
    [
        ("split(", "split[", "line 6, column 91", r"'\(' expected, not '\['"),
        ("(-1)", "(-1.5)", "line 5, column 67", "no values of int32"),
        ("tensor<fp32, [2, 3]>", "tensor<fp33, [2, 3]>", "line 4, column 22", "'fp33'"),
        ("[[0x1.8p+1], [-0x1p-1]]", "[[0x1.8p+1]]", "line 7", r"shape \[1, 1\] for a tensor"),
        ("[[0x1.8p+1], [-0x1p-1]]", "[[1], [1, 2]]", "line 7", "rows of shapes"),
        ("} -> (d, a);\n}", "", "line 8", "expected, not the end of the text"),
        ("x = x)", "x = x, x = x)", "line 6", "a second input 'x'"),
        ('"say', "say", "line 6", "a string expected"),
    ],
)
def test_what_does_not_parse_is_refused_with_line_and_column(old, new, place, match, tmp_path):
    assert old in OLD
    with pytest.raises(InvalidPackage, match=match) as caught:
        MLProgram(folder(tmp_path, OLD.replace(old, new)))
    assert f"model.mil, {place}" in str(caught.value)


def test_what_is_no_text_is_refused_with_its_path(tmp_path):
    path = folder(tmp_path, "")
    (path / "model.mil").write_bytes(b"program\x80")
    with pytest.raises(InvalidPackage, match=f"^{path}/model.mil: no text in UTF-8"):
        MLProgram(path)


@pytest.mark.parametrize(
    "text",
    [
        "program(1.3) {" + "func f<ios18>(" + "list<" * 5000,
        "program(1.3) { func main<ios18>(fp32 x) {" + "fp32 y = cond() {" * 5000,
        "program(1.3) [a = tensor<int32, [1]>(" + "[" * 50000,
        'program(1.3) [a = string("' + "\\" * 1_000_001,
        "program(1.3) [a = tensor<int32, [1]>([" + "1," * 500_000,
        "program(1.3)" + " " * 1_000_000,
    ],
    ids=["types", "blocks", "lists", "string", "numbers", "spaces"],
)
def test_deep_and_long_texts_are_refused(text):
    """A reader whose work grew with the square of their length would not come back."""
    with pytest.raises(InvalidPackage, match="line 1, column"):
        read_text(text, "t")


# --- the folder -----------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.lstm = torch.nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        x = torch.nn.functional.gelu(self.conv(x)).mean(-1).transpose(1, 2)
        a, b = self.lstm(x)[0].chunk(2, -1)
        return a * b.sigmoid()


def network(path):
    """fp16 on iOS 18, an image in, weights in a file, an op with several outputs."""
    torch.manual_seed(0)
    image = ct.ImageType(name="x", shape=(1, 3, 16, 16), scale=1 / 255)
    path = package(Net().eval(), path, (torch.rand(1, 3, 16, 16),), inputs=[image])
    return path, {"x": np.random.default_rng(0).integers(0, 256, (1, 3, 16, 16)).astype(np.float32)}


def loops(path):
    """A branch in a loop, on iOS 16, with values from outside; two outputs."""

    @build(path, ((3,), types.fp32), opset=ct.target.iOS16)
    def path(a):
        def small(i, x):
            return mb.less(x=i, y=np.int32(5))

        def step(i, x):
            far = mb.greater(x=mb.reduce_max(x=x, axes=[0], keep_dims=False), y=np.float32(10))
            x = mb.cond(
                pred=far, _true_fn=lambda: mb.sub(x=x, y=a), _false_fn=lambda: mb.add(x=x, y=x)
            )
            return mb.add(x=i, y=np.int32(1)), x

        i, x = mb.while_loop(_cond=small, _body=step, loop_vars=(np.int32(0), a))
        return mb.identity(x=x, name="x"), mb.identity(x=i, name="i")

    return path, {"a": np.float32([1, 2, 3])}


def palettized(path):
    """Compressed constants and a flexible size."""
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 64).eval()
    inputs = [ct.TensorType(name="x", shape=(ct.RangeDim(1, 8), 64))]
    made = package(model, path.with_name("plain.mlpackage"), (torch.rand(2, 64),), inputs=inputs)
    config = ct.optimize.coreml.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=1)
    config = ct.optimize.coreml.OptimizationConfig(global_config=config)
    with quiet():
        made = ct.models.MLModel(str(made), skip_model_load=True)
        ct.optimize.coreml.palettize_weights(made, config).save(str(path))
    return path, {"x": np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)}


@pytest.fixture(scope="module", params=[network, loops, palettized])
def sample(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("packages") / f"{request.param.__name__}.mlpackage"
    return request.param(path)


def assert_same(ours: MLProgram, theirs: MLProgram, inputs: dict) -> None:
    mine, other = ours.predict(inputs), theirs.predict(inputs)
    assert list(mine) == list(other)
    for name, value in mine.items():
        assert value.dtype == other[name].dtype
        np.testing.assert_array_equal(value, other[name])


def test_a_compiled_model_gives_the_numbers_of_its_package(sample, tmp_path):
    path, inputs = sample
    save(path, tmp_path / "there.mlmodelc")
    save(tmp_path / "there.mlmodelc", tmp_path / "back.mlpackage")
    package, compiled, back = map(
        MLProgram, (path, tmp_path / "there.mlmodelc", tmp_path / "back.mlpackage")
    )
    assert compiled.features == back.features == package.features
    assert_same(compiled, package, inputs)
    assert_same(back, package, inputs)
    one, other = open_container(path).spec, open_container(tmp_path / "back.mlpackage").spec
    assert one.description == other.description
    texts = [write_text(model.mlProgram, model.specificationVersion) for model in (one, other)]
    assert texts[0] == texts[1]
    spec = ct.models.MLModel(str(tmp_path / "back.mlpackage"), skip_model_load=True).get_spec()
    assert spec.WhichOneof("Type") == "mlProgram"
    assert spec.specificationVersion == one.specificationVersion


def test_saving_writes_a_whole_folder_or_nothing(sample, tmp_path):
    path, _ = sample
    for target, match in [("a.mlmodel", "must end in"), ("there.mlmodelc", "exists already")]:
        (tmp_path / "there.mlmodelc").mkdir(exist_ok=True)
        with pytest.raises(InvalidInput, match=match):
            save(path, tmp_path / target)
    compiled = tmp_path / "own.mlmodelc"
    save(path, compiled)
    weights = compiled / "weights" / "weight.bin"
    if weights.exists():
        weights.unlink()
        with pytest.raises(InvalidPackage, match="'weight.bin' is not in the package"):
            save(compiled, tmp_path / "cut.mlpackage")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own.mlmodelc", "there.mlmodelc"]


def test_weight_files_outside_of_the_folder_are_not_read(tmp_path):
    (tmp_path / "weight.bin").write_bytes(bytes(64))
    file = 'path = string("@model_path/../weight.bin"), offset = uint64(64)'
    text = "program(1.3) { func main<ios18>(tensor<fp32, [2]> x) { " + (
        f"tensor<fp32, [2]> y = add(x = x, y = tensor<fp32, [2]>(BLOBFILE({file}))); }} -> (y); }}"
    )
    with pytest.raises(InvalidPackage, match="not in the package"):
        MLProgram(folder(tmp_path, text))


def test_damaged_data_and_other_types_are_refused_by_name(tmp_path):
    path = folder(tmp_path, OLD)
    data = path / "coremldata.bin"
    for content, match in [
        (b"", "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 379\n", "Git LFS"),
        (struct.pack("<I24xQB31xQ", 502, 0, 8, 9) + b"\xff" * 9, "damaged"),
        (bytes([0xF4, 1, 0, 0]) + bytes(90), "a compiled neuralNetwork"),
        (bytes([0x2C, 1, 0, 0]) + bytes(90), "a compiled glmRegressor"),
    ]:
        data.write_bytes(content)
        with pytest.raises(InvalidPackage, match=match):
            MLProgram(path)


def test_a_command_that_is_told_to_end_leaves_nothing(tmp_path, monkeypatch):
    inputs, model = [ct.TensorType(shape=(2, 64))], torch.nn.Linear(64, 64).eval()
    path = package(model, tmp_path / "a.mlpackage", (torch.rand(2, 64),), inputs=inputs)
    monkeypatch.setattr("mlprogram.package.container._copy", end)
    before = sorted(tmp_path.iterdir())
    for suffix in (".mlpackage", ".mlmodelc"):
        assert mlprogram("save", path, tmp_path / f"saved{suffix}").returncode == 143
        assert sorted(tmp_path.iterdir()) == before


def test_the_command_line_takes_them(tmp_path):
    path = folder(tmp_path, OLD)
    target = tmp_path / "saved.mlpackage"
    run = CliRunner()
    assert run.invoke(app, ["save", str(path), str(target)]).output.strip() == str(target)
    shown = run.invoke(app, ["inspect", str(path)]).output
    assert "function main (CoreML6, default)" in shown and "concat" in shown
    same = run.invoke(app, ["diff", str(path), str(target)])
    assert same.exit_code == 0, same.output

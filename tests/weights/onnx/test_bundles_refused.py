"""ONNX bundles that will not do: one error each, which names file, node and remedy."""

import json
import os
from pathlib import Path

from _tiny_onnx import Bundle, edit, hugging_face, write
import ane_book
from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.weights import open_source
from ane_book.weights.onnx import is_bundle
import numpy as np
from onnx import helper, numpy_helper
import pytest


@pytest.fixture
def bundle(tmp_path):
    """`bundle(**fields)` -> the folder of a new one."""

    def make(**fields) -> Path:
        write(tmp_path / "b", Bundle(L=1, **fields))
        return tmp_path / "b"

    return make


def refused(folder: Path, kind: type, *said: str) -> str:
    with pytest.raises(kind) as caught:
        open_source(folder)
    message = str(caught.value)
    assert str(folder) in message
    for text in said:
        assert text in message
    return message


def node(model, kind: str, number: int = 0):
    return [n for n in model.graph.node if n.op_type == kind][number]


def tensor(model, name: str):
    return next(t for t in model.graph.initializer if t.name == name)


def set_attribute(kind: str, **values):
    def change(model):
        found = node(model, kind)
        kept = [a for a in found.attribute if a.name not in values]
        del found.attribute[:]
        found.attribute.extend(kept)
        found.attribute.extend(helper.make_attribute(k, v) for k, v in values.items())

    return change


@pytest.mark.parametrize(
    "kind, values, said",
    [
        ("GroupQueryAttention", {"softcap": 50.0}, ("softcap = 50", "a cap on the scores")),
        ("GroupQueryAttention", {"smooth_softmax": 1}, ("smooth_softmax",)),
        ("GroupQueryAttention", {"rotary_interleaved": 1}, ("rotary_interleaved",)),
        ("GroupQueryAttention", {"causal": 0}, ("causal = 0",)),
        ("GroupQueryAttention", {"k_quant_type": "PER_TENSOR"}, ("k_quant_type",)),
        ("GroupQueryAttention", {"do_rotary": 0}, ("RotaryEmbedding",)),
        ("GroupQueryAttention", {"num_heads": 3}, ("n", "3")),
        ("MatMulNBits", {"weight_prepacked": 1}, ("prepacked", "matmulnbits_weights_prepacked=0")),
        ("MatMulNBits", {"bits": 3}, ("3 bits", "2, 4 and 8")),
    ],
)
def test_attributes_that_are_not_ours(bundle, kind, values, said):
    folder = bundle()
    edit(folder / "model.onnx", set_attribute(kind, **values))
    refused(folder, UnsupportedModel, kind, *said)


@pytest.mark.parametrize(
    "kind, other, said",
    [
        ("LessOrEqual", "GreaterOrEqual", "not the causal one, for 4 tokens after 0"),
        ("LessOrEqual", "Less", "not the causal one, for 4 tokens after 0"),
        ("LessOrEqual", "Frobnicate", "no part of a mask"),
    ],
)
def test_a_mask_that_is_not_causal(bundle, kind, other, said):
    folder = bundle(attention="multi", masked=True)
    open_source(folder)

    def change(model):
        node(model, kind).op_type = other

    edit(folder / "model.onnx", change)
    refused(folder, UnsupportedModel, "attention's mask", said)


@pytest.mark.parametrize("window", [24, 3000])
def test_a_window_in_the_mask(bundle, window):
    folder = bundle(family="mistral", attention="multi", masked=True, window=window, P=8192)
    refused(folder, UnsupportedModel, "attention's mask", "not the causal one")


def test_a_mask_that_is_not_causal_after_other_tokens(bundle):
    def change(model):
        begin = node(model, "Sub", 1)  # of the rows: the tokens of the call off all of them
        begin.input[1] = begin.input[0]

    folder = bundle(attention="multi", masked=True)
    edit(folder / "model.onnx", change)
    refused(folder, UnsupportedModel, "not the causal one, for 1 tokens after 4")


def test_a_mask_that_hides_too_little(bundle):
    folder = bundle(attention="multi", masked=True)

    def change(model):
        low = tensor(model, node(model, "Where").input[2])
        low.CopyFrom(numpy_helper.from_array(np.float32(-100), low.name))

    edit(folder / "model.onnx", change)
    refused(folder, UnsupportedModel, "not the causal one")


def test_a_mask_of_more_numbers_than_memory_holds(bundle):
    def change(model):
        size = node(model, "Range").input[1]
        many = numpy_helper.from_array(np.array(1 << 40), "many")
        model.graph.initializer.append(many)
        for found in model.graph.node:
            found.input[:] = ["many" if i == size else i for i in found.input]

    folder = bundle(attention="multi", masked=True)
    edit(folder / "model.onnx", change)
    refused(folder, UnsupportedModel, "attention's mask", "1.1e+12 numbers")


@pytest.mark.parametrize(
    "values", [{"block_size": 16}, {"block_size": 24}, {"block_size": 0}, {"K": 65}, {"N": -1}]
)
def test_blocks_of_another_size_than_the_data(bundle, values):
    folder = bundle()
    edit(folder / "model.onnx", set_attribute("MatMulNBits", **values))
    refused(folder, InvalidWeights)


def test_an_attribute_of_another_type(bundle):
    folder = bundle()
    edit(folder / "model.onnx", set_attribute("MatMulNBits", bits="four"))
    with pytest.raises(InvalidWeights, match="attribute bits is 'four'"):
        open_source(folder)


def test_an_operator_that_is_not_known_is_named_with_its_inputs_and_what_is_near(bundle):
    def change(model):
        found = node(model, "Sigmoid")
        found.op_type, found.domain = "Frobnicate", "com.example"

    folder = bundle()
    edit(folder / "model.onnx", change)
    message = refused(folder, UnsupportedModel, "silu(gate) * up")
    assert "(Mul) of " in message and "(com.example.Frobnicate) of " in message
    assert "(com.microsoft.MatMulNBits) of " in message


def test_columns_in_an_order_of_their_own(bundle):
    def change(model, order):
        model.graph.initializer.append(numpy_helper.from_array(order, "order"))
        node(model, "MatMulNBits").input.extend(["", "order"])

    folder = bundle()
    columns = np.arange(64, dtype=np.int32) // 32
    edit(folder / "model.onnx", lambda model: change(model, columns))
    open_source(folder)
    edit(folder / "model.onnx", lambda model: tensor(model, "order").CopyFrom(
        numpy_helper.from_array(columns[::-1].copy(), "order")))  # fmt: skip
    refused(folder, UnsupportedModel, "g_idx", "act-order")


def place(**entries):
    """Change where the first external tensor says its data are."""

    def change(model):
        found = next(t for t in model.graph.initializer if t.data_location)
        for entry in found.external_data:
            entry.value = entries.get(entry.key, entry.value)

    return change


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "", "\0"])
def test_data_outside_of_the_folder(bundle, location):
    folder = bundle()
    (folder.parent / "secret").write_bytes(bytes(10_000_000))
    edit(folder / "model.onnx", place(location=location))
    refused(folder, InvalidWeights)


def test_data_behind_a_link_out_of_the_folder(bundle):
    folder = bundle()
    data = (folder / "model.onnx.data").rename(folder.parent / "elsewhere")
    (folder / "model.onnx.data").symlink_to(data)
    refused(folder, InvalidWeights, "outside of the folder")


def test_a_folder_of_links_to_blobs_as_the_hubs_cache_has_it(bundle):
    folder = bundle()
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for file in list(folder.iterdir()):
        blob = file.rename(blobs / f"{file.name}-blob")
        file.symlink_to(os.path.relpath(blob, folder))
    source = open_source(folder)
    assert np.isfinite(source.tensor("model.norm.weight")).all()


def test_data_that_are_missing_cut_short_or_misplaced(bundle):
    folder = bundle()
    data = folder / "model.onnx.data"
    os.truncate(data, data.stat().st_size // 2)
    refused(folder, InvalidWeights, "cut short")
    data.unlink()
    refused(folder, InvalidWeights, "model.onnx.data is missing")
    os.mkfifo(data)
    refused(folder, InvalidWeights, "not a file")


@pytest.mark.parametrize("entries", [{"offset": "-8"}, {"length": "1"}, {"offset": "many"},
                                     {"offset": "9" * 30}])  # fmt: skip
def test_a_place_that_cannot_be(bundle, entries):
    folder = bundle()
    edit(folder / "model.onnx", place(**entries))
    refused(folder, InvalidWeights)


def test_dimensions_that_no_memory_holds(bundle):
    def change(model):
        for found in model.graph.initializer:
            found.dims[:] = [1 << 40, 1 << 20]

    folder = bundle()
    edit(folder / "model.onnx", change)
    refused(folder, InvalidWeights)


def test_no_onnx_cut_short_from_the_future_or_too_large(bundle):
    folder = bundle()
    model = folder / "model.onnx"
    sound = model.read_bytes()
    model.write_bytes(sound[: len(sound) // 2])
    refused(folder, InvalidWeights, "get it again")
    model.write_bytes(b"GGUF" * 100)
    refused(folder, InvalidWeights)
    model.write_bytes(b"")
    refused(folder, InvalidWeights, "no ONNX file")
    model.write_bytes(sound)
    edit(model, lambda m: setattr(m.opset_import[0], "version", 99))
    refused(folder, UnsupportedModel, "opset 99")
    os.truncate(model, 1 << 31)
    refused(folder, InvalidWeights, "external data")


@pytest.mark.parametrize("name", [b"lengths", b"model.onnx.data", b"Sigmoid", b"past_key_values.0"])
def test_a_name_that_is_no_text(bundle, name):
    model = bundle() / "model.onnx"
    model.write_bytes(model.read_bytes().replace(name, b"\xff" + name[1:]))
    refused(model.parent, InvalidWeights, "no text in UTF-8")


def test_a_graph_that_runs_in_a_circle(bundle):
    def change(model):
        found = node(model, "SkipSimplifiedLayerNormalization")
        found.input[0] = found.output[3]

    folder = bundle()
    edit(folder / "model.onnx", change)
    refused(folder, UnsupportedModel)


def test_no_tokenizer(bundle):
    folder = bundle()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match="tokenizer.json is missing"):
        open_source(folder).tokenizer()


def test_configurations_that_say_another_model(bundle):
    folder = bundle()
    place = folder / "genai_config.json"
    sound = json.loads(place.read_text())

    def write_config(**decoder):
        fields = json.loads(json.dumps(sound))
        fields["model"]["decoder"] |= decoder
        place.write_text(json.dumps(fields))

    write_config(num_hidden_layers=9)
    refused(folder, InvalidWeights, "num_hidden_layers is 9", "1")
    write_config(filename="../b/model.onnx")
    refused(folder, InvalidWeights, "outside of its folder")
    write_config(filename="other.onnx")
    refused(folder, WeightsNotFound, "other.onnx", "missing")
    place.write_text(json.dumps({"model": sound["model"] | {"type": "gpt9"}}))
    refused(folder, UnsupportedModel, "gpt9")
    place.write_text(json.dumps({"model": 7}))
    refused(folder, InvalidWeights, "model")


@pytest.mark.parametrize(
    "field, value, said",
    [("rope_theta", 1e6, "rotary"), ("rms_norm_eps", 1e-3, "epsilon"), ("head_dim", 16, ""),
     ("num_hidden_layers", 3, "num_layers"), ("intermediate_size", 95, "mlp.gate_proj")],
)  # fmt: skip
def test_a_config_json_that_says_another_model(bundle, field, value, said):
    folder = bundle()
    fields = hugging_face(Bundle(L=1))
    (folder / "config.json").write_text(json.dumps(fields))
    assert open_source(folder).config().items() >= fields.items()
    (folder / "config.json").write_text(json.dumps(fields | {field: value}))
    refused(folder, InvalidWeights, said)


def test_embeddings_apart_whose_file_is_not_named_or_missing(bundle):
    folder = bundle(apart=True)
    (folder / "embedding.onnx").unlink()
    refused(folder, WeightsNotFound, "embedding.onnx", "missing")
    place = folder / "genai_config.json"
    fields = json.loads(place.read_text())
    del fields["model"]["embedding"]
    place.write_text(json.dumps(fields))
    refused(folder, WeightsNotFound, "genai_config.json names no file")


@pytest.mark.parametrize("under", ["", "onnx"])
def test_an_export_of_transformers_js_or_optimum_is_refused_by_its_remedy(bundle, under, tmp_path):
    folder = bundle()
    assert is_bundle(folder) and is_bundle(folder / "model.onnx")
    (folder / "genai_config.json").unlink()
    place, model = folder / "config.json", folder / under / "model.onnx"
    place.write_text(json.dumps(hugging_face(Bundle(L=1))))
    (folder / under).mkdir(exist_ok=True)
    for name in ("model.onnx", "model.onnx.data"):
        (folder / name).rename(folder / under / name)
    for path in (folder, model):
        assert is_bundle(path)
        with pytest.raises(UnsupportedModel, match="convert the safetensors of the same model"):
            ane_book.convert(str(path), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for kind in ("bert", "resnet"):  # any other graph, which is translated
        place.write_text(json.dumps({"model_type": kind}))
        assert not is_bundle(model)
    place.unlink()
    assert not is_bundle(model)

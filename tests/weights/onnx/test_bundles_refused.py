"""ONNX bundles that will not do: one error each, which names file, node and remedy.

Files that are no ONNX, or whose data are not where they should be, are in tests/onnx.
"""

from functools import partial
import json
from pathlib import Path

from _tiny_onnx import Bundle, edit, write
import ane_book
from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.weights import open_source
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


def refused(folder: Path, error: type, said: str = "") -> None:
    with pytest.raises(error, match=said or None) as caught:
        open_source(folder)
    assert str(folder) in str(caught.value)


def node(model, kind: str, number: int = 0):
    return [n for n in model.graph.node if n.op_type == kind][number]


def set_attribute(kind: str, **values):
    def change(model):
        found = node(model, kind)
        kept = [a for a in found.attribute if a.name not in values]
        del found.attribute[:]
        found.attribute.extend(kept)
        found.attribute.extend(helper.make_attribute(k, v) for k, v in values.items())

    return change


def other_op(kind: str, op: str, domain: str = ""):
    def change(model):
        found = node(model, kind)
        found.op_type, found.domain = op, domain

    return change


def order(columns):
    def change(model):
        model.graph.initializer.append(numpy_helper.from_array(columns, "order"))
        node(model, "MatMulNBits").input.extend(["", "order"])

    return change


def dimensions_that_no_memory_holds(model):
    for found in model.graph.initializer:
        found.dims[:] = [1 << 40, 1 << 20]


def without_inputs(kind: str):
    def change(model):
        del node(model, kind).input[:]

    return change


def circle(model):
    found = node(model, "SkipSimplifiedLayerNormalization")
    found.input[0] = found.output[3]


grouped, product = (partial(set_attribute, op) for op in ("GroupQueryAttention", "MatMulNBits"))
COLUMNS = np.arange(64, dtype=np.int32) // 32

#: The error, what it says, and what is done to the graph.
REFUSED = [
    (UnsupportedModel, r"\(.*GroupQueryAttention\).*softcap = 50.*, a cap on the scores",
     grouped(softcap=50.0)),
    (UnsupportedModel, "smooth_softmax = 1", grouped(smooth_softmax=1)),
    (UnsupportedModel, "rotary_interleaved = 1", grouped(rotary_interleaved=1)),
    (UnsupportedModel, "causal = 0", grouped(causal=0)),
    (UnsupportedModel, "k_quant_type = ", grouped(k_quant_type="PER_TENSOR")),
    (UnsupportedModel, "RotaryEmbedding", grouped(do_rotary=0)),
    (UnsupportedModel, r"\(.*MultiHeadAttention\).* is not read; GroupQueryAttention is",
     other_op("GroupQueryAttention", "MultiHeadAttention", "com.microsoft")),
    (UnsupportedModel, "GroupQueryAttention.*3", grouped(num_heads=3)),
    (UnsupportedModel, "MatMulNBits.*matmulnbits_weights_prepacked=0", product(weight_prepacked=1)),
    (UnsupportedModel, "MatMulNBits.* 3 bits; 2, 4 and 8", product(bits=3)),
    (UnsupportedModel, r"\(Mul\) of .*silu\(gate\) \* up(?=.*\(com.example.Frobnicate\) of ).*"
     r"\(com.microsoft.MatMulNBits\) of ", other_op("Sigmoid", "Frobnicate", "com.example")),
    (UnsupportedModel, "g_idx .*act-order", order(COLUMNS[::-1].copy())),
    (UnsupportedModel, "", circle),
    *((InvalidWeights, "fewer inputs than its operator takes", without_inputs(kind))
      for kind in ("Gather", "MatMulNBits", "Sigmoid", "SkipSimplifiedLayerNormalization")),
    *((InvalidWeights, "", product(**{name: value})) for name, value in (
        ("block_size", 16), ("block_size", 24), ("block_size", 0), ("K", 65), ("N", -1))),
    (InvalidWeights, "", dimensions_that_no_memory_holds),
]  # fmt: skip


@pytest.mark.parametrize(("error", "said", "change"), REFUSED)
def test_a_graph_that_will_not_do(bundle, error, said, change):
    folder = bundle()
    edit(folder / "model.onnx", change)
    refused(folder, error, said)


def test_configurations_that_say_another_model(bundle):
    folder = bundle()
    place = folder / "genai_config.json"
    sound = json.loads(place.read_text())

    def write_config(**decoder):
        fields = json.loads(json.dumps(sound))
        fields["model"]["decoder"] |= decoder
        place.write_text(json.dumps(fields))

    write_config(num_hidden_layers=9)
    refused(folder, InvalidWeights, "num_hidden_layers is 9.* 1")
    write_config(filename="../b/model.onnx")
    refused(folder, InvalidWeights, "outside of its folder")
    write_config(filename="other.onnx")
    refused(folder, WeightsNotFound, "other.onnx.*missing")
    place.write_text(json.dumps({"model": sound["model"] | {"type": "gpt9"}}))
    refused(folder, UnsupportedModel, "gpt9")
    place.write_text(json.dumps({"model": 7}))
    refused(folder, InvalidWeights, "model")


def test_a_graph_that_takes_embeddings(bundle):
    folder = bundle()

    def change(model):
        lookup = next(n for n in model.graph.node if "input_ids" in n.input)
        model.graph.input[0].name = lookup.output[0]
        model.graph.node.remove(lookup)

    edit(folder / "model.onnx", change)
    refused(folder, UnsupportedModel, "the embedding of tokens is missing")


def test_an_export_of_transformers_js_or_optimum_is_refused_by_its_remedy(bundle, tmp_path):
    folder = bundle()
    (folder / "config.json").write_text(json.dumps(open_source(folder).config()))
    (folder / "genai_config.json").unlink()
    with pytest.raises(UnsupportedModel, match="takes the safetensors of the same model"):
        open_source(folder / "model.onnx")
    with pytest.raises(WeightsNotFound, match=r"no .safetensors file; get the model's weights so"):
        ane_book.convert(str(folder), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()

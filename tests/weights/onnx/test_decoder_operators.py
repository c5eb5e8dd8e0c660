"""Quantised operators of ONNX Runtime, as we read them, against onnxruntime: random attributes.

EXAMPLES=200 python -m pytest tests/weights/onnx/test_decoder_operators.py      the long check
"""

import os
from pathlib import Path

from _tiny_onnx import MICROSOFT, pack
from ane_book.weights.onnx.products import matrix_of_nbits, table_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlprogram.onnx.file import OnnxGraph
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import onnxruntime
import pytest

EXAMPLES = settings(
    max_examples=int(os.environ.get("EXAMPLES", 20)), deadline=None, derandomize=True, database=None
)
seeds = st.integers(0, 1 << 32)
blocks = st.sampled_from((16, 32, 64, 128))
all_bits = st.sampled_from((2, 4, 8))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("operators") / "model.onnx"


def write(place: Path, nodes: list, feed: dict, stored: dict, outputs: list[str]) -> OnnxGraph:
    """A graph of these nodes, saved and read; a stored tensor is an array or a TensorProto."""
    tensors = [
        numpy_helper.from_array(a, name) if isinstance(a, np.ndarray) else a
        for name, a in stored.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in feed.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), place)
    return OnnxGraph(place)


def run(place: Path, feed: dict) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(place, options).run(None, feed)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@EXAMPLES
@given(
    seed=seeds, bits=all_bits, block=blocks, N=st.integers(1, 40), K=st.integers(1, 200),
    zeros=st.sampled_from(("", "packed", "float")), bias=st.booleans(), flat=st.booleans(),
)  # fmt: skip
def test_matmul_n_bits(place, seed, bits, block, N, K, zeros, bias, flat):
    assume((bits, zeros) != (8, "float"))  # onnxruntime has no form for that
    random, B = np.random.default_rng(seed), -(-K // block)
    packed = random.integers(0, 256, (N, B, block * bits // 8)).astype(np.uint8)
    stored = {"q": packed, "s": random.uniform(0.01, 1, (N, B)).astype(np.float32)}
    names = ["x", "q", "s", "z" if zeros else "", "", "b" if bias else ""]
    if zeros == "packed":
        stored["z"] = pack(random.integers(0, 1 << bits, (N, B)), bits)
    elif zeros:
        stored["z"] = random.uniform(0, 1 << bits, (N, B)).astype(np.float32)
    if bias:
        stored["b"] = random.standard_normal(N).astype(np.float32)
    if flat:
        stored |= {name: stored[name].reshape(-1) for name in "sz" if name in stored}
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain=MICROSOFT, N=N, K=K, bits=bits, block_size=block,
        accuracy_level=1,
    )  # fmt: skip
    feed = {"x": np.eye(K, dtype=np.float32)}
    graph = write(place, [node], feed, stored, ["y"])
    matrix, added = matrix_of_nbits(graph, graph.nodes[0])
    ours = matrix.rows(0, N).T + (0 if added is None else added.numbers())
    close(ours, run(place, feed)[0])
    first, last = sorted(random.integers(0, N + 1, 2))
    np.testing.assert_array_equal(matrix.rows(first, last), matrix.rows(0, N)[first:last])


@EXAMPLES
@given(
    seed=seeds, kind=st.sampled_from(("UINT8", "UINT4", "INT4")), bits=all_bits, block=blocks,
    N=st.integers(1, 40), K=st.integers(1, 50), zeros=st.booleans(), half=st.booleans(),
    negative=st.booleans(),
)  # fmt: skip
def test_gather_block_quantized(place, seed, kind, bits, block, N, K, zeros, half, negative):
    random, K = np.random.default_rng(seed), 4 * K  # whole bytes
    bits = bits if kind == "UINT8" else 4
    B = -(-K // block)
    scales = random.uniform(0.01, 1, (N, B)).astype(np.float16 if half else np.float32)
    stored = {"s": scales}
    data, zero = random.integers(0, 256, (N, K * bits // 8)), random.integers(0, 1 << bits, (N, B))
    if kind == "UINT8":
        stored["q"] = data.astype(np.uint8)
        stored |= {"z": pack(zero, bits)} if zeros else {}
    else:
        number, width = getattr(TensorProto, kind), data.shape[1] * 2
        raw = data.astype(np.uint8).tobytes()
        stored["q"] = helper.make_tensor("q", number, [N, width], raw, raw=True)
        if zeros:
            raw = pack(zero.reshape(1, -1), 4).tobytes()
            stored["z"] = helper.make_tensor("z", number, [N, B], raw, raw=True)
    node = helper.make_node(
        "GatherBlockQuantized", ["q", "i", "s", *(["z"] if zeros else [])], ["y"],
        domain=MICROSOFT, bits=bits, block_size=block, gather_axis=0,
        quantize_axis=-1 if negative and kind != "UINT8" else 1,
    )  # fmt: skip
    feed = {"i": random.integers(0, N, 7)}
    graph = write(place, [node, cast("y")], feed, stored, ["wide"])
    table = table_of(graph, graph.nodes[0])
    ours = np.stack([table.rows(i, i + 1)[0] for i in feed["i"]])
    if half:  # onnxruntime's result has the type of the scales
        ours = ours.astype(np.float16).astype(np.float32)
    close(ours, run(place, feed)[0])


def cast(name: str):
    return helper.make_node("Cast", [name], ["wide"], to=TensorProto.FLOAT)

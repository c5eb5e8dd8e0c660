"""Each operator of ONNX Runtime alone, as we read it, against onnxruntime: random attributes.

EXAMPLES=200 python -m pytest tests/weights/onnx/test_decoder_operators.py      the long check
"""

import os
from pathlib import Path

from _tiny_onnx import MICROSOFT, pack
from ane_book.host import causal_mask
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.layers import Attention, NormThenRotate, RMSNorm, Rotate, rotate
from ane_book.rope import Rotary
from ane_book.weights.onnx.attention import attention_of
from ane_book.weights.onnx.products import matrix_of_nbits, table_of
from ane_book.weights.onnx.steps import DecoderWalk
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlprogram.onnx.file import OnnxGraph
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import onnxruntime
import pytest
import torch

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


@EXAMPLES
@given(
    seed=seeds, C=st.integers(1, 300), T=st.integers(1, 5), size=st.floats(1e-3, 1e3),
    epsilon=st.floats(1e-7, 1e-2), skip=st.booleans(),
)  # fmt: skip
def test_norms(place, seed, C, T, size, epsilon, skip):
    random = np.random.default_rng(seed)
    feed = {n: (random.standard_normal((1, T, C)) * size).astype(np.float32) for n in "ab"}
    weight = random.uniform(-2, 2, C).astype(np.float32)
    if skip:
        node = helper.make_node(
            "SkipSimplifiedLayerNormalization", ["a", "b", "w"], ["y", "", "", "sum"],
            domain=MICROSOFT, epsilon=epsilon,
        )  # fmt: skip
    else:
        feed.pop("b")
        node = helper.make_node("SimplifiedLayerNormalization", ["a", "w"], ["y"], epsilon=epsilon)
    outputs = ["y", "sum"] if skip else ["y"]
    walk = DecoderWalk(write(place, [node], feed, {"w": weight}, outputs))
    norm, theirs = walk.norm("y"), run(place, feed)
    assert norm.epsilon == np.float32(epsilon)
    total = sum(feed.values())
    if skip:
        assert norm.source == walk.value("sum") and walk.sum("sum") == ("a", "b")
        np.testing.assert_array_equal(theirs[1], total)
    layer = RMSNorm(C, norm.epsilon)
    layer.weight.data[:] = torch.tensor(norm.weight.numbers())[:, None, None]
    ours = layer(torch.from_numpy(total.transpose(0, 2, 1)[:, :, None]))
    close(ours.detach().numpy()[:, :, 0].transpose(0, 2, 1), theirs[0])


def tables(R: int, P: int, theta: float) -> dict[str, np.ndarray]:
    angles = np.arange(P)[:, None] * theta ** (-np.arange(0, R, 2) / R)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


@EXAMPLES
@given(
    seed=seeds, heads=st.integers(1, 4), T=st.integers(1, 6), pairs=st.integers(1, 16),
    rest=st.sampled_from((0, 0, 16)), theta=st.floats(100, 1e6), first=st.integers(0, 50),
)  # fmt: skip
def test_rotary_embedding(place, seed, heads, T, pairs, rest, theta, first):
    random, R = np.random.default_rng(seed), 2 * pairs
    D, positions = R + rest, np.arange(first, first + T)
    feed = {"x": random.standard_normal((1, T, heads * D)).astype(np.float32),
            "position_ids": positions[None]}  # fmt: skip
    node = helper.make_node(
        "RotaryEmbedding", ["x", "position_ids", "cos", "sin"], ["y"], domain=MICROSOFT,
        num_heads=heads if rest else 0, rotary_embedding_dim=R if rest else 0,
    )  # fmt: skip
    write(place, [node], feed, tables(R, 64, theta), ["y"])
    cos, sin = map(torch.from_numpy, Rotary(D, R, theta, {}, 64, 1.0).tables(positions))
    rows = torch.from_numpy(feed["x"]).view(1, T, heads, D).transpose(1, 2)
    ours = rotate(rows, cos, sin, R).transpose(1, 2).reshape(1, T, heads * D)
    close(ours.numpy(), run(place, feed)[0])


def attention_nodes(form: str, heads: tuple, normed: bool, attributes: dict) -> list:
    """GroupQueryAttention of a product of x, and what is between."""
    H, K = heads
    nodes = [helper.make_node("MatMul", ["x", "w"], ["qkv"])]
    parts, past = ["qkv", "", ""], ["past_k", "past_v"]
    if form != "packed" or normed:
        parts = ["q", "k", "v"]
        nodes.append(helper.make_node("Split", ["qkv", "sizes"], parts, axis=-1))
    for part in ("q", "k") if normed else ():
        shapes = f"{part}_heads", f"{part}_flat"
        nodes += [
            helper.make_node("Reshape", [part, shapes[0]], [f"{part}1"]),
            helper.make_node("SimplifiedLayerNormalization", [f"{part}1", f"{part}_norm"],
                             [f"{part}2"], epsilon=1e-5),
            helper.make_node("Reshape", [f"{part}2", shapes[1]], [f"{part}3"]),
        ]  # fmt: skip
        parts["qkv".index(part)] = f"{part}3"
    tail = ["length", "total", "cos", "sin"]
    return [*nodes, helper.make_node(
        "GroupQueryAttention", [*parts, *past, *tail], ["y", "present_k", "present_v"],
        domain=MICROSOFT, num_heads=H, kv_num_heads=K, do_rotary=1, **attributes,
    )]  # fmt: skip


@EXAMPLES
@given(
    seed=seeds, form=st.sampled_from(("packed", "apart")), K=st.integers(1, 3),
    group=st.integers(1, 3), D=st.sampled_from((16, 32, 48)), partial=st.booleans(),
    T=st.integers(1, 9), past=st.integers(0, 12), window=st.sampled_from((-1, -1, 1, 3, 8)),
    normed=st.booleans(), scale=st.sampled_from((0.0, 0.05, 0.3)),
)  # fmt: skip
def test_group_query_attention(place, seed, form, K, group, D, partial, T, past, window, normed,
                               scale):  # fmt: skip
    random, H = np.random.default_rng(seed), K * group
    R, C = 16 if partial else D, 24
    widths = [H * D, K * D, K * D]
    weight = random.standard_normal((C, sum(widths))) / C**0.5
    stored = tables(R, 64, 1000.0) | {"w": weight.astype(np.float32), "sizes": np.array(widths)}
    for part, heads in (("q", H), ("k", K)):
        stored |= {f"{part}_norm": random.uniform(0.5, 2, D).astype(np.float32),
                   f"{part}_heads": np.array([0, -1, D]),
                   f"{part}_flat": np.array([0, -1, heads * D])}  # fmt: skip
    cache = [random.standard_normal((1, K, past, D)).astype(np.float32) for _ in range(2)]
    feed = {"x": random.standard_normal((1, T, C)).astype(np.float32), "past_k": cache[0],
            "past_v": cache[1], "length": np.array([past + T - 1], np.int32),
            "total": np.array(past + T, np.int32)}  # fmt: skip
    attributes = {"local_window_size": window} | ({"scale": scale} if scale else {})
    nodes = attention_nodes(form, (H, K), normed, attributes)
    graph = write(place, nodes, feed, stored, ["y", "present_k", "present_v"])
    found = attention_of(DecoderWalk(graph), "y")
    assert (found.heads, found.kv_heads, found.tables) == (H, K, ("cos", "sin"))
    assert found.source == "x" and set(found.norms) == (set("qk") if normed else set())
    theirs = run(place, feed)
    ours = by_our_attention(found, feed, T, past)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


def by_our_attention(found, feed: dict, T: int, past: int) -> list[np.ndarray]:
    """The same by the layer that conversion lowers, with what was read of the graph."""
    C = feed["x"].shape[2]
    D = found.parts["q"][0].shape[0] // found.heads
    graph = found.parts["q"][0].source.stored.graph
    R = 2 * graph.constants["cos"].shape[1]
    config = DecoderConfig(
        architecture="llama", hidden_size=C, intermediate_size=1, num_layers=1,
        num_heads=found.heads, num_kv_heads=found.kv_heads, head_dim=D, vocab_size=1,
        rms_norm_eps=1e-5, rope_theta=1000.0, partial_rotary_factor=R / D, max_position=64,
    )  # fmt: skip
    layer = Attention(config, (NormThenRotate if found.norms else Rotate)(config))
    layer.out = torch.nn.Identity()
    matrix = np.concatenate([found.parts[part][0].read() for part in "qkv"])
    layer.qkv.weight.data[:] = torch.from_numpy(matrix)[:, :, None, None]
    layer.qkv.bias = None
    if found.norms:
        heads = {"q": found.heads, "k": found.kv_heads}
        rows = [np.tile(found.norms[p].weight.numbers(), (heads[p], 1)) for p in "qk"]
        layer.prepare.weight.data[:] = torch.from_numpy(np.concatenate(rows))[None, :, None]
    rotary = Rotary(D, R, 1000.0, {}, 64, found.scale or D**-0.5)
    turned = rotary.tables(np.arange(past, past + T))
    # `causal_mask` is of a cache of `past` slots that are all full.
    mask = causal_mask(past, T, past, found.window)
    mask = np.tile(mask, (1, 1, found.heads // found.kv_heads, 1))
    keys, values = feed["past_k"], feed["past_v"]
    root = (found.scale or D**-0.5) ** 0.5  # rides on our keys, in the cache as well
    operands = feed["x"].transpose(0, 2, 1)[:, :, None], *turned, mask, keys * root, values
    y, new_keys, new_values = layer(*(torch.from_numpy(a.astype(np.float32)) for a in operands))
    y = y.detach().numpy()[:, :, 0].transpose(0, 2, 1)
    present = [np.concatenate([keys, new_keys.detach().numpy() / root], axis=2),
               np.concatenate([values, new_values.detach().numpy()], axis=2)]  # fmt: skip
    return [y, *present]

"""Small ONNX bundles, made by hand with `onnx.helper`: random weights, stored in every way.

Values and nodes have names that say nothing: a graph has to be recognised by what it computes.
`write` gives the bundle's weights too, by `transformers`' names, from numpy's arithmetic alone.
"""

from dataclasses import dataclass, field
import json
from pathlib import Path

from ane_book.weights.tokenizer import byte_level
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


@dataclass
class Bundle:
    """What is written. weights: None of floating point, or bits; zeros: "", "packed", "float"."""

    family: str = "llama"
    bits: int | None = 4
    block: int = 32
    zeros: str = ""
    attention: str = "grouped"  # "packed" qkv, "grouped", "rotated" before it
    tied: bool = False
    table: str = "plain"  # of the embedding: "plain", "blocks"
    external: bool = True
    window: int = -1
    dtype: type = np.float32
    H: int = 4
    K: int = 2
    D: int = 32
    R: int = 32
    C: int = 64
    F: int = 96
    L: int = 2
    V: int = 257
    P: int = 128
    epsilon: float = 1e-5
    theta: float = 10000.0
    changes: dict = field(default_factory=dict)  # of attributes of attention


class Writer:
    """A graph in the making."""

    def __init__(self, bundle: Bundle, seed: int = 0):
        self.bundle, self.random = bundle, np.random.default_rng(seed)
        self.nodes, self.stored, self.weights, self.count = [], [], {}, 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def store(self, array: np.ndarray) -> str:
        self.stored.append(numpy_helper.from_array(np.ascontiguousarray(array), self.name()))
        return self.stored[-1].name

    def add(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes):
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(kind, inputs, names, f"n{self.count}", domain=domain, **attributes)
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def integers(self, N: int, K: int) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """Random blocks: data (N, B, bytes), [scales, zero points], and what they mean (N, K)."""
        b = self.bundle
        B = -(-K // b.block)
        q = self.random.integers(0, 1 << b.bits, (N, B, b.block))
        scales = (self.random.uniform(0.2, 1, (N, B)) / (1 << b.bits)).astype(b.dtype)
        zero = np.full((N, B), 1 << (b.bits - 1), np.float32)
        operands = [scales]
        if b.zeros == "packed":
            zero = self.random.integers(1 << (b.bits - 2), 3 << (b.bits - 2), (N, B))
            operands.append(pack(zero, b.bits))
        elif b.zeros == "float":
            zero = (zero + self.random.uniform(-1, 1, (N, B))).astype(b.dtype)
            operands.append(zero)
        means = (q - zero[..., None].astype(np.float32)) * scales[..., None].astype(np.float32)
        data = pack(q.reshape(N * B, b.block), b.bits).reshape(N, B, -1)
        return data, operands, means.reshape(N, -1)[:, :K].astype(np.float32)

    def project(self, x: str, N: int, K: int, bias: bool = False) -> tuple[str, np.ndarray, object]:
        """x times a random matrix: the value, the matrix (N, K) and the bias."""
        b = self.bundle
        added = self.random.standard_normal(N).astype(b.dtype) if bias else None
        if b.bits is None:
            matrix = (self.random.standard_normal((N, K)) / K**0.5).astype(b.dtype)
            y = self.add("MatMul", x, self.store(matrix.T))
        else:
            data, operands, matrix = self.integers(N, K)
            names = [self.store(array) for array in (data, *operands)]
            y = self.add("MatMulNBits", x, *names, domain=MICROSOFT, N=N, K=K, bits=b.bits,
                         block_size=b.block, accuracy_level=1)  # fmt: skip
        if bias:
            y = self.add("Add", y, self.store(added))
        return y, matrix.astype(np.float32), added

    def keep(self, name: str, matrix: np.ndarray, bias: np.ndarray | None = None) -> None:
        self.weights[f"{name}.weight"] = matrix
        if bias is not None:
            self.weights[f"{name}.bias"] = bias.astype(np.float32)

    def norm(self, name: str, *x: str, size: int) -> tuple[str, str]:
        """The norm of x, or of the sum of two; and the sum."""
        weight = self.random.uniform(0.5, 1.5, size).astype(self.bundle.dtype)
        self.keep(name, weight.astype(np.float32))
        stored, epsilon = self.store(weight), self.bundle.epsilon
        if len(x) == 1:
            return self.add("SimplifiedLayerNormalization", *x, stored, epsilon=epsilon), x[0]
        outputs = self.add("SkipSimplifiedLayerNormalization", *x, stored, outputs=4,
                           domain=MICROSOFT, epsilon=epsilon)  # fmt: skip
        return outputs[0], outputs[3]

    # --- parts of a decoder

    def tables(self) -> tuple[str, str]:
        b = self.bundle
        angles = np.arange(b.P)[:, None] * (b.theta ** (-np.arange(0, b.R, 2) / b.R))
        return tuple(self.store(f(angles).astype(b.dtype)) for f in (np.cos, np.sin))

    def head_norm(self, name: str, x: str, heads: int) -> str:
        D = self.bundle.D
        x = self.add("Reshape", x, self.store(np.array([0, -1, D])))
        x, _ = self.norm(name, x, size=D)
        return self.add("Reshape", x, self.store(np.array([0, -1, heads * D])))

    def attend(self, i: int, x: str, tables: tuple[str, str]) -> str:
        b, prefix = self.bundle, f"model.layers.{i}.self_attn"
        sizes, bias = (b.H * b.D, b.K * b.D, b.K * b.D), b.family == "qwen2"
        packed, matrix, added = self.project(x, sum(sizes), b.C, bias)
        places = np.cumsum((0, *sizes))
        for part, start, stop in zip("qkv", places, places[1:], strict=False):
            row = None if added is None else added[start:stop]
            self.keep(f"{prefix}.{part}_proj", matrix[start:stop], row)
        if b.attention == "packed":
            return self.grouped(i, [packed, "", ""], tables)
        q, k, v = self.add("Split", packed, self.store(np.array(sizes)), outputs=3, axis=-1)
        if b.family == "qwen3":
            q = self.head_norm(f"{prefix}.q_norm", q, b.H)
            k = self.head_norm(f"{prefix}.k_norm", k, b.K)
        if b.attention == "rotated":
            q, k = (self.rotate(x, heads, tables) for x, heads in ((q, b.H), (k, b.K)))
            tables = ()
        return self.grouped(i, [q, k, v], tables)

    def rotate(self, x: str, heads: int, tables: tuple[str, str]) -> str:
        b = self.bundle
        partial = {"num_heads": heads, "rotary_embedding_dim": b.R} if b.R < b.D else {}
        return self.add("RotaryEmbedding", x, "position_ids", *tables, domain=MICROSOFT, **partial)

    def grouped(self, i: int, parts: list[str], tables: tuple[str, ...]) -> str:
        b, past = self.bundle, [f"past_key_values.{i}.{name}" for name in ("key", "value")]
        attributes = {"num_heads": b.H, "kv_num_heads": b.K, "scale": b.D**-0.5,
                      "do_rotary": int(bool(tables)), "local_window_size": b.window}  # fmt: skip
        attributes |= b.changes
        found = self.add("GroupQueryAttention", *parts, *past, "lengths", "total", *tables,
                         outputs=3, domain=MICROSOFT, **attributes)  # fmt: skip
        self.nodes[-1].output[1:] = [f"present.{i}.key", f"present.{i}.value"]
        return found[0]

    def feed(self, i: int, x: str) -> str:
        b, prefix = self.bundle, f"model.layers.{i}.mlp"
        made = {}
        for part in ("gate", "up"):
            made[part], matrix, _ = self.project(x, b.F, b.C)
            self.keep(f"{prefix}.{part}_proj", matrix)
        gate = self.add("Mul", made["gate"], self.add("Sigmoid", made["gate"]))
        down, matrix, _ = self.project(self.add("Mul", gate, made["up"]), b.C, b.F)
        self.keep(f"{prefix}.down_proj", matrix)
        return down

    def embed(self) -> tuple[str, str]:
        """The rows of the tokens; the name of the stored table, where it is plain."""
        b = self.bundle
        if b.table == "blocks":
            data, operands, matrix = self.integers(b.V, b.C)
            flat = [self.store(a.reshape(b.V, -1)) for a in (data, *operands)]
            x = self.add("GatherBlockQuantized", flat[0], "input_ids", *flat[1:],
                         domain=MICROSOFT, bits=b.bits, block_size=b.block)  # fmt: skip
            table = ""
        else:
            matrix = self.random.standard_normal((b.V, b.C)).astype(b.dtype)
            table = self.store(matrix)
            x = self.add("Gather", table, "input_ids")
        self.keep("model.embed_tokens", matrix.astype(np.float32))
        return x, table

    def decoder(self, x: str, table: str) -> None:
        b, tables = self.bundle, self.tables()
        self.lengths()
        normed, x = self.norm("model.layers.0.input_layernorm", x, size=b.C)
        for i in range(b.L):
            out, matrix, _ = self.project(self.attend(i, normed, tables), b.C, b.H * b.D)
            self.keep(f"model.layers.{i}.self_attn.o_proj", matrix)
            after = f"model.layers.{i}.post_attention_layernorm"
            normed, x = self.norm(after, x, out, size=b.C)
            last = i + 1 == b.L
            name = "model.norm" if last else f"model.layers.{i + 1}.input_layernorm"
            normed, x = self.norm(name, x, self.feed(i, normed), size=b.C)
        if b.tied:
            self.add("MatMul", normed, self.add("Transpose", table, perm=[1, 0]))
        else:
            _, matrix, _ = self.project(normed, b.V, b.C)
            self.keep("lm_head", matrix)
        self.nodes[-1].output[0] = "logits"

    def lengths(self) -> None:
        """What GroupQueryAttention asks for of the mask."""
        one = self.store(np.array([1]))
        total = self.add("ReduceSum", "attention_mask", one, keepdims=0)
        self.add("Cast", self.add("Sub", total, one), to=TensorProto.INT32)
        self.nodes[-1].output[0] = "lengths"
        shape = self.add("Shape", "attention_mask")
        size = self.add("Gather", shape, self.store(np.array(1)))
        self.add("Cast", size, to=TensorProto.INT32)
        self.nodes[-1].output[0] = "total"

    # --- files

    def model(self, inputs: list, outputs: list) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.stored)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        self.nodes, self.stored = [], []
        return made

    def kind(self) -> int:
        return helper.np_dtype_to_tensor_dtype(np.dtype(self.bundle.dtype))


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """(n, m) integers to (n, bytes), the first in the lowest bits."""
    per = 8 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per))).astype(np.uint8)
    groups = padded.reshape(len(numbers), -1, per)
    return sum(groups[:, :, j] << (j * bits) for j in range(per)).astype(np.uint8)


def save(model: onnx.ModelProto, path: Path, external: bool) -> None:
    options = {
        "save_as_external_data": True,
        "location": f"{path.name}.data",
        "size_threshold": 128,
    }
    onnx.save_model(model, path, **(options if external else {}))


def genai(b: Bundle) -> dict:
    decoder = {
        "filename": "model.onnx", "head_size": b.D, "hidden_size": b.C, "num_attention_heads": b.H,
        "num_hidden_layers": b.L, "num_key_value_heads": b.K,
    }  # fmt: skip
    return {"model": {"type": b.family, "context_length": b.P, "eos_token_id": [256],
                      "vocab_size": b.V, "decoder": decoder}}  # fmt: skip


def write(folder: Path, b: Bundle) -> dict[str, np.ndarray]:
    """The bundle's files in a folder that is made; its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    writer, info = Writer(b), helper.make_tensor_value_info
    ids = info("input_ids", TensorProto.INT64, ["b", "t"])
    x, table = writer.embed()
    writer.decoder(x, table)
    inputs = [ids, info("attention_mask", TensorProto.INT64, ["b", "n"])]
    if b.attention == "rotated":
        inputs.append(info("position_ids", TensorProto.INT64, ["b", "t"]))
    outputs = [info("logits", writer.kind(), ["b", "t", b.V])]
    for i in range(b.L):
        for name in ("key", "value"):
            cache = writer.kind(), ["b", b.K, None, b.D]
            inputs.append(info(f"past_key_values.{i}.{name}", *cache))
            outputs.append(info(f"present.{i}.{name}", *cache))
    save(writer.model(inputs, outputs), folder / "model.onnx", b.external)
    (folder / "tokenizer.json").write_text(byte_level(b.V).json)
    (folder / "genai_config.json").write_text(json.dumps(genai(b)))
    return writer.weights


def edit(path: Path, change) -> None:
    """Change the graph in a file, `change(model)`; the tensors beside it stay where they are."""
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


class Runtime:
    """A bundle in onnxruntime, on one thread: tokens in, logits (n, V) out, the cache kept."""

    def __init__(self, folder: Path, head_dim: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", options)
        self.head_dim, self.inputs = head_dim, self.session.get_inputs()
        self.reset()

    def reset(self) -> None:
        types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.count, self.past = 0, {}
        for value in self.inputs:
            if value.name.startswith("past"):
                shape = 1, value.shape[1], 0, self.head_dim
                self.past[value.name] = np.zeros(shape, types[value.type])

    def logits(self, token_ids: list[int]) -> np.ndarray:
        ids, past = np.array([token_ids]), self.count
        self.count += len(token_ids)
        feed = {"input_ids": ids, "attention_mask": np.ones((1, self.count), np.int64),
                "position_ids": np.arange(past, self.count)[None], **self.past}  # fmt: skip
        wanted = {value.name for value in self.inputs}
        found = self.session.run(None, {k: v for k, v in feed.items() if k in wanted})
        named = dict(zip((o.name for o in self.session.get_outputs()), found, strict=True))
        self.past = {name: named[name.replace("past_key_values", "present")] for name in self.past}
        return named["logits"][0].astype(np.float32)

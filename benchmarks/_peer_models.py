"""The models that `decode.py` measures, written once in the form of each engine.

    FOLDER/MODEL/source        config.json and fp16 safetensors, which the others are made from
                 bundle-FORM   this library's
                 FORM.gguf     llama.cpp's; without a vocabulary, since engines are given token ids
                 genai-FORM    ONNX Runtime GenAI's

SmolLM2-135M has its own weights. The two larger models have random ones, which take as long.
"""

from dataclasses import dataclass
import json
from pathlib import Path
import shutil
import subprocess
import sys
import time

from _common import weights_file
import ane_book
from ane_book.models import DecoderConfig, read_config
from ane_book.reference import find_reference
from ane_book.weights import open_source
from ane_book.weights.random import RandomSource
import numpy as np
from safetensors.torch import save_file
import torch

CONTEXT = 4096


@dataclass(frozen=True)
class Model:
    """A model, and how much of it is measured.

    fields: of its config.json. rounds: by the tokens of a prompt. tokens: to decode after each
    prompt, which then is the context. passes: bits of the weights of the engines that take turns,
    all of which are in memory at once. leaves: names of engines that it leaves out, which take
    minutes to convert it.
    """

    fields: dict
    rounds: dict[int, int]
    tokens: int
    passes: tuple[tuple[int, ...], ...] = ((32, 16, 8, 4),)
    leaves: tuple[str, ...] = ()


SMOLLM2_1_7B = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 130000.0, "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
MODELS = {
    "smollm2-135m": Model(
        find_reference("smollm2-135m-instruct").config,
        {16: 5, 128: 5, 256: 5, 1024: 2, 2048: 2, 4000: 1},
        32,
    ),
    "qwen2.5-0.5b": Model(
        find_reference("qwen2.5-0.5b-instruct").config,
        {16: 3, 256: 3, 2048: 1},  # eager attention over 4,000 tokens takes 19 GB
        16,
        leaves=("executor lut4",),
    ),
    "smollm2-1.7b": Model(
        SMOLLM2_1_7B, {16: 3, 256: 2}, 8, ((16,), (8,), (4,)), ("executor lut4",)
    ),
}


def prepare(folder: Path, model: str, library: str, form: str = "") -> Path:
    """The model in a library's form, which is written if it is not there yet."""
    made = folder / model / NAMES[library].format(form)
    if made.exists():
        return made
    print(f"{model}: writing {made.name} ...", end=" ", flush=True)
    start, partial = time.perf_counter(), made.with_name(f"partial-{made.name}")
    made.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    WRITERS[library](folder, model, form, partial)
    partial.rename(made)  # so what was written in part is never measured
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    return made


def _source(folder: Path, model: str, form: str, out: Path) -> None:
    """A folder as Hugging Face has them, weights in fp16."""
    own = model == "smollm2-135m"
    source = open_source(weights_file()) if own else RandomSource(MODELS[model].fields)
    tensors = {name: torch.from_numpy(source.tensor(name)).half() for name in source.names()}
    out.mkdir()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    named = {"architectures": [ARCHITECTURES[source.config()["model_type"]]], "dtype": "float16"}
    (out / "config.json").write_text(json.dumps(source.config() | named))
    (out / "tokenizer.json").write_text(source.tokenizer().json)
    (out / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def _bundle(folder: Path, model: str, form: str, out: Path) -> None:
    """A bundle; its form is the option `quant`."""
    source = prepare(folder, model, "source")
    ane_book.convert(str(source), out, quant=form, context=CONTEXT)


def _genai(folder: Path, model: str, form: str, out: Path) -> None:
    """What the builder of ONNX Runtime GenAI writes; prompts get the last token's logits only."""
    source = prepare(folder, model, "source")
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", form, "-e", "cpu"]
    command += ["-i", str(source), "-o", str(out), "-c", str(folder / "cache")]
    command += ["--extra_options", "prune_lm_head=true"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)


def _gguf(folder: Path, model: str, form: str, out: Path) -> None:
    """F16 as llama.cpp's converter writes it, and other forms by llama.cpp's own quantiser."""
    if form == "F16":
        _write_f16(folder, model, out)
        return
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form}")
    full = prepare(folder, model, "llama", "F16")
    if llama_cpp.llama_model_quantize(str(full).encode(), str(out).encode(), options):
        raise RuntimeError(f"llama.cpp could not quantise {full} to {form}")


def _write_f16(folder: Path, model: str, out: Path) -> None:
    """Matrices in fp16, norms and biases in float32; rows of a Llama's q and k in its own order."""
    import gguf

    source = open_source(prepare(folder, model, "source"))
    config = read_config(source.config())
    family = config.architecture
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_layers)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    writer = gguf.GGUFWriter(out, family)
    for name in source.names():
        array, part = source.tensor(name), name.split(".")[-2]
        if family == "llama" and part in heads:
            rows = array.reshape(heads[part], 2, -1, array.shape[1])
            array = rows.swapaxes(1, 2).reshape(array.shape)
        array = array.astype(np.float16) if array.ndim > 1 else array
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), array)
    _add_fields(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_fields(writer, config: DecoderConfig) -> None:
    """What llama.cpp must know of a model whose vocabulary the file does not have."""
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")


NAMES = {
    "source": "source", "transformers": "source", "executor": "bundle-{}", "llama": "{}.gguf",
    "genai": "genai-{}",
}  # fmt: skip
WRITERS = {
    "source": _source, "transformers": _source, "executor": _bundle, "llama": _gguf,
    "genai": _genai,
}  # fmt: skip

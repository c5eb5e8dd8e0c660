"""One engine in a process of its own, for `decode.py`: `python _peers.py ENGINE FORM FILE THREADS`.

For each line {"ids": [...], "new": n} it reads the prompt anew, decodes n tokens greedily, and
answers with seconds, tokens and the most memory so far. A process imports its own engine alone.
"""

import json
import os
from pathlib import Path
import re
import sys
import time


class Executor:
    """This library's executor. form: what the weights are stored as, or fp32 for fp16 weights that
    are computed with in float32."""

    def __init__(self, file: Path, form: str, threads: int, context: int):
        import torch

        torch.set_num_threads(threads)
        from ane_book.runtime import Session

        self.session = Session(file, "fp32" if form == "fp32" else "fp16")
        self.bytes = sum(weights.stat().st_size for weights in file.rglob("weight*.bin"))
        self.cache_width = 4 if form == "fp32" else 2

    def prefill(self, ids: list[int]) -> int:
        self.session.reset()
        return int(self.session.prefill(ids).argmax())

    def decode(self, token: int) -> int:
        return int(self.session.decode(token).argmax())


class Transformers:
    """`transformers` in float32, not compiled, with its own growing cache."""

    cache_width = 4

    def __init__(self, file: Path, form: str, threads: int, context: int):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.mode = torch.inference_mode()
        self.mode.__enter__()  # until this object is gone
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(file, dtype=torch.float32).eval()
        self.bytes = sum(weights.nbytes for weights in self.model.parameters())  # tied ones once

    def prefill(self, ids: list[int]) -> int:
        output = self.model(self.torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        self.cache = output.past_key_values
        return int(output.logits[0, -1].argmax())

    def decode(self, token: int) -> int:
        given = self.torch.tensor([[token]])
        output = self.model(given, past_key_values=self.cache, use_cache=True)
        return int(output.logits[0, -1].argmax())


class Llama:
    """llama.cpp by the functions of its own that `llama-cpp-python` has, with its defaults."""

    cache_width = 2

    def __init__(self, file: Path, form: str, threads: int, context: int):
        import llama_cpp
        import numpy as np

        self.library, self.argmax = llama_cpp, np.argmax
        self.as_array = np.ctypeslib.as_array
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        self.model = llama_cpp.llama_model_load_from_file(
            str(file).encode(), llama_cpp.llama_model_default_params()
        )
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = context, threads, threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.batch = options.n_batch
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.rows = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.bytes = llama_cpp.llama_model_size(self.model)

    def prefill(self, ids: list[int]) -> int:
        memory = self.library.llama_get_memory(self.context)
        self.library.llama_memory_clear(memory, False)
        for start in range(0, len(ids), self.batch):
            token = self._append(ids[start : start + self.batch])
        return token

    def decode(self, token: int) -> int:
        return self._append([token])

    def _append(self, ids: list[int]) -> int:
        tokens = (self.library.llama_token * len(ids))(*ids)
        batch = self.library.llama_batch_get_one(tokens, len(ids))
        if failed := self.library.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode of {len(ids)} tokens returned {failed}")
        logits = self.library.llama_get_logits_ith(self.context, -1)
        return int(self.argmax(self.as_array(logits, (self.rows,))))


class GenAI:
    """ONNX Runtime GenAI over the model that its own builder makes."""

    cache_width = 4

    def __init__(self, file: Path, form: str, threads: int, context: int):
        import onnxruntime_genai as genai

        config = genai.Config(str(file))
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self.genai, self.model, self.context = genai, genai.Model(config), context
        self.bytes = (file / "model.onnx.data").stat().st_size

    def prefill(self, ids: list[int]) -> int:
        self.generator = None  # its cache goes before another comes
        parameters = self.genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=self.context, do_sample=False)
        self.generator = self.genai.Generator(self.model, parameters)
        self.generator.append_tokens(ids)
        return self.decode(ids[-1])

    def decode(self, token: int) -> int:
        """The next token after its own last one, which is what greedy decoding would pass."""
        self.generator.generate_next_token()
        return int(self.generator.get_next_tokens()[0])


ENGINES = {"executor": Executor, "transformers": Transformers, "llama": Llama, "genai": GenAI}


def answer(engine, ids: list[int], new: int) -> dict:
    """Read a prompt and decode: seconds of both, and the tokens, the first of them the prompt's."""
    start = time.perf_counter()
    tokens = [engine.prefill(ids)]
    read = time.perf_counter()
    for _ in range(new):
        tokens.append(engine.decode(tokens[-1]))
    done = time.perf_counter()
    return {
        "prefill_s": read - start,
        "decode_s": done - read,
        "tokens": tokens,
        "peak_bytes": peak(),
    }


def peak() -> int:
    """The most resident bytes of this process, pages of mapped files included (Linux)."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) * 1024


def main(name: str, form: str, file: str, threads: str, context: str) -> None:
    """Answer until the input ends. Libraries that print do so on the standard error."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        engine = ENGINES[name](Path(file), form, int(threads), int(context))
        about = {"bytes": engine.bytes, "cache_width": engine.cache_width}
        for line in sys.stdin:
            print(json.dumps(about | answer(engine, **json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The executor beside transformers, llama.cpp and ONNX Runtime GenAI: speed and memory.

    python benchmarks/decode.py --prepare                        write the models
    python benchmarks/decode.py                                  measure all
    python benchmarks/decode.py --models smollm2-135m --rounds 1

The same weights, the same threads, and token ids for a prompt. Each engine is in a process of its
own and they take turns, so that whatever slows the machine slows all; medians. Absolute figures
depend on the machine and on who else uses it: read the ratios. None of it is about an ANE.

llama.cpp takes part where `llama-cpp-python` and `gguf` are installed, ONNX Runtime GenAI where
`onnxruntime-genai` and `onnx-ir` are. The record is research/measurements/decode.json, in which
each processor has a row.
"""

import argparse
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
import json
from pathlib import Path
from statistics import median
import subprocess
import sys
import tempfile
import time

from _common import as_installed, record
import _peer_models
from _peer_models import CONTEXT, MODELS
from ane_book.models import DecoderConfig, find, read_config
from ane_book_pages import roofline
import numpy as np
import torch

GREEDY = 24  # tokens that are compared
MAIN = 256  # the prompt of the table that pages show


@dataclass(frozen=True)
class Engine:
    """Who computes, with weights of which form and of how many bits. name: in the record."""

    name: str
    library: str
    form: str
    bits: int


ENGINES = [
    Engine("transformers eager fp32", "transformers", "eager", 32),
    Engine("ONNX Runtime GenAI fp32", "genai", "fp32", 32),
    Engine("executor fp32", "executor", "fp32", 32),
    Engine("executor fp16", "executor", "fp16", 16),
    Engine("llama.cpp F16", "llama", "F16", 16),
    Engine("executor int8", "executor", "int8", 8),
    Engine("llama.cpp Q8_0", "llama", "Q8_0", 8),
    Engine("executor int4", "executor", "int4", 4),
    Engine("executor lut4", "executor", "lut4", 4),
    Engine("llama.cpp Q4_0", "llama", "Q4_0", 4),
    Engine("ONNX Runtime GenAI int4", "genai", "int4", 4),
]

#: Modules that an engine takes.
NEEDS = {
    "executor": [], "transformers": ["transformers"], "llama": ["llama_cpp", "gguf"],
    "genai": ["onnxruntime_genai", "onnx_ir"],
}  # fmt: skip


class Child:
    """An engine's process."""

    def __init__(self, engine: Engine, file: Path, threads: int):
        given = [engine.library, engine.form, str(file), str(threads), str(CONTEXT)]
        quiet = {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
        self.engine, self.started = engine, time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_peers.py")), *given],
            env=as_installed() | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.found: dict[int, list[dict]] = {}  # answers by the tokens of the prompt

    def ask(self, ids: list[int], new: int) -> dict | None:
        """Read a prompt and decode so many tokens; None if the process has ended."""
        try:
            print(json.dumps({"ids": ids, "new": new}), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            print(f"{self.engine.name} is left out: its process has ended", flush=True)
            return None

    def close(self) -> None:
        with suppress(BrokenPipeError):  # it has ended
            self.process.stdin.close()
        self.process.wait()


def start(engines: list[Engine], folder: Path, model: str, threads: int, stack) -> list[Child]:
    """The engines' processes, one after another; each has given its first token."""
    found = []
    golden = np.load(folder / model / "bundle-none" / "golden.npz")["tokens"].tolist()
    for engine in engines:
        file = _peer_models.prepare(folder, model, engine.library, stored(engine))
        child = Child(engine, file, threads)
        stack.callback(child.close)
        if (first := child.ask(golden, 0)) is None:
            continue
        child.first_token_s = time.perf_counter() - child.started
        if answer := child.ask(golden, GREEDY):
            child.tokens, child.about = answer["tokens"], first
            found.append(child)
    return found


def stored(engine: Engine) -> str:
    """The form of the file: the executor computes with the same fp16 weights in fp16 and fp32."""
    computed = engine.library == "executor" and engine.bits >= 16
    return "none" if computed else engine.form


def measure(children: list[Child], model: str, rounds: dict[int, int], roofs: list) -> None:
    """Ask all of them in turns; roofs: what the machine can do, measured before each round."""
    for number in range(max(rounds.values())):
        began = time.perf_counter()
        roofs.append(roofline.measure())
        for prompt, most in rounds.items():
            ids = [100 + i % 40_000 for i in range(0, 7 * prompt, 7)]
            for child in children if number < most else []:
                if answer := child.ask(ids, MODELS[model].tokens):
                    child.found.setdefault(prompt, []).append(answer)
        print(f"{model}: round {number + 1} in {time.perf_counter() - began:.0f} s", flush=True)


def run(folder: Path, model: str, engines: list[Engine], prompts: list[int], given) -> dict:
    """What the record has of a model. given: the threads and the most rounds."""
    plan, roofs, done = MODELS[model], [], []
    rounds = {n: min(plan.rounds.get(n, 1), given.rounds) for n in prompts}
    for bits in plan.passes:
        chosen = [engine for engine in engines if engine.bits in bits]
        with ExitStack() as stack:
            children = start(chosen, folder, model, given.threads, stack)
            measure(children, model, rounds, roofs)
        done += children
    config = read_config(plan.fields)
    read = median(found.bandwidth_bytes_s for found in roofs)
    peak = median(found.flops_s for found in roofs)
    rows = {}
    for child in done:
        rows[child.engine.name] = {
            "first_token_s": child.first_token_s,
            "weights_mb": child.about["bytes"] / 1e6,
            "same_tokens": sum(map(int.__eq__, child.tokens[1:], done[0].tokens[1:])),
            "prompts": {n: row(child, n, config, read, peak) for n in child.found},
        }
    return {"read_gb_per_s": read / 1e9, "gflop_per_s": peak / 1e9, "engines": rows}


def row(child: Child, prompt: int, config: DecoderConfig, read: float, peak: float) -> dict:
    """Medians over the rounds, and their shares of what the machine can do."""
    answers = child.found[prompt]
    decoded = len(answers[0]["tokens"]) - 1
    decode = decoded / median(answer["decode_s"] for answer in answers)
    seconds = median(answer["prefill_s"] for answer in answers)
    layers, rows = config.num_layers, prompt + decoded / 2
    values = 2 * layers * config.num_kv_heads * config.head_dim * rows
    step = child.about["bytes"] + values * child.about["cache_width"]
    return {
        "decode_tps": decode,
        "read_share": decode * step / read,
        "prefill_tps": prompt / seconds,
        "flop_share": operations(config, prompt) / seconds / peak,
        "peak_mb": answers[0]["peak_bytes"] / 1e6,  # prompts grow in a round
    }


def operations(config: DecoderConfig, tokens: int) -> int:
    """Of a prompt: products of all tokens with the layers and of the last with the head, and
    attention of each token to those up to it. A multiplication and an addition are two."""
    shapes = find(config.architecture).tensors(config)
    layers = sum(int(np.prod(s)) for n, s in shapes.items() if ".layers." in n and len(s) == 2)
    pairs = tokens * (tokens + 1) // 2
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * pairs
    return 2 * (tokens * layers + config.vocab_size * config.hidden_size + attention)


def report(model: str, found: dict) -> None:
    """Print the table of a model."""
    print(f"{model}: reads {found['read_gb_per_s']:.1f} GB/s, {found['gflop_per_s']:.0f} GFLOP/s")
    print(f"{'':28}{'prompt':>7}{'decode/s':>9}{'share':>6}{'prefill/s':>10}{'share':>6}{'MB':>6}")
    for name, engine in found["engines"].items():
        print(f"{name:28}first token {engine['first_token_s']:.2f} s,", end=" ")
        print(f"{engine['same_tokens']} of {GREEDY} tokens the same")
        for prompt, one in engine["prompts"].items():
            print(
                f"{prompt:35}{one['decode_tps']:9.1f}{one['read_share']:6.0%}"
                f"{one['prefill_tps']:10.0f}{one['flop_share']:6.0%}{one['peak_mb']:6.0f}"
            )


def results(found: dict) -> dict:
    """The engines at a prompt of 256 tokens, as ratios to the first of them, too."""
    rows = {n: e["prompts"][MAIN] for n, e in found["engines"].items() if MAIN in e["prompts"]}
    base = next(iter(rows.values()), {})
    for name, one in rows.items():
        rows[name] = {"first_token_s": found["engines"][name]["first_token_s"], **one}
        for kind in ("decode", "prefill"):
            rows[name][f"{kind}_ratio"] = one[f"{kind}_tps"] / base[f"{kind}_tps"]
    return rows


def versions() -> dict[str, str]:
    """Of the engines that are installed, and for which instructions llama.cpp was built."""
    names = {"transformers": "transformers", "llama_cpp": "llama-cpp-python",
             "onnxruntime_genai": "onnxruntime-genai"}  # fmt: skip
    found = {name: version(name) for module, name in names.items() if find_spec(module)}
    if find_spec("llama_cpp"):
        from llama_cpp import llama_print_system_info

        found["llama.cpp's build"] = llama_print_system_info().decode().strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=[], help="only names with these words")
    parser.add_argument("--prompts", nargs="+", type=int, help="only these lengths")
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--threads", type=int, default=2)
    usual = Path(tempfile.gettempdir(), "ane-book-models")
    parser.add_argument("--folder", type=Path, default=usual, help="where models are written")
    parser.add_argument("--prepare", action="store_true", help="write the models only")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    engines = [e for e in ENGINES if all(map(find_spec, NEEDS[e.library]))]
    words = given.engines or [""]
    engines = [e for e in engines if any(word in e.name for word in words)]
    models = {}
    for model in given.models:
        mine = [e for e in engines if e.name not in MODELS[model].leaves]
        for engine in mine:
            if any(engine.bits in bits for bits in MODELS[model].passes):
                _peer_models.prepare(given.folder, model, engine.library, stored(engine))
        if not given.prepare:
            prompts = given.prompts or list(MODELS[model].rounds)
            found = run(given.folder, model, mine, prompts, given)
            report(model, found)
            models[model] = found
            first = next(iter(models.values()))
            parts = {"versions": versions(), "results": results(first), "models": models}
            record("decode", parts, by_processor=True)


if __name__ == "__main__":
    main()

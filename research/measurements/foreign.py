"""Decode speed of programs that other converters make, over ours: ratios of one run.

Six layers of SmolLM2-135M's sizes with random weights, written as each converter writes them
(`tests/conversion/foreign/_foreign_decoders.py`), and by this library; one thread, its processor's
time, steps interleaved, medians. A step takes one token, or a chunk of them, after 100 others, in a
cache of 512.
"""

from collections.abc import Callable
import os
from pathlib import Path
from statistics import median
import sys
from tempfile import TemporaryDirectory
import time

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "tests", "tests/conversion/foreign")]

from _common import record
from _foreign import exported, halved, package
from _foreign_decoders import ChannelDecoder, Decoder, SlotCache, StatefulLlama
from _foreign_llama import causal
from _tiny import write_checkpoint
import ane_book
from ane_book.layout import Form
import coremltools as ct
from mlprogram import MLProgram
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SLOTS, SEEN, ROUNDS = 512, 100, 40
SIZES = dict(
    vocab_size=257, hidden_size=576, intermediate_size=1536, num_hidden_layers=6,
    num_attention_heads=9, num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
)  # fmt: skip
CHANNELS = SIZES["hidden_size"]


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**SIZES))
    with torch.no_grad():
        for name, value in made.named_parameters():
            if "norm" in name:  # all ones would be folded away
                value.add_(torch.randn_like(value) * 0.2)
    return halved(made)


def half(name: str | None, *shape) -> ct.TensorType:
    return ct.TensorType(name, shape, dtype=np.float16)


def ours(folder: Path, form: Form = "rows") -> dict[int, MLProgram]:
    """The layers of this library's bundle, by tokens."""
    source = write_checkpoint(model(), folder / f"source-{form}")
    bundle = ane_book.convert(str(source), out=folder / form, context=SLOTS, form=form)
    shard = MLProgram(next(path for path in bundle.path.glob("*layers*.mlpackage")))
    return {1: shard.function("decode"), 64: shard.function("prefill")}


def anemll(folder: Path, tokens: int) -> MLProgram:
    decoder = Decoder(model(), SLOTS)
    example = (
        torch.zeros(1, tokens, CHANNELS), torch.zeros(tokens, dtype=torch.int32),
        torch.zeros(1, 1, tokens, SLOTS), torch.zeros(1, dtype=torch.int32),
    )  # fmt: skip
    inputs = [
        half("hidden_states", 1, tokens, CHANNELS),
        ct.TensorType("position_ids", (tokens,), dtype=np.int32),
        half("causal_mask", 1, 1, tokens, SLOTS),
        ct.TensorType("current_pos", (1,), dtype=np.int32),
    ]
    states = [ct.StateType(half(None, *decoder.kv_cache_0.shape), name="kv_cache_0")]
    path = folder / f"anemll{tokens}.mlpackage"
    outputs = [ct.TensorType("y", dtype=np.float16)]
    return MLProgram(package(decoder, path, example, inputs=inputs, states=states, outputs=outputs))


def channels_first(folder: Path, tokens: int) -> MLProgram:
    decoder = ChannelDecoder(model(), SLOTS)
    states = [
        ct.StateType(half(None, *decoder.key_cache.shape), name=name)
        for name in ("key_cache", "value_cache")
    ]
    inputs = [
        half("hidden", 1, CHANNELS, 1, tokens),
        ct.TensorType("position", (1,), dtype=np.int32),
    ]
    example = torch.zeros(1, CHANNELS, 1, tokens), torch.zeros(1, dtype=torch.int32)
    path = folder / f"channels{tokens}.mlpackage"
    outputs = [ct.TensorType("y", dtype=np.float16)]
    return MLProgram(package(decoder, path, example, inputs=inputs, states=states, outputs=outputs))


def recipe(folder: Path, fused: bool) -> MLProgram:
    decoder = StatefulLlama(model(), SLOTS, fused)
    query, end = (ct.RangeDim(1, SLOTS, default=1) for _ in range(2))
    states = [
        ct.StateType(half(None, *decoder.keyCache.shape), name=name)
        for name in ("keyCache", "valueCache")
    ]
    inputs = [
        ct.TensorType("inputIds", (1, query), dtype=np.int32),
        ct.TensorType("causalMask", (1, 1, query, end), dtype=np.float16),
    ]
    example = torch.zeros((1, 2), dtype=torch.int32), torch.zeros((1, 1, 2, 5))
    path = folder / f"recipe{fused:d}.mlpackage"
    outputs = [ct.TensorType("logits", dtype=np.float16)]
    return MLProgram(package(decoder, path, example, inputs=inputs, states=states, outputs=outputs))


def slots(folder: Path) -> MLProgram:
    example = torch.zeros((1, 1), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    return MLProgram(exported(SlotCache(model(), SLOTS), folder / "slots.mlpackage", example))


def inputs_of(program: MLProgram, tokens: int) -> dict[str, np.ndarray]:
    """One step's inputs, after SEEN others, by what the forms call them."""
    places = np.arange(SEEN, SEEN + tokens, dtype=np.int32)
    known = {
        "position_ids": places, "current_pos": places[:1], "position": places[:1],
        "pos": places[:1], "ids": np.full((1, tokens), 7, np.int32),
        "inputIds": np.full((1, tokens), 7, np.int32),
    }  # fmt: skip
    found = program.random_inputs()
    for name, array in found.items():
        if name in known:
            found[name] = known[name]
        elif name == "causalMask":  # which ends where the cache does
            found[name] = causal(SEEN, tokens, SEEN + tokens, -np.inf)
        elif "mask" in name:  # with keys on its last axis, or on that of channels
            slots = max(array.shape)
            mask = causal(SEEN, tokens, slots, -40000.0)
            found[name] = mask if array.shape[-1] == slots else mask.transpose(0, 3, 1, 2)
    return found


def forms(folder: Path) -> dict[str, tuple[int, Callable[[], MLProgram]]]:
    mine, apples = ours(folder), ours(folder, "apple")
    return {
        "this library, 1 token": (1, lambda: mine[1]),
        "form apple, 1 token": (1, lambda: apples[1]),
        "ANEMLL, 1 token": (1, lambda: anemll(folder, 1)),
        "0seba, 1 token": (1, lambda: channels_first(folder, 1)),
        "Apple's recipe": (1, lambda: recipe(folder, fused=False)),
        "Apple's recipe, SDPA": (1, lambda: recipe(folder, fused=True)),
        "torch.export": (1, lambda: slots(folder)),
        "this library, 64 tokens": (64, lambda: mine[64]),
        "form apple, 64 tokens": (64, lambda: apples[64]),
        "ANEMLL, 64 tokens": (64, lambda: anemll(folder, 64)),
        "0seba, 8 tokens": (8, lambda: channels_first(folder, 8)),
    }


class Runner:
    """A form in one precision, with a state that some tokens have filled."""

    def __init__(self, program: MLProgram, tokens: int, precision: str):
        self.program = MLProgram(program.package, program.name, precision)
        self.inputs = inputs_of(program, tokens)
        self.state = self.program.make_state()
        random = np.random.default_rng(0)
        for name, type_ in self.program.states.items():
            filled = random.standard_normal(type_.shape) * 0.1
            axis = type_.shape.index(SLOTS)
            np.moveaxis(filled, axis, 0)[SEEN:] = 0
            self.state.write_state(name, filled.astype(np.float32))
        self.seconds: list[float] = []

    def step(self) -> None:
        started = time.thread_time()
        self.program.predict(self.inputs, self.state)
        self.seconds.append(time.thread_time() - started)


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        made = {name: (n, make()) for name, (n, make) in forms(Path(folder)).items()}
        runners = {
            (name, precision): Runner(program, tokens, precision)
            for name, (tokens, program) in made.items()
            for precision in ("fp16", "fp32")
        }
        for round_ in range(ROUNDS + 3):
            for runner in runners.values():
                runner.step()
                if round_ < 3:
                    runner.seconds.clear()
    report({key: median(runner.seconds) for key, runner in runners.items()}, made)


def report(seconds: dict[tuple[str, str], float], made: dict) -> None:
    """Print and record ms a step, and tokens a second over those of ours with as many tokens."""
    table = {}
    for (name, precision), time_ in seconds.items():
        tokens = made[name][0]
        base = "this library, 1 token" if tokens == 1 else "this library, 64 tokens"
        speed = (tokens / time_) / (made[base][0] / seconds[base, precision])
        table[f"{name}, {precision}"] = {"ms": time_ * 1000, "ratio": speed}
        print(f"{name:26} {precision}  {time_ * 1000:8.2f} ms  {speed:6.2f}")
    record("foreign", {"rounds": ROUNDS, "results": table})


if __name__ == "__main__":
    main()

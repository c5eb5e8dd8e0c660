"""What a slot of the cache costs: a decode call by the slots it was compiled with and those in use.

    python research/measurements/slots.py [--rounds 15]

Two layers of SmolLM2-135M with random weights, in packages with caches of 128 to 8,192 slots, once
with the cache as a state and once on the host. The executor's attention leaves out slots that are
masked and empty, so each function is opened twice: as it runs (`executor`), and without that kernel
(`graph`), where every score of every slot is computed, as a compiled program does. Calls are taken
in turns, in seconds of the processor, on one thread; the fastest of all rounds counts, since
whatever else a machine does only adds time. Nothing of it is about an engine.

Results go to research/measurements/slots.json.
"""

import argparse
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MODEL, record
from ane_book import MLProgram
from ane_book.bundle import Recipe
from ane_book.conversion.write.decoder import lower_blocks, write_shard
from ane_book.host import causal_mask
from ane_book.models import DecoderConfig, read_config
from ane_book.models.base.decoder import block_weights
from ane_book.options import tier_name
from ane_book.reference import find_reference
from ane_book.weights.random import RandomSource
import numpy as np
import torch

LAYERS, CONTEXTS = 2, (128, 2048, 4096, 8192)
FEW, MANY = 100, 8000  # slots in use
CALLS = 3  # in a row, of which the fastest is taken


def programs(folder: Path) -> tuple[DecoderConfig, dict[tuple[str, int, str], MLProgram]]:
    """The decode functions, by who keeps the cache, slots, and how attention is computed."""
    fields = find_reference(MODEL).config | {"num_hidden_layers": LAYERS, "vocab_size": 64}
    source, config = RandomSource(fields), read_config(fields)
    weights = [block_weights(config, i, source.tensor) for i in range(LAYERS)]
    recipe = {"context": CONTEXTS[-1], "tiers": CONTEXTS[:-1], "prefill": 2}
    lowered = lower_blocks(config, Recipe(**recipe))
    found = {}
    for kv in ("state", "host"):
        path = folder / f"{kv}.mlpackage"
        write_shard(path, config, Recipe(**recipe, kv=kv), lowered, range(LAYERS), weights)
        for slots in CONTEXTS:
            name = tier_name("decode", slots, CONTEXTS[-1])
            found[kv, slots, "graph"] = MLProgram(path, name, without=["attention"])
            found[kv, slots, "executor"] = MLProgram(path, name)
    return config, found


def inputs(config: DecoderConfig, kv: str, slots: int, position: int) -> dict[str, np.ndarray]:
    """What a decode call takes with `position` slots in use; a state is made apart."""
    cos, sin = config.rotary.tables(np.array([position]))
    taken = {"rope_cos": cos, "rope_sin": sin, "mask": causal_mask(position, 1, slots)}
    taken["hidden"] = np.ones((1, config.hidden_size, 1, 1))
    if kv == "host":
        rows = np.zeros((LAYERS, config.num_kv_heads, slots, config.head_dim))
        taken |= {"keys": rows, "values": rows.copy()}
    halves = {name: array.astype(np.float16) for name, array in taken.items()}
    return halves | ({"position": np.array([position], np.int32)} if kv == "state" else {})


def seconds(program: MLProgram, given: dict[str, np.ndarray], state, position: int) -> float:
    """Processor time of one call; the host copies its new rows."""
    start = time.process_time()
    outputs = program.predict(given, state)
    if state is None:
        for name in ("keys", "values"):
            given[name][:, :, position : position + 1] = outputs[f"new_{name}"]
    return time.process_time() - start


def measured(rounds: int) -> dict:
    """Milliseconds of a call: by who keeps the cache, attention, slots, and slots in use."""
    with TemporaryDirectory() as folder:
        config, found = programs(Path(folder))
        runs = {}
        for key, program in found.items():
            kv, slots, _ = key
            for used in (FEW, MANY) if slots == CONTEXTS[-1] else (FEW,):
                state = program.make_state() if kv == "state" else None
                runs[*key, used] = (program, inputs(config, kv, slots, used), state, used)
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(rounds):
            for key, run in runs.items():
                best[key] = min(best[key], *(seconds(*run) for _ in range(CALLS)))
    ms: dict = {}
    for (kv, slots, attention, used), took in best.items():
        of = ms.setdefault(kv, {}).setdefault(attention, {}).setdefault(str(slots), {})
        of[str(used)] = 1e3 * took
    return ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    ms = measured(given.rounds)
    record("slots", {"layers": LAYERS, "rounds": given.rounds, "ms": ms,
                     "on_the_engine": "unmeasured"})  # fmt: skip


if __name__ == "__main__":
    main()

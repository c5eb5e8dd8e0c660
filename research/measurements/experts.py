"""Two ways to lay out a mixture of experts: programs, bytes and calls of a token, time, memory.

    python research/measurements/experts.py [--rounds 9] [--model privacy-filter]

A Privacy Filter and a ZAYA of the true shapes' kind, but small, with random weights, are converted
with every strategy. For a call of one token and of 64 it counts the programs that really ran and
the bytes of their weights; times are taken in turns, and are told as a ratio to `packed` in the
same run. Files and bytes on disk count a file's content once, however often it is there; memory is
what a process of its own grows by while it opens the bundle, without pages of mapped files. What
Core ML makes of it is `unmeasured`: nothing here runs on a Mac.

Results go to research/measurements/experts_two.json. In experts.json are four ways, of November
2026: those that are gone since are a convolution for each expert (`dense`), and experts as
functions of one package (`functions`).
"""

import argparse
from hashlib import file_digest
import json
from pathlib import Path
from statistics import median
import subprocess
import sys
import tempfile
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import record
import ane_book
from ane_book.bundle import Bundle
from ane_book.conversion.plan import plan
from ane_book.reference import find_reference
from ane_book.runtime import Session, Tagger
from ane_book.weights.random import RandomSource
import numpy as np
from safetensors.numpy import save_file

TOKENS = (1, 64)
STRATEGIES = ("packed", "dispatch")
SMALL = {
    "privacy-filter": {
        "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 16,
        "vocab_size": 1024, "sliding_window": 16, "max_position_embeddings": 1024,
    },
    "zaya1-8b": {
        "hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "router_hidden_size": 64, "vocab_size": 1024, "max_position_embeddings": 1024,
    },
}  # fmt: skip
OPEN = """
import json, sys
from ane_book.bundle import Bundle
from ane_book.runtime import Session, Tagger
import mlprogram, torch
def grown():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return 1024 * int(lines["RssAnon"].split()[0])
bundle, before = Bundle.open(sys.argv[1]), grown()
opened = (Session if bundle.manifest.task == "text-generation" else Tagger)(bundle)
print(json.dumps(grown() - before))
"""


def checkpoint(model: str, folder: Path) -> Path:
    """Random weights of a small model of the kind, as Hugging Face has them."""
    config = find_reference(model).config | SMALL[model]
    source = RandomSource(config)
    folder.mkdir()
    tensors = {name: source.tensor(name).astype(np.float16) for name in source.names()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(source.tokenizer().json)
    return folder


def caller(bundle: Bundle):
    """What runs a call of n tokens, and its counts."""
    if bundle.manifest.task == "token-classification":
        tagger = Tagger(bundle)
        return lambda ids: list(tagger.logits(ids)), tagger.calls
    session = Session(bundle)

    def run(ids: np.ndarray) -> None:
        session.reset()
        session.logits(ids)

    return run, session.calls


def counted(bundle: Bundle, run, calls, vocabulary: int) -> dict[str, dict[str, float]]:
    """Programs that a call runs, and their bytes: the mean of eight texts."""
    made, generator, found = plan(bundle.config, bundle.recipe), np.random.default_rng(0), {}
    bytes_of = {program.package: program.bytes for program in made.programs}
    for tokens in TOKENS:
        calls.clear()
        for _ in range(8):
            run(generator.integers(0, vocabulary, tokens))
        read = sum(bytes_of[package] * n for package, n in calls.items())
        found[str(tokens)] = {
            "calls": calls.total() / 8,
            "bytes": read / 8,
            "planned_calls": made.calls(tokens),
            "planned_bytes": made.read_bytes(tokens),
        }
    return found


def on_disk(bundle: Bundle) -> dict[str, int]:
    """Files of all packages, their bytes, and those of contents that are there once."""
    files = [file for file in bundle.path.glob("*.mlpackage/**/*") if file.is_file()]
    contents = {}
    for file in files:
        with file.open("rb") as opened:
            contents[file_digest(opened, "sha256").hexdigest()] = file.stat().st_size
    sizes = [file.stat().st_size for file in files]
    programs = [file.stat().st_size for file in files if file.suffix == ".mlmodel"]
    return {"files": len(files), "bytes": sum(sizes), "distinct_bytes": sum(contents.values()),
            "program_bytes": sum(programs)}  # fmt: skip


def opened(bundle: Bundle) -> dict[str, float | None]:
    """Seconds to open it here, and the memory that a process of its own grows by (Linux)."""
    start = time.perf_counter()
    caller(bundle)
    seconds = time.perf_counter() - start
    if not sys.platform.startswith("linux"):
        return {"seconds": seconds, "memory_bytes": None}
    command = [sys.executable, "-c", OPEN, str(bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"seconds": seconds, "memory_bytes": json.loads(done.stdout)}


def ratios(runs: dict, vocabulary: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of rounds in which every strategy has its turn, over those of `packed`."""
    found = {name: {} for name in runs}
    for tokens in TOKENS:
        times = {name: [] for name in runs}
        ids = np.random.default_rng(1).integers(0, vocabulary, tokens)
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run(ids)
                times[name].append(time.perf_counter() - start)
        middle = {name: median(each) for name, each in times.items()}
        for name in runs:
            found[name][str(tokens)] = middle[name] / middle["packed"]
    return found


def measure(model: str, rounds: int, folder: Path) -> dict:
    """All strategies of one model, by name."""
    weights, rows, runs = checkpoint(model, folder / model), {}, {}
    for strategy in STRATEGIES:
        out = folder / f"{model}-{strategy}"
        bundle = ane_book.convert(str(weights), out, context=128, experts=strategy)
        manifest, vocabulary = bundle.manifest, bundle.manifest.embedding.shape[0]
        runs[strategy], calls = caller(bundle)
        rows[strategy] = {
            "programs": len(manifest.packages),
            "disk": on_disk(bundle),
            "opening": opened(bundle),
            "call": counted(bundle, runs[strategy], calls, vocabulary),
        }
        print(model, strategy, json.dumps(rows[strategy]))
    for strategy, ratio in ratios(runs, vocabulary, rounds).items():
        rows[strategy]["time_over_packed"] = ratio
    return {"config": SMALL[model], "core_ml": "unmeasured", "strategies": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of every strategy")
    parser.add_argument("--model", choices=SMALL, help="that one alone, and nothing is recorded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [options.model] if options.model else list(SMALL)
        models = {name: measure(name, options.rounds, Path(folder)) for name in names}
    if options.model:
        print(json.dumps(models, indent=2))
    else:
        record("experts_two", {"rounds": options.rounds, "tokens": TOKENS, "models": models})


if __name__ == "__main__":
    main()

"""What a call of one token costs: seconds over the bytes that it reads and the operations it runs.

    python research/measurements/terms.py [--rounds 15]

Llamas with random weights, of several widths and depths, are converted in fp16, and one token of
each is timed in turns on the executor. The fastest time of each counts, because other work on the
machine can only add. Width moves the bytes, depth moves both, so that the two prices can be told
apart; the page fits them. SmolLM2-135M is timed beside them and takes no part in the fit.

Results go to research/measurements/terms.json.
"""

import argparse
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
import time

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "tests")]

from _common import bundle, record
from _tiny import tiny_model, write_checkpoint
import ane_book
from ane_book.runtime import Session
from ane_book_pages import roofline
from mlprogram import MLProgram
import numpy as np

SHAPES = [(C, L) for C in (128, 384, 768, 1024) for L in (4, 12, 24)]  # channels, layers


def random_llama(C: int, L: int, folder: Path) -> ane_book.Bundle:
    model = tiny_model(
        "llama",
        hidden_size=C,
        intermediate_size=3 * C,
        num_hidden_layers=L,
        num_attention_heads=C // 64,
        num_key_value_heads=1,
        head_dim=64,
    )
    return ane_book.convert(write_checkpoint(model, folder / "source"), folder / "bundle")


def counts(made: ane_book.Bundle) -> dict[str, int]:
    """Bytes of weights that a token reads, and operations that it runs."""
    packages = sorted(made.path.glob("*.mlpackage"))  # the layers' and the head's
    programs = [MLProgram(package, "decode") for package in packages]
    weights = sum(f.stat().st_size for p in packages for f in p.rglob("weight.bin"))
    return {"bytes": weights, "operations": sum(len(p.operations) for p in programs)}


def seconds_of_a_token(session: Session) -> float:
    session.reset()
    session.prefill([1, 2])
    best = np.inf
    for token in range(3, 11):
        start = time.perf_counter()
        session.decode(token)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with TemporaryDirectory() as folder:
        made = {f"{C}x{L}": random_llama(C, L, Path(folder, f"{C}x{L}")) for C, L in SHAPES}
        made["SmolLM2-135M"] = bundle()
        sessions = {name: Session(b, "fp16") for name, b in made.items()}
        best = dict.fromkeys(sessions, np.inf)
        for _ in range(rounds):
            for name, session in sessions.items():
                best[name] = min(best[name], seconds_of_a_token(session))
        roofs = roofline.measure()
        rows = {n: counts(b) | {"seconds": float(best[n])} for n, b in made.items()}
    for name, row in rows.items():
        print(
            f"{name:14}{row['bytes']:12,} bytes{row['operations']:6} operations"
            f"{row['seconds'] * 1e3:8.2f} ms"
        )
    roof = {"bandwidth_bytes_s": roofs.bandwidth_bytes_s, "flops_s": roofs.flops_s}
    record("terms", {"rounds": rounds, "roofs": roof, "calls": rows})


if __name__ == "__main__":
    main()

"""Decode and prefill speed of the executor over `transformers` eager fp32: ratios of one run.

Same weights (SmolLM2-135M-Instruct), same threads, interleaved, median of 5. Absolute figures
depend on the machine, and on who else uses it; the ratio is what to read. None of it says anything
about an ANE.
"""

from statistics import median
import time

from _common import bundle, record, reference_model
from ane_book.runtime import Session
import numpy as np
import torch

PROMPT, NEW_TOKENS, ROUNDS, PREFILL = 40, 64, 5, 256


class Transformers:
    """`transformers` eager, float32, with its own cache."""

    def __init__(self):
        self.model = reference_model()

    def prefill(self, ids: list[int]) -> int:
        output = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        self.cache = output.past_key_values
        return int(output.logits[0, -1].argmax())

    def decode(self, token: int) -> int:
        output = self.model(torch.tensor([[token]]), past_key_values=self.cache, use_cache=True)
        return int(output.logits[0, -1].argmax())


class Executor:
    """This library's executor, over a bundle."""

    def __init__(self, **options):
        recipe = {key: options.pop(key) for key in ("kv", "quant") if key in options}
        self.session = Session(bundle(**recipe), **options)

    def prefill(self, ids: list[int]) -> int:
        self.session.reset()
        return int(self.session.prefill(ids).argmax())

    def decode(self, token: int) -> int:
        return int(self.session.decode(token).argmax())


def measure(runner) -> tuple[float, float]:
    """(decode, prefill) in tokens per second."""
    token = runner.prefill(list(range(100, 100 + PROMPT)))
    start = time.perf_counter()
    for _ in range(NEW_TOKENS):
        token = runner.decode(token)
    decode = NEW_TOKENS / (time.perf_counter() - start)
    start = time.perf_counter()
    runner.prefill(list(range(1000, 1000 + PREFILL)))
    return decode, PREFILL / (time.perf_counter() - start)


def bandwidth() -> float:
    """GB/s of reading 1 GB of float32 once, the floor under every decode step."""
    data = torch.ones(1 << 28)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        seconds.append(time.perf_counter() - start)
    return data.nbytes / 1e9 / median(seconds)


def main() -> None:
    runners = {
        "transformers eager fp32": Transformers(),
        "executor fp32, state": Executor(precision="fp32"),
        "executor fp32, host": Executor(precision="fp32", kv="host"),
        "executor fp16, state": Executor(precision="fp16"),
        "executor int8": Executor(precision="fp16", quant="int8"),
        "executor lut4": Executor(precision="fp16", quant="lut4"),
    }
    rates = {name: [] for name in runners}
    with torch.inference_mode():
        for runner in runners.values():
            measure(runner)  # warm up
        for _ in range(ROUNDS):
            for name, runner in runners.items():
                rates[name].append(measure(runner))
    read = bandwidth()
    results = {n: [float(median(v)) for v in np.array(r).T] for n, r in rates.items()}
    base = results["transformers eager fp32"]
    print(f"{torch.get_num_threads()} threads, reads {read:.1f} GB/s")
    print(f"{'':26}{'decode/s':>9}{'ratio':>7}{'prefill/s':>11}{'ratio':>7}")
    table = {}
    for name, (decode, prefill) in results.items():
        table[name] = {
            "decode_tps": decode,
            "decode_ratio": decode / base[0],
            "prefill_tps": prefill,
            "prefill_ratio": prefill / base[1],
        }
        print(
            f"{name:26}{decode:9.1f}{decode / base[0]:7.2f}{prefill:11.0f}{prefill / base[1]:7.2f}"
        )
    record("decode", {"read_gb_per_s": read, "rounds": ROUNDS, "results": table})


if __name__ == "__main__":
    main()

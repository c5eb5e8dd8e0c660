"""Decode and prefill by instruction set: what compiled kernels gain over torch alone.

One process for each setting, all on the same weights (SmolLM2-135M-Instruct), in turns; medians. A
setting is what torch may use and what the kernels are made for. Torch is held to an instruction set
as if the machine had no more; kernels for less than torch has are what an old compiler makes. The
ratio is over the executor without a compiler and the same torch.

    python research/measurements/instruction_sets.py                 all forms of weights
    python research/measurements/instruction_sets.py fp16 int8       some
"""

from contextlib import ExitStack
import os
from pathlib import Path
import platform
from statistics import median
import subprocess
import sys
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.runtime import Session
from mlprogram.kernels import native
import torch

PROMPT, NEW_TOKENS, ROUNDS, PREFILL = 40, 24, 5, 256

FORMS = {
    "fp16": {"precision": "fp16"},
    "fp32": {"precision": "fp32"},
    "int8": {"precision": "fp16", "quant": "int8"},
    "lut4": {"precision": "fp16", "quant": "lut4"},
}

#: What torch is held to, from the least, and how; and how compilers call that.
LIMITS = {
    "DEFAULT": ("default", "SSE4_2", "SSE41", "x86-64"),
    "AVX2": ("avx2", "AVX2", "AVX2", "x86-64-v3"),
    "AVX512": ("", "", "", "x86-64-v4"),
}
LIMITERS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


def settings() -> dict[tuple[str, str], dict[str, str]]:
    """(torch's instructions, the kernels') -> environment, as far as this processor goes."""
    names, found = list(LIMITS), torch.backends.cpu.get_cpu_capability()
    if platform.machine() not in ("x86_64", "AMD64"):
        return {(found, "native"): {}, (found, "none"): {"CC": "false"}}
    result = {}
    for held in reversed(names[: names.index(found) + 1]):
        *values, _ = LIMITS[held]
        limit = {key: value for key, value in zip(LIMITERS, values, strict=True) if value}
        for made in reversed(names[: names.index(held) + 1]):
            result[held, LIMITS[made][-1]] = limit | {"CC": f"cc -march={LIMITS[made][-1]}"}
        result[held, "none"] = limit | {"CC": "false"}
    return result


def work(form: str) -> None:
    """A process of one setting: says what it is, then measures at each line that it is sent."""
    options = dict(FORMS[form])
    recipe = {key: options.pop(key) for key in ("quant",) if key in options}
    session = Session(bundle(**recipe), **options)
    with torch.inference_mode():
        measure(session)
        print(native.status()[1], flush=True)
        for _ in sys.stdin:
            print(*measure(session), flush=True)


def measure(session: Session) -> tuple[float, float]:
    """(decode, prefill) in tokens per second."""
    session.reset()
    token = int(session.prefill(list(range(100, 100 + PROMPT))).argmax())
    start = time.perf_counter()
    for _ in range(NEW_TOKENS):
        token = int(session.decode(token).argmax())
    decode = NEW_TOKENS / (time.perf_counter() - start)
    session.reset()
    start = time.perf_counter()
    session.prefill(list(range(1000, 1000 + PREFILL)))
    return decode, PREFILL / (time.perf_counter() - start)


def compare(form: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Medians of decode and prefill by setting."""
    rates = {key: [] for key in settings()}
    with ExitStack() as stack:
        workers = {}
        for key, environment in settings().items():
            workers[key] = worker = subprocess.Popen(
                [sys.executable, __file__, "--worker", form],
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(worker)
            stack.callback(worker.stdin.close)
            print(f"{form:6}{key[0]:9}{key[1]:11}{worker.stdout.readline().strip()}", flush=True)
        for _ in range(ROUNDS):
            for key, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                rates[key].append([float(word) for word in worker.stdout.readline().split()])
    return {key: tuple(map(median, zip(*found, strict=True))) for key, found in rates.items()}


def main(forms: list[str]) -> None:
    table = []
    for form in forms or FORMS:
        medians = compare(form)
        print(
            f"{'':6}{'torch':9}{'kernels':11}{'decode/s':>9}{'ratio':>7}{'prefill/s':>11}{'ratio':>7}"
        )
        for (held, made), (decode, prefill) in medians.items():
            base = medians[held, "none"]
            row = {
                "form": form,
                "torch": held,
                "kernels": made,
                "decode_tps": decode,
                "decode_ratio": decode / base[0],
                "prefill_tps": prefill,
                "prefill_ratio": prefill / base[1],
            }
            table.append(row)
            print("{:6}{:9}{:11}{:9.1f}{:7.2f}{:11.0f}{:7.2f}".format(*row.values()), flush=True)
    record("instruction_sets", {"rounds": ROUNDS, "results": table})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main(sys.argv[1:])

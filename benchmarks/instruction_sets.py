"""Decode and prefill by instruction set: kernels made for AVX-512, AVX2, plain x86-64, and torch.

One process for each, all on the same weights (SmolLM2-135M-Instruct), in turns; median of 5 turns,
as ratios to the executor without a compiler, whose products and small ops are torch's. Torch uses
all instructions of the machine throughout, whatever the kernels are made for: on a machine that
really has no more than AVX2, its ratios are lower and the kernels' higher.

    python benchmarks/instruction_sets.py                 all forms of weights
    python benchmarks/instruction_sets.py "int8"          some
"""

from contextlib import ExitStack
import os
from statistics import median
import subprocess
import sys
import time

from _common import bundle, record
from ane_book.mil import native
from ane_book.runtime import Session
import torch

PROMPT, NEW_TOKENS, ROUNDS, PREFILL = 40, 24, 5, 256

FORMS = {
    "fp16": {"precision": "fp16"},
    "fp32": {"precision": "fp32"},
    "int8": {"precision": "fp16", "quant": "int8"},
    "lut4": {"precision": "fp16", "quant": "lut4"},
}

#: What torch says that the processor has -> the targets that it can run, best first.
TARGETS = {
    "AVX512": ("native", "x86-64-v3", "x86-64"),
    "AVX2": ("native", "x86-64"),
}


def work(form: str) -> None:
    """A process of one setting: says what it is, then measures at each line that it is sent."""
    options = dict(FORMS[form])
    recipe = {key: options.pop(key) for key in ("quant",) if key in options}
    session = Session(bundle(**recipe), **options)
    with torch.inference_mode():
        measure(session)
        print(native.instruction_set() or "no compiler", flush=True)
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


def compare(form: str) -> dict[str, tuple[float, float]]:
    """Medians of decode and prefill by setting."""
    targets = TARGETS.get(torch.backends.cpu.get_cpu_capability(), ("native",))
    commands = [f"cc -march={target}" for target in targets if target != "native"]
    commands = ["", *commands, "false"] if "native" in targets else [*commands, "false"]
    rates = {}
    with ExitStack() as stack:
        workers = []
        for command in commands:
            worker = subprocess.Popen(
                [sys.executable, __file__, "--worker", form],
                env=os.environ | {"CC": command},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(worker)
            stack.callback(worker.stdin.close)
            workers.append((worker.stdout.readline().strip(), worker))
        for _ in range(ROUNDS):
            for name, worker in workers:
                worker.stdin.write("\n")
                worker.stdin.flush()
                figures = [float(word) for word in worker.stdout.readline().split()]
                rates.setdefault(name, []).append(figures)
    return {name: tuple(map(median, zip(*found, strict=True))) for name, found in rates.items()}


def main(forms: list[str]) -> None:
    table = {}
    print(f"{'':6}{'':14}{'decode/s':>9}{'ratio':>7}{'prefill/s':>11}{'ratio':>7}")
    for form in forms or FORMS:
        medians = compare(form)
        base = medians["no compiler"]
        for name, (decode, prefill) in medians.items():
            ratios = decode / base[0], prefill / base[1]
            print(f"{form:6}{name:14}{decode:9.1f}{ratios[0]:7.2f}{prefill:11.0f}{ratios[1]:7.2f}")
            table.setdefault(form, {})[name] = {
                "decode_tps": decode,
                "decode_ratio": ratios[0],
                "prefill_tps": prefill,
                "prefill_ratio": ratios[1],
            }
    record("instruction_sets", {"rounds": ROUNDS, "results": table})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main(sys.argv[1:])

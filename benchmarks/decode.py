"""Decode and prefill speed of the executor over `transformers` eager fp32: ratios of one run.

Same weights (SmolLM2-135M-Instruct), same threads, interleaved, median of 5. Absolute figures
depend on the machine, and on who else uses it; the ratio is what to read. None of it says anything
about an ANE. ONNX Runtime GenAI runs beside them where `onnxruntime-genai` and `onnx-ir` are
installed.
"""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
import subprocess
import sys
from tempfile import TemporaryDirectory
import time

from _common import bundle, record, reference_model
from ane_book.book import roofline
from ane_book.runtime import Session
import numpy as np
import torch

PROMPT, NEW_TOKENS, ROUNDS, PREFILL = 40, 64, 5, 256


class Transformers:
    """`transformers` eager, float32, with its own cache."""

    def __init__(self):
        self.model = reference_model()
        self.bytes = sum(p.nbytes for p in self.model.parameters())  # tied ones once

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
        made = bundle(**recipe)
        self.session = Session(made, **options)
        self.bytes = sum(file.stat().st_size for file in made.path.rglob("weight.bin"))

    def prefill(self, ids: list[int]) -> int:
        self.session.reset()
        return int(self.session.prefill(ids).argmax())

    def decode(self, token: int) -> int:
        return int(self.session.decode(token).argmax())


class GenAI:
    """ONNX Runtime GenAI fp32, over the model that its own builder makes."""

    def __init__(self, folder: Path):
        import onnxruntime_genai as genai

        source, built = folder / "source", folder / "built"
        reference_model().save_pretrained(source)
        (source / "tokenizer.json").write_bytes((bundle().path / "tokenizer.json").read_bytes())
        (source / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "PreTrainedTokenizerFast"}'
        )
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32"]
        command += ["-e", "cpu", "-i", str(source), "-o", str(built), "-c", str(folder / "cache")]
        subprocess.run(command, check=True, capture_output=True)
        config = genai.Config(str(built))
        self.genai, self.model = genai, genai.Model(config)
        self.bytes = (built / "model.onnx.data").stat().st_size

    def prefill(self, ids: list[int]) -> int:
        parameters = self.genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=512, do_sample=False)
        self.generator = self.genai.Generator(self.model, parameters)
        self.generator.append_tokens(ids)
        return self.decode(ids[-1])

    def decode(self, token: int) -> int:
        """The next token after its own last one, which is what greedy decoding would pass."""
        self.generator.generate_next_token()
        return int(self.generator.get_next_tokens()[0])


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


def main() -> None:
    with ExitStack() as stack:
        runners = {
            "transformers eager fp32": Transformers(),
            "executor fp32, state": Executor(precision="fp32"),
            "executor fp32, host": Executor(precision="fp32", kv="host"),
            "executor fp16, state": Executor(precision="fp16"),
            "executor int8": Executor(precision="fp16", quant="int8"),
            "executor lut4": Executor(precision="fp16", quant="lut4"),
        }
        if find_spec("onnxruntime_genai") and find_spec("onnx_ir"):
            folder = Path(stack.enter_context(TemporaryDirectory()))
            runners["ONNX Runtime GenAI fp32"] = GenAI(folder)
        rates = {name: [] for name in runners}
        with torch.inference_mode():
            for runner in runners.values():
                measure(runner)  # warm up
            for _ in range(ROUNDS):
                for name, runner in runners.items():
                    rates[name].append(measure(runner))
        read = roofline.measure().bandwidth_bytes_s / 1e9
    medians = {n: [float(median(v)) for v in np.array(r).T] for n, r in rates.items()}
    report(medians, {name: runner.bytes for name, runner in runners.items()}, read)


def report(medians: dict[str, list[float]], weights: dict[str, int], read: float) -> None:
    """Print and record the table. weights: bytes that a decode step reads; read: GB/s."""
    base = medians["transformers eager fp32"]
    print(f"{torch.get_num_threads()} threads, reads {read:.1f} GB/s")
    print(f"{'':26}{'decode/s':>9}{'ratio':>7}{'GB/s':>6}{'share':>7}{'prefill/s':>11}{'ratio':>7}")
    table = {}
    for name, (decode, prefill) in medians.items():
        rate = decode * weights[name] / 1e9
        table[name] = {
            "decode_tps": decode,
            "decode_ratio": decode / base[0],
            "decode_gb_per_s": rate,
            "read_share": rate / read,
            "prefill_tps": prefill,
            "prefill_ratio": prefill / base[1],
        }
        print(
            f"{name:26}{decode:9.1f}{decode / base[0]:7.2f}{rate:6.1f}{rate / read:7.0%}"
            f"{prefill:11.0f}{prefill / base[1]:7.2f}"
        )
    record("decode", {"read_gb_per_s": read, "rounds": ROUNDS, "results": table})


if __name__ == "__main__":
    main()

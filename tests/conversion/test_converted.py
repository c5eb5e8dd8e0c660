"""What a conversion writes, byte for byte: who changes it has to raise the converter's number.

    python tests/conversion/test_converted.py      # after that: writes converted.json anew

Weights are sixteenths, which every machine computes with exactly, so that the bytes are everywhere
the same as long as the packages are. What PyTorch computes of them is left out.
"""

from hashlib import sha256
import json
from pathlib import Path
import sys
import tempfile

from _encoders import tiny_bert, write_encoder
from _taggers import tiny_tagger, write_tagger
from _tiny import tiny_model, write_checkpoint
import ane_book
from ane_book.conversion.target import key
import pytest
import torch

RECORD = Path(__file__).with_name("converted.json")

#: A model, and the recipe it is converted by.
CASES = {
    "llama, tiers, verify": (
        lambda: tiny_model("llama"), write_checkpoint,
        {"context": 64, "prefill": 8, "kv": "host", "tiers": (32, 64), "verify": 4},
    ),
    "qwen3, int8, state": (
        lambda: tiny_model("qwen3"), write_checkpoint,
        {"context": 32, "prefill": 8, "kv": "state", "quant": "int8", "argmax_output": True},
    ),
    "gemma3, palettes": (
        lambda: tiny_model("gemma3_text"), write_checkpoint,
        {"context": 32, "prefill": 8, "quant": "lut4"},
    ),
    "tagger with experts": (lambda: tiny_tagger("usual"), write_tagger, {"context": 64}),
    "encoder": (lambda: tiny_bert("usual"), write_encoder, {"context": 32}),
}  # fmt: skip


def digest(case: str, folder: Path) -> str:
    """sha256 of all that a conversion writes but PyTorch's numbers, and what only names a run."""
    make, write, recipe = CASES[case]
    model = make()
    with torch.no_grad():
        for value in model.parameters():
            count = torch.arange(value.numel(), dtype=torch.int64)
            levels = (count * 2654435761 >> 7) % 16 - 8  # no two rows alike
            value.copy_((levels / 16).reshape(value.shape))
    bundle = ane_book.convert(str(write(model, folder / "model")), folder / "bundle", **recipe)
    found = sha256()
    for file in sorted(path for path in bundle.path.rglob("*") if path.is_file()):
        name = file.relative_to(bundle.path).as_posix()
        if name.startswith(("golden", "evidence", "manifest.json")):
            continue
        found.update(name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("case", CASES)
def test_bytes_change_only_with_the_converters_number(case, tmp_path):
    record = json.loads(RECORD.read_text())
    assert record["converter"] == key.CONVERTER, f"run `python {Path(__file__).name}`"
    if record["with"] != key.code_key():
        pytest.skip(f"the bytes are known with {record['with']}")
    assert digest(case, tmp_path) == record["sha256"][case], (
        "conversion writes other bytes than it did: raise CONVERTER in ane_book/conversion/target/"
        "key.py, or readers keep the bundles of before, and run `python tests/conversion/"
        "test_converted.py`"
    )


def test_versions_count(monkeypatch):
    before = key.code_key()
    monkeypatch.setattr(key, "CONVERTER", key.CONVERTER + 1)
    assert key.code_key() != before
    monkeypatch.undo()
    for name in key.PACKAGES:
        monkeypatch.setattr(key, "version", lambda n, name=name: "0.0" if n == name else "1.0")
        assert f"{name} 0.0" in key.code_key()


if __name__ == "__main__":
    digests = {}
    for each in CASES:
        with tempfile.TemporaryDirectory() as new:
            digests[each] = digest(each, Path(new))
    former = json.loads(RECORD.read_text()) if RECORD.exists() else {"with": None}
    if former["with"] == key.code_key() and former["sha256"] != digests:
        sys.exit("raise CONVERTER in ane_book/conversion/target/key.py first")
    whole = {"converter": key.CONVERTER, "with": key.code_key(), "sha256": digests}
    RECORD.write_text(json.dumps(whole, indent=1) + "\n")

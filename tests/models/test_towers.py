"""Checkpoints that see and hear: what is beside their text model is left out."""

import json

from _long import long_but
from _tiny import greedy, prompt, tiny_model, write_checkpoint
import ane_book
from ane_book.errors import InvalidWeights
from ane_book.runtime import Session
import pytest
import torch

#: Family -> its model_type with towers, and tensors beside the text model: towers, layers that
#: guess ahead, and the keys that published files have for layers which borrow theirs.
WHOLE = {
    "qwen3_5_text": ("qwen3_5", ["visual.patch", "mtp.norm"]),
    "gemma4_text": ("gemma4", [
        "vision_tower.a", "audio_tower.a", "embed_vision.a", "embed_audio.a",
        *(f"language_model.layers.{i}.self_attn.k_proj" for i in range(3, 7)),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("family", long_but(WHOLE, "qwen3_5_text"))
def test_the_tokens_are_those_of_the_text_model(tmp_path, family):
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    kind, beside = WHOLE[family]
    model = tiny_model(family)
    whole = write_checkpoint(model, tmp_path / "whole")
    fields = json.loads((whole / "config.json").read_text())
    fields = {"model_type": kind, "text_config": fields, "vision_config": {}}
    (whole / "config.json").write_text(json.dumps(fields))
    tensors = load_file(whole / "model.safetensors")
    tensors = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    theirs = AutoConfig.for_model(kind, text_config=model.config.to_dict())
    with torch.device("meta"):
        names = AutoModelForImageTextToText.from_config(theirs).state_dict().keys()
    assert tensors.keys() <= names
    for name in beside:
        name = name if name.startswith("mtp") else f"model.{name}"
        tensors[f"{name}.weight"] = torch.ones(3)
    save_file(tensors, whole / "model.safetensors")
    bundle = ane_book.convert(str(whole), tmp_path / "made", context=48, prefill=8)
    answer = Session(bundle, precision="fp32").generate(prompt(9), max_tokens=12).token_ids
    assert len(answer) > 2 and answer == greedy(model, prompt(9), len(answer))[9:]
    save_file(tensors | {"model.other.weight": torch.ones(3)}, whole / "model.safetensors")
    with pytest.raises(InvalidWeights, match="tensor model.other.weight is left over"):
        ane_book.convert(str(whole), out=tmp_path / "refused", context=32)

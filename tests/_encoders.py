"""Tiny random encoders of `transformers`, and folders as sentence-transformers writes them."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
import torch

SIZES = {
    "usual": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3},
    "odd": {"hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 1,
            "hidden_act": "gelu_new", "vocab_size": 263, "type_vocab_size": 1},
    "relu": {"hidden_size": 80, "num_attention_heads": 5, "hidden_act": "relu",
             "intermediate_size": 50, "num_hidden_layers": 2, "layer_norm_eps": 1e-5},
}  # fmt: skip
COMMON = {"intermediate_size": 112, "vocab_size": 257, "max_position_embeddings": 48}
PAD, CLS, SEP, UNKNOWN = range(4)


def tiny_bert(size: str, **changes):
    """A random `transformers` encoder, fp16-exact weights, float32, evaluation mode."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(**COMMON | SIZES[size] | changes)).eval().requires_grad_(False)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.2) if value.dim() == 1 else value.mul_(4.0)
            value.copy_(value.half().float())
    return model


def write_encoder(model, folder: Path, pooling: str = "mean_tokens", length: int = 40) -> Path:
    """Save a model as sentence-transformers does, its tokenizer a token a character."""
    model.save_pretrained(folder)
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *map(chr, range(33, 127))]
    words = models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = [("[CLS]", CLS), ("[SEP]", SEP)]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, special)
    tokenizer.enable_truncation(7)  # settings of whoever saved it last
    tokenizer.enable_padding(length=11)
    tokenizer.save(str(folder / "tokenizer.json"))
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return folder


def expected_vectors(model, ids: list[list[int]], pooling: str = "mean_tokens") -> torch.Tensor:
    """Vectors (n, C) of length 1, a text at a time."""
    found = []
    for row in ids:
        hidden = model(torch.tensor([row])).last_hidden_state[0]
        found.append(hidden.mean(dim=0) if pooling == "mean_tokens" else hidden[0])
    return torch.nn.functional.normalize(torch.stack(found))

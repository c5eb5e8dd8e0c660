"""Tiny random encoders of `transformers`, and folders as sentence-transformers writes them."""

from itertools import pairwise
import json
from pathlib import Path

from safetensors.torch import save_file
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


def tiny_bert(size: str):
    """A random `transformers` encoder, fp16-exact weights, float32, evaluation mode."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(**COMMON | SIZES[size])).eval().requires_grad_(False)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.2) if value.dim() == 1 else value.mul_(4.0)
            value.copy_(value.half().float())
    return model


#: Encoders of texts by name: class of `transformers`, its configuration, and how they pool.
FAMILIES = {
    "qwen3": ("AutoModel", {
        "model_type": "qwen3", "hidden_size": 72, "intermediate_size": 100,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 20, "max_position_embeddings": 80, "rope_theta": 1000000.0,
    }, "lasttoken"),
    "modernbert": ("AutoModel", {
        "model_type": "modernbert", "hidden_size": 60, "intermediate_size": 88,
        "num_hidden_layers": 5, "num_attention_heads": 3, "max_position_embeddings": 80,
        "local_attention": 18, "initializer_range": 0.1, "layer_types": [
            "full_attention", "sliding_attention", "sliding_attention", "full_attention",
            "sliding_attention",
        ],
    }, "mean_tokens"),
    "gemma3_text": ("AutoModel", {
        "model_type": "gemma3_text", "hidden_size": 72, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1,
        "head_dim": 24, "max_position_embeddings": 80, "sliding_window": 20,
        "initializer_range": 0.05,
        "query_pre_attn_scalar": 20, "use_bidirectional_attention": True, "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
        ],
    }, "mean_tokens"),
    "xlm-roberta": ("AutoModel", {
        "model_type": "xlm-roberta", "hidden_size": 48, "intermediate_size": 100,
        "num_hidden_layers": 4, "num_attention_heads": 3, "max_position_embeddings": 60,
        "type_vocab_size": 1, "pad_token_id": 1, "initializer_range": 0.1,
    }, "cls_token"),
}  # fmt: skip
#: Dense steps that follow the pooling.
DENSE = {"gemma3_text": (72, 150, 40)}


def tiny_encoder(family: str):
    """A random `transformers` model of one of `FAMILIES`, as `tiny_bert` makes one."""
    return _tiny(*FAMILIES[family][:2])


def _tiny(kind: str, fields: dict):
    import transformers

    common = {"vocab_size": 257, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    fields = common | fields
    config = transformers.AutoConfig.for_model(**fields)
    torch.manual_seed(0)
    model = getattr(transformers, kind).from_config(config).eval().requires_grad_(False)
    return with_halves(model)


def dense_layers(family: str) -> tuple[torch.nn.Linear, ...]:
    """The random Dense steps of a family, without biases or activations."""
    torch.manual_seed(2)
    pairs = pairwise(DENSE.get(family, ()))
    layers = tuple(torch.nn.Linear(*pair, bias=False) for pair in pairs)
    return tuple(with_halves(layer.requires_grad_(False)) for layer in layers)


def with_halves(model):
    """The model with larger weights, norms and biases that do something, all fp16-exact."""
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.2) if value.dim() == 1 else value.mul_(4.0)
            value.copy_(value.half().float())
            if value.dim() == 1:  # coarser, so that what is 1 more is in fp16 too
                value.copy_((value * 1024).round() / 1024)
    return model


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token a character, and what it puts around a text."""
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *map(chr, range(33, 127))]
    words = models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = [("[CLS]", CLS), ("[SEP]", SEP)]
    around = "[CLS] $A [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(around, None, special)
    tokenizer.enable_truncation(7)  # settings of whoever saved it last
    tokenizer.enable_padding(length=11)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_encoder(
    model,
    folder: Path,
    pooling: str = "mean_tokens",
    length: int = 40,
    dense: tuple[torch.nn.Linear, ...] = (),
    **settings,
) -> Path:
    """Save a model as sentence-transformers does, its tokenizer a token a character.

    dense: Dense steps without an activation. settings: of the whole model, such as prompts.
    """
    model.save_pretrained(folder)
    write_tokenizer(folder)
    kinds = ("Transformer", "Pooling", *["Dense"] * len(dense), "Normalize")
    modules = [
        {"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    for i, layer in enumerate(dense, 2):
        write_dense(folder / f"{i}_Dense", layer)
    if settings:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return folder


def write_dense(folder: Path, layer: torch.nn.Linear) -> None:
    """Save a Dense step without a bias or an activation."""
    folder.mkdir()
    fields = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": False}
    fields |= {"activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({"linear.weight": layer.weight}, folder / "model.safetensors")


def pooled(model, ids: list[list[int]], pooling: str = "mean_tokens") -> torch.Tensor:
    """Pooled columns (n, C) of texts in one padded batch, as sentence-transformers pools them."""
    longest = max(map(len, ids))
    pad = model.config.pad_token_id
    batch = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    hidden = model(input_ids=batch, attention_mask=mask).last_hidden_state
    if pooling == "mean_tokens":
        found = [own[: len(row)].mean(dim=0) for own, row in zip(hidden, ids, strict=True)]
        return torch.stack(found)
    places = [0 if pooling == "cls_token" else len(row) - 1 for row in ids]
    return hidden[range(len(ids)), places]

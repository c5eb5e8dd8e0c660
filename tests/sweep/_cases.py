"""Odd checkpoints, drawn: what a case converts, how, and what is then asked of it.

A case is one checkpoint and one recipe. Eight cases in a row share what shapes a block, so that it
is lowered once; all else is drawn for each. Numbers are small, and odd on purpose: heads that are
not C / H wide, groups of seven, widths that nothing divides, prompts that end a chunk, or begin
one.

Letters: C hidden size, H query heads, K key/value heads, D head size, R rotated dimensions of it,
S slots of the cache, T tokens of a prefill call, V vocabulary.
"""

from dataclasses import asdict, dataclass
from random import Random

from ane_book.conversion.quantize.schemes import SCHEMES

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3_text", "granite", "olmo2",
    "hunyuan_v1_dense", "zaya", "openai_privacy_filter",
)  # fmt: skip
SHARED = 8  # cases with the same shapes
RUNS = 8  # of a case
ANSWER = 12  # tokens, at most

#: H, K, D.
HEADS = (
    (4, 2, 12), (4, 1, 16), (3, 3, 16), (6, 2, 8), (5, 1, 10), (8, 2, 6), (2, 2, 24), (7, 7, 4),
    (1, 1, 48), (2, 1, 32), (7, 1, 6),
)  # fmt: skip
#: The same where a part R of D is rotated, D odd too.
PARTLY = ((4, 2, 16, 12), (4, 2, 15, 12), (2, 1, 24, 24), (3, 1, 21, 14), (6, 3, 8, 4))
#: What `transformers` has for a family beside "none", linear, llama3, yarn and longrope.
SCALINGS = {
    "phi3": ("none", "longrope"),
    "hunyuan_v1_dense": ("none", "linear", "llama3", "yarn", "longrope", "dynamic"),
    "zaya": ("none",),
    "openai_privacy_filter": ("none", "linear", "yarn"),
}
EVERY = ("none", "linear", "llama3", "yarn", "longrope")
HOW = ("quant", "quant_head")
PRECISE = tuple(name for name in SCHEMES if name != "none")

#: What is refused, with a word that the message must have.
REFUSED = (
    ("llama", {"attention_bias": True}, "attention_bias"),
    ("llama", {"mlp_bias": True}, "mlp_bias"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("llama", {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "'proportional'"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("mistral", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window"),
    ("qwen3", {"attention_bias": True}, "attention_bias"),
    ("phi3", {"attention_bias": True}, "attention_bias"),
    ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("gemma3_text", {"attention_bias": True}, "attention_bias"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("granite", {"attention_bias": True}, "attention_bias"),
    ("olmo2", {"hidden_act": "relu"}, "hidden_act"),
    ("hunyuan_v1_dense", {"attention_bias": True}, "attention_bias"),
    ("zaya", {"attention_bias": True}, "attention_bias"),
)


@dataclass(frozen=True)
class Case:
    """A checkpoint, a recipe, and runs; all of it JSON.

    fields: of the configuration, by the names of transformers 5. old: config.json is written as
    earlier versions wrote it. dtype: of the weights in the file. sharded: the file is several.
    refused: a word of the refusal, where conversion must refuse. runs: see `_against.py`.
    """

    number: int
    family: str
    scaling: str
    fields: dict
    old: bool
    dtype: str
    sharded: bool
    recipe: dict
    refused: str | None
    runs: list[dict]

    def facts(self) -> dict:
        """The case in one row of a record."""
        own = asdict(self)
        return {n: own[n] for n in ("family", "scaling", "old", "dtype", "refused")} | self.recipe


def draw(seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    shared, own = (
        Random(f"{seed}/{number // SHARED}"),
        Random(f"{seed}/{number // SHARED}/{number}"),
    )
    family = FAMILIES[number // SHARED % len(FAMILIES)]
    fields, recipe = _shapes(shared, family), _calls(shared, family)
    fields |= _values(own, family, fields)
    scaling, rope = _rope(own, family, fields)
    fields |= rope
    recipe |= _recipe(own, family, recipe)
    refused = None
    if own.random() < 0.1 and (known := [r for r in REFUSED if r[0] == family]):
        _, changes, refused = own.choice(known)
        fields |= changes
        recipe = {key: recipe[key] for key in ("context",)}
    elif own.random() < 0.02 and family != "openai_privacy_filter":
        recipe, refused = recipe | {"prefill": 1}, "prefill"
    old = own.random() < 0.4 and refused is None and family not in ("zaya", "openai_privacy_filter")
    return Case(
        number, family, scaling, fields, old, own.choice(["float32", "float16", "bfloat16"]),
        own.random() < 0.2, recipe, refused, _runs(own, family, recipe, fields["vocab_size"]),
    )  # fmt: skip


def _shapes(draw: Random, family: str) -> dict:
    """What a block's lowering depends on."""
    H, K, D, *rotated = draw.choice(PARTLY if family == "phi3" else HEADS)
    if family == "zaya":  # its values are halves of heads, its convolutions whole ones
        H, K, D = draw.choice([(4, 2, 12), (4, 1, 16), (6, 3, 8), (6, 2, 8), (2, 2, 24)])
    C = H * D if rotated or draw.random() < 0.3 else draw.choice([48, 56, 60, 64, 75])
    C = round(C / H) * H  # as the configurations of `transformers` want it
    if family == "zaya":  # whose experts take multiples of 16 bytes in torch
        C = C // 4 * 4 if H % 4 == 0 else C // (2 * H) * 2 * H
    fields = {
        "num_attention_heads": H, "num_key_value_heads": K, "head_dim": D, "hidden_size": C,
        "intermediate_size": draw.choice([40, 72, 96, 101]),
        "rms_norm_eps": draw.choice([1e-5, 1e-6, 1e-3]),
        "num_hidden_layers": draw.choice([1, 2, 2, 3]),
    }  # fmt: skip
    if rotated:
        fields["partial_rotary_factor"] = rotated[0] / D
    if family == "zaya":
        fields |= {
            "moe_intermediate_size": draw.choice([24, 36]), "num_experts": draw.choice([3, 4, 6]),
            "router_hidden_size": draw.choice([20, 24]), "cca_time0": draw.choice([1, 2, 3]),
            "cca_time1": draw.choice([2, 3]),
        }  # fmt: skip
    if family == "openai_privacy_filter":
        fields |= {
            "num_local_experts": draw.choice([4, 5, 8]),
            "num_experts_per_tok": draw.choice([1, 2, 4]),
            "sliding_window": draw.choice([1, 5, 16]),
        }
    return fields


def _calls(draw: Random, family: str) -> dict:
    """S, T and what else shapes the calls."""
    if family == "openai_privacy_filter":
        return {"context": draw.choice([128, 200, 256])}
    S = draw.choice([17, 24, 32, 33, 40, 48])
    T = draw.choice([2, 3, 5, 7, 8, 16, S])
    recipe = {"context": S, "prefill": T}
    if draw.random() < 0.2:
        recipe["verify"] = draw.choice([2, 3])
    least = max(T, recipe.get("verify", 2))
    if draw.random() < 0.2 and least + 1 < S:
        recipe["tiers"] = [draw.randint(least, S - 1)]
    return recipe


def _values(draw: Random, family: str, fields: dict) -> dict:
    """What changes no block: vocabulary, positions, windows, multipliers."""
    own = {
        "vocab_size": draw.choice([257, 263, 300, 511]),
        "max_position_embeddings": draw.choice([64, 96, 128, 2048]),
        "tie_word_embeddings": draw.random() < 0.4,
    }
    L = fields["num_hidden_layers"]
    if family in ("mistral", "phi3"):
        own["sliding_window"] = draw.choice([None, 1, 5, 9, 24, 200])
    if family == "gemma3_text":
        own["sliding_window"] = draw.choice([1, 4, 9, 21, 200])
        own["query_pre_attn_scalar"] = draw.choice([8, 20, 64])
        own["layer_types"] = _types(draw, L, "sliding_attention", "full_attention")
    if family == "granite":
        own |= {
            "embedding_multiplier": draw.choice([1.0, 12.0]),
            "attention_multiplier": draw.choice([0.07, 0.25, 1.0]),
            "residual_multiplier": draw.choice([0.2197265625, 1.0]),  # 0.22, as fp16 has it
            "logits_scaling": draw.choice([0.5, 1.0, 8.0]),
        }
    if family == "zaya":
        own["sliding_window"] = draw.choice([3, 9, 200])
        own["layer_types"] = _types(draw, L, "hybrid", "hybrid_sliding")
    if family == "openai_privacy_filter":
        own |= {"swiglu_limit": draw.choice([1.5, 7.0]), "max_position_embeddings": 2048}
    return own


def _types(draw: Random, layers: int, *kinds: str) -> list[str]:
    return [draw.choice(kinds) for _ in range(layers)]


def _rope(draw: Random, family: str, fields: dict) -> tuple[str, dict]:
    """A scaling's name, and the fields that it is."""
    kind = draw.choice(SCALINGS.get(family, EVERY))
    theta = draw.choice([1e4, 5e5, 777.0])
    D, partial = fields["head_dim"], fields.pop("partial_rotary_factor", None)
    pairs = round(D * (partial or 1.0)) // 2
    rope, top = {"rope_theta": theta, "rope_type": "default"}, {}
    if partial:
        rope["partial_rotary_factor"] = partial
    if kind != "none":
        rope |= {"rope_type": kind} | _scaling(draw, kind, pairs)
    if kind in ("llama3", "yarn", "longrope"):
        original = draw.choice([8, 16, 24, 32, None])
        place = top if family == "phi3" or draw.random() < 0.3 else rope
        if original and family != "openai_privacy_filter":
            place["original_max_position_embeddings"] = original
        elif original:
            rope["original_max_position_embeddings"] = original
    if family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": draw.choice([1e4, 500.0])}
        original = top.pop("original_max_position_embeddings", None)
        rope |= {"original_max_position_embeddings": original} if original else {}
        return kind, {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}
    if family == "zaya":
        part = draw.choice([0.5, 1.0])
        own = {"rope_type": "default", "partial_rotary_factor": part}
        return kind, {
            "rope_parameters": {
                "hybrid": own | {"rope_theta": theta},
                "hybrid_sliding": own | {"rope_theta": draw.choice([1e4, 500.0])},
            }
        }
    return kind, {"rope_parameters": rope} | top


def _scaling(draw: Random, kind: str, pairs: int) -> dict:
    """The fields of a type of scaling; those that may be left out are, mostly."""
    own: dict = {}
    if kind != "longrope":
        own["factor"] = draw.choice([1.0, 1.5, 4.0, 8.0])
    if kind == "dynamic":
        own |= {"factor": 1.0, "alpha": draw.choice([1.0, 50.0, 1000.0])}
    if kind == "llama3":
        own |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])}
    if kind == "longrope":
        own["short_factor"] = [1.0 + draw.random() for _ in range(pairs)]
        own["long_factor"] = [1.0 + 8 * draw.random() for _ in range(pairs)]
        if draw.random() < 0.3:
            own["factor"] = draw.choice([1.0, 4.0])
    if kind in ("yarn", "longrope") and draw.random() < 0.4:
        own["attention_factor"] = draw.choice([0.5, 1.0, 1.25, 2.0])
    if kind == "yarn":
        own |= draw.choice([
            {}, {}, {"truncate": False}, {"beta_fast": 16.0, "beta_slow": 2.0},
            {"mscale": 0.707, "mscale_all_dim": 0.9}, {"mscale": 0.707},
        ])  # fmt: skip
    return own


def _recipe(draw: Random, family: str, calls: dict) -> dict:
    """How the same blocks are stored and put together."""
    if family == "openai_privacy_filter":
        return {"experts": draw.choice(["packed"] * 3 + ["dispatch"] * 2)}
    own: dict = {"kv": draw.choice(["state", "host"])}
    own["head_rows"] = draw.choice([16384, 16384, 100, 37])
    own["shard_limit"] = draw.choice([10**9, 150_000])
    if draw.random() < 0.15:
        own["argmax_output"] = True
    if family == "zaya":
        own["experts"] = draw.choice(["packed"] * 3 + ["dispatch"] * 2)
        return own
    own["partition"] = draw.choice(["layers"] * 7 + ["whole"])
    own["quant"] = draw.choice(["none"] * 10 + list(PRECISE))
    if draw.random() < 0.3:
        own["quant_head"] = draw.choice(["none", *PRECISE])
    if "argmax_output" in own or any(own.get(n, "").startswith("lut8") for n in HOW):
        own["shard_limit"] = 10**9  # palettes of 256 are larger than these matrices
    return own


def _runs(draw: Random, family: str, recipe: dict, vocabulary: int) -> list[dict]:
    """What is asked: tokens, and in which calls."""
    S, T, runs = recipe["context"], recipe.get("prefill", 1), []
    for i in range(RUNS):
        mode = ("answer", "logits", "answer", "pieces", "rewind", "full")[i % 6]
        if family == "openai_privacy_filter":
            mode = "labels"
        tokens = draw.randint(1, min(24, S) if mode == "logits" else S - 1)
        if mode == "labels":  # one call, or windows
            tokens = draw.choice([tokens, draw.randint(S, 2 * S)])
        if mode == "answer" and draw.random() < 0.5:  # at the end of a chunk, or one token beside
            tokens = min(
                max(1, T * draw.randint(1, max(1, S // T)) + draw.choice([-1, 0, 1])), S - 1
            )
        run = {"mode": mode, "ids": [draw.randrange(vocabulary) for _ in range(tokens)]}
        run["answer"] = min(draw.randint(1, ANSWER), S - tokens) if mode == "answer" else 0
        if mode == "full":
            run["ids"] = [draw.randrange(vocabulary) for _ in range(max(1, S - ANSWER))]
            run["answer"] = S - len(run["ids"])
        run["cut"] = draw.randint(0, len(run["ids"]) - 1)
        run["precision"] = (
            "fp16" if draw.random() < 0.2 and "argmax_output" not in recipe else "fp32"
        )
        runs.append(run)
    return runs

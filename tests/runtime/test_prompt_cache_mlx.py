"""A cache that goes from a session to mlx-lm, from mlx-lm to a session, or to another one."""

from itertools import product

from _long import long_but
from _tiny import prompt
from ane_book.runtime import Session
import numpy as np
import pytest

pytest.importorskip("mlx_lm")

from _in_mlx import answered, load, saved
import mlx.core as mx
from mlx_lm.models.cache import load_prompt_cache

TOKENS = 64  # of an answer
FAMILIES = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "phi3", "gemma3_text", "smollm3", "olmo2", "granite",
    "lfm2", "lfm2_moe", "qwen3_5_text", "granitemoehybrid", "mistral", "olmo3", "exaone4", "glm4",
    "hunyuan_v1_dense", "gemma4_text", "ministral3",
)  # fmt: skip
#: How bundles keep the same cache.
FORMS = {
    "state": {"kv": "state"},
    "host, packages": {"kv": "host", "shard_limit": 250_000},
    "apple, state, tiers": {"kv": "state", "form": "apple", "tiers": (128, 256)},
    "apple, host, verify": {"kv": "host", "form": "apple", "verify": 4},
}
LONG = (("max_position_embeddings", 1024),)
OTHER = {  # what mlx-lm has, too
    "granitemoehybrid": (("mamba_n_groups", 1),),
    "mistral": (("sliding_window", None),),
}
SHORT = {"ministral3": 128}  # contexts of models that go no further
QUICK = [("llama", "apple, state, tiers", 63), ("gemma3_text", "state", 65)]


@pytest.fixture(scope="module")
def in_mlx(tiny):
    """`in_mlx(family)` -> mlx-lm's model, loaded once."""
    made = {}

    def make(family: str):
        if family not in made:
            made[family] = load(tiny(family, **dict(LONG + OTHER.get(family, ())))[1])
        return made[family]

    return make


def continued(session: Session, token: int) -> tuple[list[int], np.ndarray]:
    """As `answered`, of what a session holds."""
    answer, logits = [token], []
    while len(answer) <= TOKENS:
        logits.append(session.decode(answer[-1]))
        answer.append(int(logits[-1].argmax()))
    return answer[1:], np.array(logits)


#: One of each kind of what layers keep in all ways, the other families in one.
KINDS = ("llama", "gemma3_text", "lfm2", "qwen3_5_text")
WAYS = [
    *product(KINDS, FORMS, (1, 63, 64, 65, 500)),
    *product([own for own in FAMILIES if own not in KINDS], ["host, packages"], (65, 500)),
]
CASES = long_but(dict.fromkeys([*WAYS, *QUICK]), *QUICK)


@pytest.mark.parametrize("family, form, n", CASES)
def test_the_answer_is_the_same_whoever_read_the_prompt(
    family, form, n, tiny_bundle, in_mlx, tmp_path
):
    context = SHORT.get(family, 640)
    if n + TOKENS >= context:
        pytest.skip("the model goes no further")
    recipe = {"context": context, "prefill": 64} | FORMS[form]
    changes = LONG + OTHER.get(family, ())
    bundle, model = tiny_bundle(family, changes, **recipe)[1], in_mlx(family)
    session, again = Session(bundle, "fp32", "mil"), Session(bundle, "fp32", "mil")
    *ids, token = prompt(n + 1)
    session.prefill(ids)
    for form in ("mlx", "mlx-swift"):
        session.save_cache(tmp_path / f"{form}.safetensors", form)
    saved(model, ids, tmp_path / "theirs.safetensors")
    expected, logits = continued(session, token)

    theirs = load_prompt_cache(str(tmp_path / "mlx.safetensors"))
    found = {"ours to mlx": answered(model, theirs, token, TOKENS)}
    for name in ("mlx", "mlx-swift", "theirs"):
        again.load_cache(tmp_path / f"{name}.safetensors", ids if name == "theirs" else None)
        assert again.position == n
        found[f"{name} to ours"] = continued(again, token)
    for way, (answer, own) in found.items():
        assert answer == expected, way
        assert abs(own - logits).max() < 1e-3, way

    # What is held begins with another prompt: a window, a tail or a memory is made again.
    short = prompt(n)[: n // 2 + 1]
    again.load_cache(tmp_path / "mlx.safetensors")
    again.rewind(len(short) - 1)
    session.reset()
    np.testing.assert_allclose(again.decode(short[-1]), session.prefill(short), atol=1e-3)


@pytest.mark.long
def test_bundles_that_keep_it_otherwise_go_on_from_it(tiny_bundle, tmp_path):
    """In another form, with tiers, or with a function for blocks."""
    recipe, file = {"context": 640, "prefill": 64}, tmp_path / "cache.safetensors"
    forms = [FORMS["state"], FORMS["apple, host, verify"], FORMS["apple, state, tiers"]]
    first, *others = [
        Session(tiny_bundle("gemma3_text", LONG, **recipe | own)[1], "fp32", "mil") for own in forms
    ]
    *ids, token = prompt(66)
    first.prefill(ids)
    first.save_cache(file)
    expected, _ = continued(first, token)
    for session in others:
        session.load_cache(file)
        assert continued(session, token)[0] == expected


def test_a_cache_in_bfloat16(tiny_bundle, in_mlx, tmp_path):
    """As mlx-lm keeps that of most models: rounded, and read in whatever the session has."""
    bundle = tiny_bundle("gemma3_text", LONG, context=640, prefill=64, **FORMS["state"])[1]
    file, ids = tmp_path / "cache.safetensors", prompt(65)
    saved(in_mlx("gemma3_text"), ids, file, mx.bfloat16)
    session = Session(bundle, "fp16", "mil")
    session.prefill(ids)
    expected = session.prompt_cache()
    session.load_cache(file, ids)
    for own, known in zip(session.prompt_cache().layers, expected.layers, strict=True):
        for name, array in own.arrays.items():
            np.testing.assert_allclose(array, known.arrays[name], atol=0.05, rtol=0.02)

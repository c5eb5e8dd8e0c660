"""Options that go neither with a model nor with each other are refused by their names."""

from _tiny import TINY, tiny_model
from _zaya import tiny_zaya
import ane_book
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.models import read_config
import pytest

SMOLLM, QWEN, TAGGER = "smollm2-135m-instruct", "qwen2.5-0.5b-instruct", "privacy-filter"
TIERS, ONE, APART = {"context": 48, "prefill": 8}, {"functions": "one"}, {"experts": "dispatch"}
SCHEMES = r"one of none, int8, .*, lut4, .*, stored, auto:BITS \(BITS 4.1 to 8\), not"
TEXT = "goes with models that generate text"

REFUSED = [
    (SMOLLM, {"context": 1}, "^a context needs at least 2 tokens, not 1$"),
    (SMOLLM, {"form": "columns"}, "form must be 'rows' or 'apple', not 'columns'"),
    (SMOLLM, {"partition": "heads"}, "'layers' or 'whole', not 'heads'"),
    (SMOLLM, {"head_rows": 0}, "head_rows must be greater than or equal to 1, not 0"),
    (SMOLLM, {"state_write": "scatter"}, "must be 'update' or 'select', not 'scatter'"),
    (SMOLLM, {"kv": "host", "state_write": "select"}, "state_write select goes with kv state"),
    (SMOLLM, APART, "experts goes with mixtures of experts"),
    (QWEN, {"argmax_output": True, "shard_limit": "100MB"}, "argmax_output picks the token inside "
     r"one .* \(partition layers, [\d,]+ bytes, shard limit 100,000,000\); leave it out"),
    *((SMOLLM, {"quant": quant}, f"{SCHEMES} '{quant}'") for quant in (
        "int3", "lut4-g8", "auto", "auto:4", "auto:9", "auto:nan", "auto-int:5")),
    # tiers
    (SMOLLM, TIERS | {"tiers": (16, 64)}, "of 64 slots is larger than the context of 48"),
    (SMOLLM, TIERS | {"tiers": (16, 20, 16)}, "tiers: 16 is there twice"),
    (SMOLLM, TIERS | {"tiers": (1, 16)}, "tiers must be greater than or equal to 2, not 1"),
    (SMOLLM, TIERS | {"tiers": 0}, "tiers must be greater than or equal to 2, not 0"),
    (SMOLLM, TIERS | {"tiers": -16}, "tiers must be greater than or equal to 2, not -16"),
    (SMOLLM, TIERS | {"tiers": "16;20"}, "'16;20' are no .*; write them like 128,256"),
    (SMOLLM, TIERS | {"tiers": ""}, "tiers: '' are no numbers of slots"),
    (SMOLLM, TIERS | {"tiers": "16,,20"}, "tiers: '16,,20' are no numbers of slots"),
    (SMOLLM, TIERS | {"tiers": 16.5}, "tiers must be a valid integer, not 16.5"),
    (SMOLLM, TIERS | {"tiers": (True, 16)}, "tiers must be a valid integer, not True"),
    (SMOLLM, TIERS | {"tiers": {"a": 1}}, "tiers must be"),
    (SMOLLM, TIERS | {"tiers": (4, 16)}, "between 2 and the smallest tier of 4 tokens"),
    # one function
    (SMOLLM, ONE | {"prefill": 64}, "prefill goes with functions two"),
    (SMOLLM, ONE | {"context": 60}, "a cache of 60 slots is no multiple of the 8 .*; take 56"),
    (SMOLLM, ONE | {"context": 64, "tiers": (12,)}, "a cache of 12 slots .*; take 8"),
    (SMOLLM, ONE | {"context": 6}, "verify must be between 2 and the context of 6 tokens, not 8"),
    # models that do not generate
    ("all-minilm-l6-v2", {"form": "apple"}, f"form {TEXT}"),
    ("all-minilm-l6-v2", {"functions": "one"}, f"functions {TEXT}"),
    ("all-minilm-l6-v2", {"silu": "tanh"}, f"silu {TEXT}"),
    ("all-minilm-l6-v2", {"tiers": "64"}, f"tiers {TEXT}"),
    ("all-minilm-l6-v2", {"quant": "auto:5"}, f"a budget as quant {TEXT}"),
    # layers that are not all alike, or have other parts
    ("gemma4_text", {"quant": "auto:5"}, "gemma4_text models have layers that share keys and"),
    ("gemma4_text", {"lora_slots": 4}, "layers differ: merge the adapter into the weights"),
    ("qwen3_moe", {"quant": "auto:5"}, "chooses for models whose layers are seven matrices"),
    ("qwen3_moe", {"lora_slots": 4}, "merge the adapter into the weights instead"),
    ("qwen3_moe", APART, "layer 1 of this model has none; take 'packed'"),
    ("lfm2_moe", APART, "layer 0 of this model has none; take 'packed'"),
    ("zaya", {"quant": "auto:5"}, "quant auto:5 chooses for models whose layers are seven matric"),
    ("zaya", APART | {"quant": "stored"}, "chooses for the matrices of whole layers"),
    (TAGGER, APART | {"partition": "whole"}, "'dispatch' cuts every layer at its mi"),
    # limits
    (TAGGER, APART | {"shard_limit": "2.6MB"}, "around the experts of layer 0 has 2"),
    ("zaya1-8b", APART | {"shard_limit": "25MB"}, "expert of layer 0 has 25,166,016 .* r"),
    (QWEN, {"shard_limit": "10MB"}, "one layer has 29,825,280 bytes .* raise the limit"),
]  # fmt: skip


def config_of(model: str):
    if model == "zaya":
        return read_config(tiny_zaya("odd").config.to_dict())
    return read_config(tiny_model(model).config.to_dict()) if model in TINY else find_config(model)


@pytest.mark.parametrize(("model", "options", "message"), REFUSED)
def test_what_does_not_go_together_is_refused(model, options, message):
    config = config_of(model)
    with pytest.raises(InvalidInput, match=message):
        plan(config, make_recipe(config, **options))


def test_what_is_refused_leaves_no_bundle(tiny, tmp_path):
    """And no folder, unless a layer has to be lowered first."""
    with pytest.raises(InvalidInput, match="tiers: 16 is there twice"):
        ane_book.convert(str(tiny("llama")[1]), tmp_path / "out", context=32, tiers=(16, 16))
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InvalidInput, match="layers of gemma3_text models have no silu"):
        ane_book.convert(
            str(tiny("gemma3_text")[1]), tmp_path / "out", context=32, prefill=8, silu="tanh"
        )
    assert not (tmp_path / "out").exists()


def test_what_nobody_chose_is_fitted_to_the_rest():
    assert make_recipe(tiers="32,128").prefill == 32
    assert make_recipe(find_config(SMOLLM)).model_dump(include={"context", "prefill"}) == {
        "context": 512, "prefill": 64,
    }  # fmt: skip
    assert make_recipe(functions="one").widths == {"verify": 8}
    assert make_recipe(functions="one", verify=16).widths == {"verify": 16}
    again = make_recipe(functions="one", context=64)
    assert make_recipe(**dict(again)) == again

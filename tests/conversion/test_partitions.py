"""How layers and vocabulary are cut into programs: what each computes, how many a token takes.

Every bundle here is converted for real and run by the executor.
"""

from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.runtime import Session
import numpy as np
import pytest
import torch

PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]
PHI = "phi-4-mini-instruct"


def test_whole_is_one_program_whatever_the_limit():
    made = plan(find_config(PHI), make_recipe(partition="whole", shard_limit="1MB"))
    assert [shard.layers for shard in made.shards] == [range(32)]
    assert [list(program.parts) for program in made.head] == [list(range(13))]


@pytest.mark.parametrize(("partition", "shards"), [("layers", 3), ("whole", 1)])
def test_a_token_takes_the_dispatches_that_were_planned(tiny_bundle, partition, shards):
    _, bundle = tiny_bundle("qwen2", partition=partition, head_rows=100, shard_limit=150_000)
    planned = len(plan(bundle.config, bundle.recipe).programs)
    assert planned == shards + 1
    session = Session(bundle, precision="fp32")
    session.decode(1)
    assert session.calls.total() == planned


def test_a_head_in_several_programs(tiny_bundle):
    """The vocabulary too is cut by the limit, not by `head_rows` alone."""
    changes = (("vocab_size", 2003),)
    model, bundle = tiny_bundle("llama", changes, kv="state", shard_limit=70_000)
    assert len(bundle.manifest.head) == 4 and sum(bundle.manifest.splits) == 2003
    assert max(file.stat().st_size for file in bundle.path.rglob("weight.bin")) <= 70_000
    expected = model(torch.tensor([PROMPT])).logits[0].numpy()
    found = Session(bundle, precision="fp32").logits(PROMPT)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(bundle.golden()["logits"].shape, (2003,))

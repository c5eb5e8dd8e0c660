"""Tiers: smaller caches over the same weights, and the session's way among them.

What is compared is a bundle with one cache, whose numbers test_convert.py holds to `transformers`.
"""

from pathlib import Path

from _long import long_but
from _tiny import longrope, tiny_model, write_checkpoint
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import work_of
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
from ane_book.runtime.backends import MILBackend
from mlprogram.ane import cost
import numpy as np
import pytest
import torch

CONTEXT, PREFILL, TIERS = 48, 8, (16, 20)  # as odd as a session allows: 20 is no multiple of 8
KINDS = {"state": {"kv": "state"}, "host": {"kv": "host"}}


# Quick is the host's cache over tiers in tests/models/test_family_bundles.py.
@pytest.fixture(params=long_but(KINDS, "state"))
def pair(request, tiny_bundle):
    """A session over one cache, and one over three, of the same model."""
    recipe = KINDS[request.param] | {"context": CONTEXT}
    family = "gemma3_text" if request.param == "host" else "llama"  # Gemma has two masks
    found = [tiny_bundle(family, **recipe, **own)[1] for own in ({}, {"tiers": TIERS})]
    return [Session(bundle, precision="fp32") for bundle in found]


@pytest.fixture
def bundle(tiny_bundle) -> Bundle:
    return tiny_bundle("llama", kv="state", context=CONTEXT, tiers=TIERS)[1]


def near(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


class TestTokens:
    def test_an_answer_moves_up_through_all_tiers_and_is_the_same(self, pair):
        expected, found = (one.generate("Once", max_tokens=CONTEXT - 4) for one in pair)
        assert found.token_ids == expected.token_ids
        assert list(pair[1].tiers) == [*TIERS, CONTEXT] and all(pair[1].tiers.values())
        assert pair[1].tiers.total() == len(found.token_ids)  # one call is the prompt's

    def test_logits_are_the_same_wherever_a_prompt_is_cut(self, pair):
        """At every tier's edge, beside it, and where a chunk of 8 would straddle it."""
        whole = pair[0].logits(range(CONTEXT))
        for cut in (1, 7, 8, 9, 12, 13, 15, 16, 17, 19, 20, 21, 40, 41, CONTEXT - 1):
            pair[1].reset()
            near(pair[1].logits(range(cut)), whole[:cut])
            near(pair[1].logits(range(cut, CONTEXT)), whole[cut:])

    def test_rewinding_from_a_high_tier_to_a_low_one_and_on(self, pair):
        ids = np.arange(CONTEXT) * 5 % 257
        whole, other = pair[0].logits(ids), (ids + 1) % 257
        pair[1].logits(ids)
        for position in (21, 20, 17, 16, 9, 1, 0):
            pair[1].rewind(position)
            near(pair[1].logits(ids[position:]), whole[position:])
            pair[1].rewind(position)
            pair[0].rewind(position)
            near(pair[1].logits(other[position:]), pair[0].logits(other[position:]))
            for one in pair:
                one.rewind(position)
                one.logits(ids[position:])

    def test_a_chat_keeps_its_cache_across_tiers(self, pair):
        for text in ("One", "One, and two", "One, and two, and a third", "One"):
            expected, found = (one.generate(text, max_tokens=9, reuse_cache=True) for one in pair)
            assert found.token_ids == expected.token_ids

    def test_an_answer_that_ends_at_an_edge_stays_below_it(self, bundle):
        session = Session(bundle, precision="fp32")
        ids = session.encode("Hello")
        session.generate("Hello", max_tokens=TIERS[0] - len(ids) + 1)  # the last is not run
        assert session.position == TIERS[0] and session.tiers[TIERS[1]] == 0
        session.generate("Hello", max_tokens=TIERS[0] - len(ids) + 2)
        assert session.position == TIERS[0] + 1 and session.tiers[TIERS[1]] == 1
        session.prefill([1])
        assert session.tiers[TIERS[1]] == 2

    def test_scaling_by_the_context_is_the_contexts_in_every_tier(self, tmp_path):
        """Phi takes its long factors beyond its original context, also where few slots are used;
        `transformers` does so where the text is longer."""
        model = tiny_model(
            "phi3", rope_parameters=longrope(12), original_max_position_embeddings=32
        )
        folder, ids = write_checkpoint(model, tmp_path / "model"), torch.arange(40)
        recipe = {"context": CONTEXT, "prefill": PREFILL, "tiers": TIERS[:1]}
        made = ane_book.convert(str(folder), out=tmp_path / "tiered", **recipe)
        expected = model(ids[None]).logits[0, :24].numpy()
        near(Session(made, precision="fp32").logits(range(24)), expected)

    def test_an_interrupted_move_is_made_again(self, bundle):
        """Ctrl-C between the programs of a call that moves up: half of them have moved."""
        stop = iter([False] * 1 + [True] + [False] * 1000)

        class Interrupted(MILBackend):
            armed = False

            def load(self, package: Path, function: str):
                program = super().load(package, function)
                predict = program.predict

                def call(*arguments, **used):
                    if self.armed and "s20" in function and next(stop):
                        raise KeyboardInterrupt
                    return predict(*arguments, **used)

                program.predict = call
                return program

        backend = Interrupted("fp32")
        session, expected = Session(bundle, backend=backend), Session(bundle, precision="fp32")
        session.logits(range(16)), expected.logits(range(16))
        backend.armed = True
        session.decode(16)
        with pytest.raises(KeyboardInterrupt):
            session.decode(17)
        assert session.position == 17
        expected.decode(16)
        near(session.logits(range(17, 40)), expected.logits(range(17, 40)))


class TestBundle:
    def test_the_context_among_the_tiers_changes_nothing(self, bundle, tiny):
        _, folder = tiny("llama")
        recipe = {"kv": "state", "context": CONTEXT, "prefill": PREFILL}
        for tiers in ((20, 48, 16), "16,20", [16, np.int64(20)], " 16 , 20,48"):
            again = ane_book.convert(str(folder), out=bundle.path, tiers=tiers, **recipe)
            assert again.recipe.tiers == TIERS
        with pytest.raises(InvalidInput, match="holds another conversion"):
            ane_book.convert(str(folder), out=bundle.path, tiers=(16,), **recipe)


class TestEvidence:
    def test_parity_sees_the_functions_of_every_tier(self, bundle):
        found = check_parity(bundle)
        assert found.passed, found.reason
        seen = {stage.function for stage in found.stages if stage.name == "layers_00-03.mlpackage"}
        assert seen == set(bundle.manifest.tiered)

    def test_a_plan_has_the_bytes_once_and_the_caches_of_each(self):
        recipe = {"context": 2048, "quant": "int8"}
        one = ane_book.plan("hy-mt", **recipe)
        tiered = ane_book.plan("hy-mt", tiers=(128, 512), **recipe)
        assert tiered.packages == one.packages and tiered.calls() == one.calls()
        assert list(tiered.tiers) == [128, 512, 2048] and list(one.tiers) == [2048]
        for slots, tier in tiered.tiers.items():
            assert tier.cache_bytes * 2048 == one.cache_bytes * slots
            assert tier.packages == one.packages and not tier.recipe.tiers
        predict = lambda plan: cost.predict(work_of(plan), "m4-max")  # noqa: E731
        assert predict(tiered.tiers[2048]).ms == predict(one).ms
        rates = [predict(tier).tokens_s.low for tier in tiered.tiers.values()]
        assert rates == sorted(rates, reverse=True) and rates[0] > 1.1 * rates[-1]
        assert ane_book.plan("all-minilm-l6-v2").tiers == {}

"""Guessed tokens change nothing but speed: not a token, not a distribution, not what is cached."""

from itertools import count, product

from _long import long_but
from _tiny import prompt
from ane_book.errors import InvalidInput
from ane_book.options import Sampling, checked
from ane_book.runtime import Sampler, Session
from ane_book.runtime.answer import Answer, Stream
from ane_book.runtime.drafts import Lookup, guesses
from ane_book.runtime.sampling import filter_logits
import numpy as np
import pytest
from scipy.stats import chisquare

CONTEXT, K = 94, 8  # the last slots make no whole block
DRAWN = {"temperature": 0.5, "seed": 1, "top_k": 50}
TEXTS = ["a", "xyxyxyxy", "The first of them, the second of them, the", "b" * 92]


class Oracle:
    """Guesses the tokens of an answer that is known, wrong at every `wrong`-th place."""

    def __init__(self, ids: list[int], answer: list[int], wrong: int | None = None):
        self.text, self.start, self.wrong = [*ids, *answer], len(ids), wrong

    def propose(self, tokens: list[int], most: int) -> list[int]:
        at = range(len(tokens), min(len(tokens) + most, len(self.text)))
        bad = {i for i in at if self.wrong and (i - self.start) % self.wrong == 0}
        return [(self.text[i] + (i in bad)) % 257 for i in at]


@pytest.fixture(params=["state", "host"])
def session(tiny_bundle, request) -> Session:
    return Session(tiny_bundle("llama", kv=request.param, context=CONTEXT, verify=K)[1])


@pytest.fixture
def blocks(tiny_bundle):
    """`blocks(precision, **recipe)` -> a session that verifies."""

    def make(precision: str = "fp16", **recipe) -> Session:
        recipe = {"kv": "state", "context": CONTEXT, "verify": K} | recipe
        return Session(tiny_bundle("llama", **recipe)[1], precision)

    return make


class TestSameTokens:
    @pytest.mark.parametrize(
        ("sampling", "precision"),
        long_but(product(({}, DRAWN), ("fp16", "fp32")), ({}, "fp16"), (DRAWN, "fp32")),
    )
    def test_whoever_guesses(self, blocks, sampling, precision):
        session = blocks(precision)
        for text in TEXTS:
            alone = session.generate(text, max_tokens=80, **sampling)
            held = list(session._tokens)
            ids = session.encode(text)
            oracles = [Oracle(ids, alone.token_ids, wrong) for wrong in (None, 1, 3)]
            for draft in ("lookup", *oracles):
                guessed = session.generate(text, max_tokens=80, draft=draft, **sampling)
                assert (guessed.token_ids, guessed.text) == (alone.token_ids, alone.text)
                assert guessed.finish_reason == alone.finish_reason
                assert session._tokens == held

    @pytest.mark.long
    @pytest.mark.parametrize("family", ["gemma3_text", "phi3", "qwen3"])
    def test_every_family_caches_what_came_true(self, tiny_bundle, family):
        session = Session(tiny_bundle(family, kv="host", context=48, verify=5)[1])
        alone = session.generate("Hello", max_tokens=43)
        oracle = Oracle(session.encode("Hello"), alone.token_ids, wrong=4)
        found = session.generate("Hello", max_tokens=43, draft=oracle)
        assert found.token_ids == alone.token_ids

    def test_all_guesses_right_take_a_call_for_each_block(self, session):
        alone = session.generate("Hello", max_tokens=64)
        ids = session.encode("Hello")
        guessed = session.generate("Hello", max_tokens=64, draft=Oracle(ids, alone.token_ids))
        blocks = {slot // K for slot in range(len(ids), len(ids) + 63)}
        assert guessed.calls == len(blocks) < alone.calls == 63
        assert guessed.drafted == guessed.accepted == 63 - len(blocks)
        assert guessed.tokens_per_call == 63 / len(blocks)
        assert (alone.drafted, alone.accepted, alone.tokens_per_call) == (0, 0, 1.0)

    def test_the_likeliest_token_alone_is_enough(self, blocks):
        chooser, session = blocks(argmax_output=True), blocks()
        expected = session.generate("Hello", max_tokens=60).token_ids
        found = chooser.generate("Hello", max_tokens=60, draft="lookup")
        assert found.token_ids == expected and found.accepted > 0


class TestEnds:
    """An answer that ends inside an accepted draft ends as if it had come token by token."""

    @pytest.fixture
    def oracle(self, session):
        alone = session.generate("Hello", max_tokens=60)
        return Oracle(session.encode("Hello"), alone.token_ids), alone

    @pytest.mark.parametrize("most", [1, 2, 5, 13])
    def test_at_so_many_tokens(self, session, oracle, most):
        found = session.generate("Hello", max_tokens=most, draft=oracle[0])
        assert found.token_ids == oracle[1].token_ids[:most] and found.finish_reason == "length"
        assert session.position == len("Hello") + most - 1

    def test_at_an_end_token(self, session, oracle, monkeypatch):
        ids = oracle[1].token_ids
        at = next(i for i in range(10, 60) if ids[i] not in ids[:i])
        ended = session._text.model_copy(update={"eos_token_ids": (ids[at],)})
        monkeypatch.setattr(session, "_text", ended)
        found = session.generate("Hello", max_tokens=60, draft=oracle[0])
        assert found.token_ids == ids[: at + 1] and found.finish_reason == "stop"
        assert session.position == len("Hello") + at

    def test_at_a_stop_string(self, session, oracle):
        text = oracle[1].text
        stop = next(c for c in text[12:] if c.isprintable() and c != "\ufffd")
        alone = session.generate("Hello", max_tokens=60, stop=stop)
        found = session.generate("Hello", max_tokens=60, stop=stop, draft=oracle[0])
        assert (found.text, found.token_ids) == (alone.text, alone.token_ids)
        assert session.position == len("Hello") + len(alone.token_ids) - 1

    def test_nothing_is_drawn_behind_the_end(self, session, oracle):
        stop = next(c for c in oracle[1].text[12:] if c.isprintable() and c != "\ufffd")
        stream = session.stream("Hello", max_tokens=60, stop=stop, logprobs=1, draft=oracle[0])
        assert "".join(stream) == stream.finish().text
        assert [each.token for each in stream.drawn] == stream.finish().token_ids

    def test_left_in_the_middle_and_gone_on(self, session, oracle):
        stream = session.stream("Hello", max_tokens=60, draft=oracle[0])
        pieces = [next(stream), next(stream)]
        stream.close()
        going = "Hello" + "".join(pieces)
        expected = session.generate(going, max_tokens=20).token_ids
        session.generate("Hello", max_tokens=60, draft=oracle[0])
        found = session.generate(going, max_tokens=20, reuse_cache=True, draft="lookup")
        assert found.token_ids == expected

    def test_at_a_repetition(self, session):
        alone = session.generate("Hello", max_tokens=60).token_ids
        for n in (2, 3):
            ends = next(
                i
                for i in count(2 * n)
                if any(alone[j : j + n] == alone[i - n : i] for j in range(i - n))
            )
            for draft in (None, "lookup"):
                found = session.generate("Hello", max_tokens=60, stop_repeat=n, draft=draft)
                assert found.token_ids == alone[:ends] and found.finish_reason == "stop"
        with pytest.raises(InvalidInput, match="stop_repeat must be"):
            checked(Sampling, {"stop_repeat": 0})


class TestRefusals:
    def test_a_bundle_without_verify(self, tiny_bundle):
        plain = Session(tiny_bundle("llama", kv="state")[1])
        with pytest.raises(InvalidInput, match="converted without verify.*--verify 8"):
            plain.stream("Hello", draft="lookup")
        assert plain.position == 0

    @pytest.mark.parametrize("draft", ["look", 3, object()])
    def test_what_does_not_guess(self, session, draft):
        with pytest.raises(InvalidInput, match='draft must be "lookup", a drafter or None'):
            session.stream("Hello", draft=draft)

    def test_guesses_that_are_no_tokens(self, session):
        class Wild:
            def propose(self, tokens, most):
                return [0, 257, -1, 3]

        alone = session.generate("Hello", max_tokens=12).token_ids
        assert session.generate("Hello", max_tokens=12, draft=Wild()).token_ids == alone
        assert guesses(Wild(), [1], 4, 257) == guesses(Wild(), [1], 1, 257) == [0]


def test_lookup_finds_the_longest_and_the_last():
    lookup = Lookup()
    assert lookup.propose([1], 4) == lookup.propose([1, 2, 3], 4) == []
    assert lookup.propose([1, 2, 3, 9, 2, 3], 2) == [9, 2]
    last = lookup.propose([1, 2, 3, 9, 2, 3, 5, 3, 7, 2, 3], 9)
    assert last == [5, 3, 7, 2, 3]  # not behind 3, 7


def test_a_masked_slot_says_nothing_whatever_it_holds(blocks):
    """A token's results are the same to the bit beside right guesses, wrong ones and none."""
    for precision in ("fp16", "fp32"):
        session, ids = blocks(precision), prompt(60)
        session.prefill(ids[:20])
        alone = [session.decode(token) for token in ids[20:]]
        noise = np.random.default_rng(0)
        for at in range(20, 60):
            first = at - at % K
            given = [*ids[first : at + 1], *noise.integers(0, 257, K - 1 - at % K)]
            hidden = session._runner.forward("verify", np.array(given), first)
            np.testing.assert_array_equal(session._runner.head(hidden)[at % K], alone[at - 20])


# --- distributions --------------------------------------------------------------------------------

DRAWS = 20_000


class Silent:
    """In place of a `TextStream`: tokens without text."""

    stopped, stop = False, None

    def add(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def in_session(session: Session):
    """How a session draws: the rule that is tested, with outputs that are known."""

    class Known:
        def propose(self, tokens, most):
            return self.guesses[:most]

    drafter, outputs = Known(), []
    session._forward = lambda ids, guesses=(): iter([ids])
    session._after = lambda call: outputs

    def rule(found, given, draw):
        outputs[:], drafter.guesses = found, given
        answer = Answer(Silent(), 3, (), None)  # the first token is drawn after the prompt
        _, *tokens = Stream(session._answer([1], answer, draw, drafter, True)).finish().token_ids
        return tokens if tokens[0] == given[0] else tokens[:1]

    return rule


def fit(found: list[int], probabilities: np.ndarray) -> float:
    """How likely draws are so far from their distribution; rare tokens count as one."""
    counts = np.bincount(found, minlength=probabilities.size)
    rare = probabilities * len(found) < 5
    expected = np.append(probabilities[~rare], probabilities[rare].sum()) * len(found)
    observed = np.append(counts[~rare], counts[rare].sum())
    some = expected > 0
    return float(chisquare(observed[some], expected[some]).pvalue)


@pytest.mark.parametrize("likely", [pytest.param(0, marks=pytest.mark.long), 2])
def test_the_distribution_stays(blocks, likely):
    """A session's draws, where the guess is the likeliest token, or the third."""
    session = blocks("fp32")
    session.prefill(prompt(20))
    first = session.decode(3)
    guess = int(np.argsort(first)[-1 - likely])
    outputs, how = [first, session.decode(guess)], {"temperature": 3.0, "top_k": 40}
    given = [np.exp(np.float64(filter_logits(row, **how))) for row in outputs]
    one, two = (weights / weights.sum() for weights in given)
    sampler = Sampler(Sampling(seed=0, **how))
    draws = in_session(session)
    drawn = [draws(outputs, [guess], sampler) for _ in range(DRAWS)]
    fits = [
        fit([tokens[0] for tokens in drawn], one),
        fit([tokens[1] for tokens in drawn if len(tokens) > 1], two),
    ]
    assert 0.02 < one[guess] < 0.9
    assert min(fits) > 0.001

"""What a session promises, over real bundles of tiny models.

Their numbers, against `transformers`, are in test_convert.py.
"""

from concurrent.futures import ThreadPoolExecutor
import json
from pathlib import Path
import shutil
import threading

from _patience import HANGING
from ane_book.errors import InvalidBundle, InvalidInput, PromptTooLong, SessionBusy
from ane_book.runtime import Session
import numpy as np
import pytest
import torch

CONTEXT, PREFILL = 32, 8  # as `tiny_bundle` converts
LAYOUT = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


@pytest.fixture
def session(tiny_bundle) -> Session:
    return Session(tiny_bundle("llama", kv="state")[1], precision="fp32")


@pytest.fixture
def edited(tiny_bundle, tmp_path):
    """`edited(**changes)` -> a session over a bundle with other fields in its tokenizer record."""

    def make(**changes) -> Session:
        folder = Path(shutil.copytree(tiny_bundle("llama", kv="state")[1].path, tmp_path / "b"))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["tokenizer"].update(changes)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return Session(folder, precision="fp32")

    return make


class TestCache:
    @pytest.mark.parametrize("kv", ["state", "host"])
    def test_rewinding_forgets_what_came_after(self, tiny_bundle, kv):
        session = Session(tiny_bundle("llama", kv=kv)[1], precision="fp32")
        first = session.logits(list(range(12)))
        session.decode(99)
        session.rewind(3)
        assert session.position == 3
        again = session.logits(list(range(3, 12)))
        np.testing.assert_allclose(again, first[3:], rtol=1e-4, atol=1e-4)
        session.reset()
        assert session.position == 0
        np.testing.assert_array_equal(session.logits(list(range(12))), first)

    @pytest.mark.parametrize("kv", ["state", "host"])
    @pytest.mark.parametrize("held", [1, 5, CONTEXT - PREFILL + 1, CONTEXT - 1])
    def test_a_chunk_that_would_run_over_the_end_goes_token_by_token(self, tiny_bundle, kv, held):
        session = Session(tiny_bundle("llama", kv=kv)[1], precision="fp32")
        whole = session.logits(range(CONTEXT))
        session.reset()
        session.prefill(range(held))
        rest = session.logits(range(held, CONTEXT))
        np.testing.assert_allclose(rest, whole[held:], rtol=1e-4, atol=1e-4)

    def test_prefill_is_the_last_row_of_logits(self, session):
        for tokens in (1, PREFILL, PREFILL + 1, 2 * PREFILL + 3, CONTEXT):
            session.reset()
            rows = session.logits(range(tokens))
            session.reset()
            last = session.prefill(range(tokens))
            assert rows.shape == (tokens, 257) and last.dtype == rows.dtype == np.float32
            np.testing.assert_allclose(last, rows[-1], rtol=1e-4, atol=1e-4)
            assert session.position == tokens

    def test_results_are_the_callers_to_keep(self, session):
        first = session.prefill([1, 2, 3])
        kept = first.copy()
        session.decode(4)
        np.testing.assert_array_equal(first, kept)

    def test_token_ids_may_be_of_any_whole_type(self, session):
        expected = [session.prefill([256, 1]), session.decode(2)]
        session.reset()
        found = [session.prefill(np.array([256, 1], np.uint16)), session.prefill(np.uint8([2]))]
        np.testing.assert_array_equal(found, expected)

    def test_a_full_cache_takes_no_more(self, session):
        session.prefill(range(CONTEXT))
        with pytest.raises(PromptTooLong, match=r"1 more tokens after 32 exceed .* 32 tokens"):
            session.decode(1)
        assert session.position == CONTEXT

    @pytest.mark.parametrize("position", [-1, 4])
    def test_cannot_rewind_outside(self, session, position):
        session.prefill([1, 2, 3])
        with pytest.raises(InvalidInput, match="3 tokens are held"):
            session.rewind(position)

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ([], "at least one"),
            ([1.5], "whole number"),
            ([[1]], "must be a list"),
            (["a"], "whole number"),
            ([3, 257], "token id 257 is outside the vocabulary of 257"),
            ([-1], "token id -1"),
        ],
    )
    def test_refuses_what_are_no_tokens(self, session, ids, message):
        for call in (session.prefill, session.logits):
            with pytest.raises(InvalidInput, match=message):
                call(ids)
        assert session.position == 0


class TestAnswers:
    def test_greedy_tokens_are_those_of_transformers(self, tiny_bundle, session):
        model, _ = tiny_bundle("llama", kv="state")
        ids = session.encode("Hello")
        expected = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        result = session.generate("Hello", max_tokens=12)
        assert result.token_ids == expected[0, len(ids) :].tolist()
        assert result.prompt_tokens == len(ids) == 5
        assert result.text == session.tokenizer.decode(result.token_ids)
        assert isinstance(result.prefill_tps + result.decode_tps, float)

    def test_pieces_join_to_the_text(self, session):
        stream = session.stream("Hello", max_tokens=12)
        assert stream.result is None
        pieces = list(stream)
        assert "".join(pieces) == stream.result.text and all(pieces)
        assert list(stream) == [] and stream.result is not None

    def test_steps_stop_after_every_call(self, session, monkeypatch):
        alone, calls = session.generate("Hello, hello, hello", max_tokens=3), []
        forward = session._runner.forward
        monkeypatch.setattr(
            session._runner, "forward", lambda *call: calls.append(len(call[1])) or forward(*call)
        )
        stream, seen = session.stream("Hello, hello, hello", max_tokens=3), []
        for piece in stream.steps():
            seen.append((piece, len(calls)))
        assert calls == [8, 8, 3, 1, 1]
        assert [ran for piece, ran in seen if not piece][:3] == [1, 2, 3]
        assert "".join(piece for piece, _ in seen) == alone.text == stream.result.text
        assert stream.result.token_ids == alone.token_ids

    def test_token_ids_go_as_they_are(self, session, edited):
        ids = session.encode("Hello")
        expected = session.generate("Hello", max_tokens=4)
        found = session.generate(ids, max_tokens=4)
        assert (found.token_ids, found.prompt_tokens) == (expected.token_ids, len(ids))
        chat = edited(chat_template=LAYOUT)
        assert chat.encode("Hello", plain=True) == ids != chat.encode("Hello")
        assert chat.generate(np.array(ids), max_tokens=4).token_ids == expected.token_ids
        with pytest.raises(InvalidInput, match="token id 257 is outside the vocabulary of 257"):
            session.stream([1, 257])
        with pytest.raises(InvalidInput, match="system prompt has no place"):
            session.stream([1], system="Be kind.")

    def test_an_end_token_stops(self, session, edited):
        whole = session.generate("Hello", max_tokens=12).token_ids
        ends = edited(eos_token_ids=[whole[4]]).generate("Hello", max_tokens=12)
        cut = whole.index(whole[4]) + 1
        assert ends.token_ids == whole[:cut] and ends.finish_reason == "stop"
        assert ends.text == session.tokenizer.decode(whole[: cut - 1])

    def test_a_stop_string_stops(self, session):
        whole = session.generate("Hello", max_tokens=12)
        stop = next(c for c in whole.text[2:] if c.isprintable() and c != "\ufffd")
        for stops in (stop, ["not there", stop, ""]):
            result = session.generate("Hello", max_tokens=12, stop=stops)
            assert result.text == whole.text[: whole.text.index(stop)]
            assert result.finish_reason == "stop"

    def test_the_context_limits_the_answer(self, edited):
        session = edited(eos_token_ids=[])
        text = "x" * (CONTEXT - 3)
        result = session.generate(text, max_tokens=500)
        assert len(result.token_ids) == 3 and result.finish_reason == "length"
        one = session.generate("x" * (CONTEXT - 1), max_tokens=500)
        assert len(one.token_ids) == 1 and one.decode_tps is None

    @pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 100])
    def test_a_prompt_that_does_not_fit_is_refused_at_once(self, session, length):
        with pytest.raises(PromptTooLong, match=rf"{length} tokens.*context of 32.*--context"):
            session.stream("x" * length)
        assert session.position == 0

    def test_sampling_repeats_with_its_seed(self, session):
        def answer(seed):
            return session.generate("Hi", max_tokens=12, temperature=1.5, seed=seed).token_ids

        assert answer(1) == answer(1) != answer(2)
        greedy = session.generate("Hi", max_tokens=12).token_ids
        top = session.generate("Hi", max_tokens=12, temperature=1.5, top_k=1, seed=3).token_ids
        assert top == greedy

    def test_refuses_an_empty_prompt_and_text_that_is_none(self, session):
        with pytest.raises(InvalidInput, match="the prompt is empty"):
            session.generate("")
        with pytest.raises(InvalidInput, match="not valid text"):
            session.generate("a\udcffb")
        with pytest.raises(InvalidInput, match="no chat template"):
            session.generate([{"role": "user", "content": "Hello"}])
        for what in (None, 3, {"role": "user", "content": "Hello"}):
            with pytest.raises(InvalidInput):
                session.generate(what)


class TestArgmaxOutput:
    def test_same_tokens_without_logits(self, tiny_bundle, session):
        chooser = Session(tiny_bundle("llama", kv="state", argmax_output=True)[1], "fp32")
        expected = session.generate("Hello", max_tokens=12)
        assert chooser.generate("Hello", max_tokens=12).token_ids == expected.token_ids
        assert isinstance(chooser.decode(5), int)
        with pytest.raises(InvalidInput, match=r"argmax_output.*temperature 0"):
            chooser.generate("Hello", temperature=0.5)
        with pytest.raises(InvalidInput, match="returns tokens, not logits"):
            chooser.logits([1, 2])


class TestTokenizer:
    def test_a_damaged_one_is_told_when_the_session_is_made(self, tiny_bundle, tmp_path):
        folder = Path(shutil.copytree(tiny_bundle("llama", kv="state")[1].path, tmp_path / "b"))
        size = (folder / "tokenizer.json").stat().st_size
        (folder / "tokenizer.json").write_bytes(b"{" * size)
        with pytest.raises(InvalidBundle, match=r"tokenizer.json"):
            Session(folder, precision="fp32")


class TestConversation:
    def test_template_lays_out_the_prompt(self, edited):
        session = edited(chat_template=LAYOUT)
        shown = session.tokenizer.decode(session.encode("Hi", system=""))
        assert shown == "s:;u:Hi;a:"

    def test_a_growing_chat_runs_only_what_is_new(self, edited):
        session = edited(chat_template=LAYOUT, eos_token_ids=[])
        messages = [{"role": "user", "content": "abc"}]
        session.generate(messages, max_tokens=4, reuse_cache=True)
        messages += [{"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]
        reused = session.stream(messages, max_tokens=4, reuse_cache=True)
        common = len("u:abc;a:")
        assert session.position >= common
        ran = []
        forward = session._runner.forward
        session._runner.forward = lambda *call: ran.append(call[2]) or forward(*call)
        list(reused)
        assert ran[0] >= common  # the shared beginning did not run again
        fresh = session.generate(messages, max_tokens=4)
        assert reused.result.token_ids == fresh.token_ids
        assert reused.result.prompt_tokens == fresh.prompt_tokens


class TestOneAtATime:
    BUSY = "in the middle of another call or stream.*close.*second session"

    def refuses_everything(self, session: Session) -> None:
        calls = [
            lambda: session.generate("Hi", max_tokens=2),
            lambda: next(session.stream("Hi")),
            lambda: session.prefill([1]),
            lambda: session.decode(1),
            lambda: session.logits([1]),
            lambda: session.rewind(0),
            session.reset,
        ]
        for call in calls:
            with pytest.raises(SessionBusy, match=self.BUSY):
                call()

    def test_two_streams_do_not_mix(self, session):
        alone = session.generate("Hello", max_tokens=12)
        first, second = (session.stream(text, max_tokens=12) for text in ("Hello", "Else"))
        pieces = [next(first)]
        with pytest.raises(SessionBusy, match=self.BUSY):
            next(second)
        self.refuses_everything(session)
        pieces += first
        assert "".join(pieces) == alone.text and first.result.token_ids == alone.token_ids
        assert session.generate("Hello", max_tokens=12).token_ids == alone.token_ids

    def test_two_threads_do_not_mix(self, session, monkeypatch):
        alone = session.generate("Hello", max_tokens=12)
        inside, go, forward = threading.Event(), threading.Event(), session._runner.forward

        def waiting(*arguments):
            inside.set()
            assert go.wait(HANGING)
            return forward(*arguments)

        monkeypatch.setattr(session._runner, "forward", waiting)
        stream = session.stream("Hello", max_tokens=12)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(list, stream)
            assert inside.wait(HANGING)
            self.refuses_everything(session)
            for call in (stream.close, lambda: next(stream)):
                with pytest.raises(SessionBusy, match=self.BUSY):
                    call()
            go.set()
            assert "".join(answer.result(HANGING)) == alone.text

    @pytest.mark.parametrize("way", ["closed", "dropped", "an error", "never begun"])
    def test_a_stream_that_is_left_frees_the_session(self, session, monkeypatch, way):
        alone = session.generate("Hello", max_tokens=12)
        stream = session.stream("Something else", max_tokens=12)
        if way != "never begun":
            next(stream)
        if way == "closed":
            stream.close()
            assert list(stream) == [] and stream.result is None
            with pytest.raises(InvalidInput, match="closed before its end"):
                stream.finish()
        elif way == "dropped":
            del stream
        elif way == "an error":
            with monkeypatch.context() as patch:
                patch.setattr(session._runner, "forward", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    next(stream)
        assert session.generate("Hello", max_tokens=12).token_ids == alone.token_ids

    @pytest.mark.parametrize("kv", ["state", "host"])
    def test_four_sessions_at_once_give_the_answers_of_one(self, tiny_bundle, kv):
        bundle = tiny_bundle("llama", kv=kv)[1]
        prompts = ["Hello", "Something else", "1, 2, 3", "x"]
        session = Session(bundle)
        alone = [session.generate(prompt, max_tokens=12).token_ids for prompt in prompts]
        before = torch.get_num_threads()
        torch.set_num_threads(4)

        def answer(prompt: str) -> tuple[list[list[int]], int]:
            session = Session(bundle)
            found = [session.generate(prompt, max_tokens=12).token_ids for _ in range(4)]
            return found, torch.get_num_threads()

        try:
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(answer, prompts))
            assert found == [([ids] * 4, 4) for ids in alone]
            assert torch.get_num_threads() == 4
        finally:
            torch.set_num_threads(before)

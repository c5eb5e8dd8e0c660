"""Streaming: pieces of text that join to what decoding gives, and stop strings."""

from _smollm2_tokenizer import tokenizer
from ane_book.runtime.answer import TextStream
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest


def streamed(ids, stops=()) -> tuple[str, TextStream]:
    stream = TextStream(tokenizer(), stops)
    return "".join([*map(stream.add, ids), stream.finish()]), stream


class TestStreaming:
    @settings(deadline=None, max_examples=200)
    @given(st.lists(st.integers(0, 49151), max_size=30))
    def test_any_tokens_join_to_what_decoding_gives(self, ids):
        text, _ = streamed(ids)
        assert text == tokenizer().decode(ids)

    @settings(deadline=None, max_examples=100)
    @given(st.text(max_size=40))
    def test_no_piece_ends_inside_a_character(self, text):
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        stream = TextStream(tokenizer())
        pieces = [stream.add(token) for token in ids]
        whole = tokenizer().decode(ids)
        if "\ufffd" not in whole:
            assert all("\ufffd" not in piece for piece in pieces)
        assert "".join(pieces) + stream.finish() == whole

    def test_holds_back_an_unfinished_emoji(self):
        ids = tokenizer().encode("a🦜b", add_special_tokens=False).ids
        stream = TextStream(tokenizer())
        pieces = [stream.add(token) for token in ids]
        assert len(ids) > 3  # the bird takes several tokens
        assert [piece for piece in pieces if piece] == ["a", "🦜", "b"]

    @pytest.mark.parametrize("stop", ["world", "o, w", "Hello", "!"])
    def test_stop_string_ends_the_text_before_it(self, stop):
        text = "Hello, world! Hello again"
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        shown, stream = streamed(ids, (stop, "never seen"))
        assert shown == text[: text.index(stop)]
        assert stream.stopped

    def test_near_misses_are_shown(self):
        text = "worlworl worldworl"
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        shown, stream = streamed(ids, ("world!",))
        assert shown == text and not stream.stopped

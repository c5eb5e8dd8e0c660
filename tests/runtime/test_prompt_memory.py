"""What a session holds while it reads a long prompt."""

import weakref

from ane_book.runtime import Session


def test_what_earlier_calls_returned_is_let_go(tiny_bundle):
    session = Session(tiny_bundle("llama", kv="state")[1])
    forward, made, held = session._runner.forward, [], []

    def counted(*call):
        held.append(sum(reference() is not None for reference in made))
        hidden = forward(*call)
        made.append(weakref.ref(hidden))
        return hidden

    session._runner.forward = counted
    session.prefill(range(32))
    assert len(held) == 4 and max(held) <= 1

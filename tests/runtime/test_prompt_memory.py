"""What a session holds while it reads a prompt, and what a prompt leaves behind."""

from copy import copy
import ctypes
import mmap
import sys
import weakref

from ane_book.runtime import Session
import numpy as np
import pytest
from torch import Tensor

LONG = (("max_position_embeddings", 4096),)


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


@pytest.fixture
def session(tiny_bundle):
    """Of a context that takes many more pages than a short prompt."""
    return Session(tiny_bundle("llama", LONG, kv="state", context=4096)[1])


def states(session: Session) -> dict[str, Tensor]:
    """Without telling the executor that somebody has them."""
    (step,) = session._runner._steps
    return dict(step._states.state._states)


def test_a_reset_leaves_no_trace_and_keeps_the_memory(session):
    first = session.prefill(range(5))
    before = states(session)
    assert all(tensor.any() for tensor in before.values())
    session.prefill(range(9, 40))
    session.reset()
    assert not any(tensor.any() for tensor in states(session).values())
    np.testing.assert_array_equal(session.prefill(range(5)), first)
    assert all(states(session)[name] is tensor for name, tensor in before.items())


def pages(tensor: Tensor) -> tuple[int, int]:
    """How many pages of a tensor there are in memory, and how many it has."""
    start, size = tensor.data_ptr(), tensor.nbytes
    assert start % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
    here = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), here) == 0
    return sum(page & 1 for page in here), len(here)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are in memory")
def test_a_cache_takes_as_much_memory_as_was_written(session):
    for _ in range(2):
        session.prefill(range(20))
        for tensor in states(session).values():
            here, most = pages(tensor)
            heads = tensor.shape[0] * tensor.shape[1]  # whose first slots are pages of their own
            assert heads <= here <= 2 * heads < most / 8
        session.reset()


def test_another_cache_of_the_same_programs_is_not_emptied(session):
    session.prefill(range(5))
    (step,) = map(copy, session._runner._steps)
    step.start()
    step.clear()
    assert all(tensor.any() for tensor in states(session).values())

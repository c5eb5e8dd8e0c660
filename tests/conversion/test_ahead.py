"""Layers are read one ahead of the one that is written, and no further."""

import threading

from _patience import HANGING
import ane_book
from ane_book.conversion.ahead import ahead
from ane_book.conversion.write.program import PackageWriter
import pytest
import torch


def test_one_item_is_made_while_another_is_used():
    begun = [threading.Event() for _ in range(4)]

    def items():
        for number, event in enumerate(begun):
            event.set()
            yield number

    taken = ahead(items())
    for number in range(4):
        assert next(taken) == number
        if number < 3:
            assert begun[number + 1].wait(60)
        assert not any(event.is_set() for event in begun[number + 2 :])
    assert [*taken] == []


def test_what_an_item_raises_comes_in_its_turn():
    def items():
        yield 1
        raise KeyError("second")

    taken = ahead(items())
    assert next(taken) == 1
    with pytest.raises(KeyError, match="second"):
        next(taken)


def test_who_stops_early_leaves_no_thread():
    taken = ahead(iter(range(10)))
    assert next(taken) == 0
    before = threading.active_count()
    taken.close()
    assert threading.active_count() == before - 1


def test_torch_has_its_threads_again_after_two_at_once():
    """The second begins in a thread that has half of them, and ends last."""
    before, begun, ended, found = torch.get_num_threads(), threading.Event(), threading.Event(), []

    def convert():
        taken = ahead(iter(range(3)))
        found.extend([next(taken), torch.get_num_threads()])
        begun.set()
        assert ended.wait(HANGING)
        taken.close()
        found.append(torch.get_num_threads())

    torch.set_num_threads(4)
    try:
        first, thread = ahead(iter(range(3))), threading.Thread(target=convert)
        assert (next(first), torch.get_num_threads()) == (0, 2)
        thread.start()
        assert begun.wait(HANGING)
        first.close()
        assert torch.get_num_threads() == 4
        ended.set()
        thread.join()
        assert found == [0, 2, 4]
    finally:
        torch.set_num_threads(before)


def test_a_conversion_that_fails_leaves_no_thread(tiny, tmp_path, monkeypatch):
    """Also while somebody holds the error, as a notebook does: the next is in its folder."""
    own, written = PackageWriter.write_weights, []

    def fail(self, state, *rest):
        written.append(state)
        if len(written) == 3:  # what is before the layers, and the first of them, are written
            raise ValueError("the disk is gone")
        return own(self, state, *rest)

    monkeypatch.setattr(PackageWriter, "write_weights", fail)
    with pytest.raises(ValueError, match="the disk is gone") as held:
        ane_book.convert(str(tiny("llama", num_hidden_layers=4)[1]), out=tmp_path / "b", context=32)
    left = [thread for thread in threading.enumerate() if not thread.daemon]
    assert left == [threading.main_thread()], held

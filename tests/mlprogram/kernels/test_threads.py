"""Threads: the executor's answers in any number of them, and torch's own settings left alone."""

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import subprocess
import sys
import threading

from _long import long_but
from _patience import HANGING
from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.kernels.native import ops as native_ops
from mlprogram.kernels.threads import threads, torch_threads
import pytest
from test_native import make, needs_compiler
import torch

FORKS = Path(__file__).with_name("_forks.py")


@pytest.fixture
def set_threads():
    """`torch.set_num_threads`, for this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def in_a_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class TestTorchsThreads:
    def test_are_lent_by_this_thread_alone_and_given_back(self, set_threads):
        set_threads(3)
        with torch_threads(light=True):
            assert (torch.get_num_threads(), threads()) == (1, 3)
            assert in_a_new_thread(torch.get_num_threads) == 3
            with torch_threads(light=True):
                assert (torch.get_num_threads(), threads()) == (1, 3)
            assert torch.get_num_threads() == 1
        assert (torch.get_num_threads(), threads()) == (3, 3)

    def test_are_given_back_by_each_of_two_that_overlap(self, set_threads):
        """The first to come leaves first: what it changed was once never set right."""
        set_threads(3)
        inside, left = threading.Event(), threading.Event()

        def first() -> tuple[int, int]:
            with torch_threads(light=True):
                inside.set()
                second_is_in.wait(HANGING)
            left.set()
            return torch.get_num_threads(), threads()

        second_is_in = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(first)
            assert inside.wait(HANGING)
            with torch_threads(light=True):
                second_is_in.set()
                assert left.wait(HANGING)
            assert found.result(HANGING) == (3, 3)
        assert (torch.get_num_threads(), threads()) == (3, 3)
        assert in_a_new_thread(torch.get_num_threads) == 3

    def test_are_given_back_after_an_error(self, set_threads):
        set_threads(3)
        with pytest.raises(ZeroDivisionError), torch_threads(light=True):
            raise ZeroDivisionError
        assert (torch.get_num_threads(), threads()) == (3, 3)


@needs_compiler
def test_their_number_changes_no_bit(set_threads):
    """Each value is summed by one thread alone, however the parts are shared out."""
    data, _, _ = make("half", 1000, 640)
    weight = native.Weight(data, torch.float16)
    one, many = torch.randn(1, 640, 1, 1).half(), torch.randn(1, 640, 1, 90).half()
    q, mask = torch.randn(4, 80, 32).half(), torch.zeros(80, 96).half()
    cache = [torch.randn(4, n, 32).half() for n in (64, 32, 64, 32)]
    attend = native_ops.attention(q.shape, (64, 32), 80, torch.float16)
    norm = native_ops.rms_norm((640, *many.shape[2:]), torch.float16, torch.randn(640), 1e-5)
    gate = native_ops.gated(torch.float16)
    calls = {
        "matvec": lambda: weight.channels_first(one),
        "matmat": lambda: weight.channels_first(many),
        "attention": lambda: attend(q, mask, *cache),
        "rms_norm": lambda: norm(many),
        "gated": lambda: gate(many, many),
    }
    set_threads(1)
    alone = {name: call() for name, call in calls.items()}
    for count in (3, 16):
        set_threads(count)
        for _ in range(100):
            for name, call in calls.items():
                assert torch.equal(call(), alone[name]), name


@needs_compiler
def test_callers_at_the_same_time_do_not_disturb_each_other(set_threads):
    data, _, _ = make("half", 500, 320)
    weight = native.Weight(data, torch.float16)
    inputs = [torch.randn(1, 320, 1, tokens).half() for tokens in (1, 40) * 4]
    alone = [weight.channels_first(x) for x in inputs]
    set_threads(4)

    def work(i: int) -> bool:
        with torch_threads(light=True):
            right = all(torch.equal(weight.channels_first(inputs[i]), alone[i]) for _ in range(100))
        return right and torch.get_num_threads() == 4

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_eight_on_one_program_get_the_answers_of_one(set_threads, decoder_of, precision):
    """Each with a state of its own; the first to come compile it, at the same time."""
    path = decoder_of(1)
    set_threads(4)

    def answer(program: MLProgram, seed: int) -> list[bytes]:
        inputs, state = program.random_inputs(seed), program.make_state()
        return [program.predict(inputs, state)["hidden_out"].tobytes() for _ in range(20)]

    alone = [answer(MLProgram(path, precision=precision), seed) for seed in range(8)]
    program = MLProgram(path, precision=precision)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: answer(program, seed), range(8))) == alone
        counts = set(pool.map(lambda _: torch.get_num_threads(), range(32)))
    assert counts == {torch.get_num_threads()} == {4}


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("count", long_but([4, 16], 4))
def test_forked_children_have_helpers_of_their_own(count):
    """While threads of the parent are inside kernels; with so many threads on any machine."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(FORKS), str(count), "10"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "{'right': 10}"


@needs_compiler
def test_a_caller_may_have_a_small_stack(set_threads):
    """A server's threads often have 64 kB: no row of a mask, as long as a cache, may lie there."""
    weight = native.Weight(make("half", 500, 320)[0], torch.float16)
    inputs = [torch.randn(1, 320, 1, tokens).half() for tokens in (1, 40)]
    slots = 1 << 16
    attend = native_ops.attention((1, 2, 8), (slots,), 1, torch.float16)
    q, mask = torch.randn(1, 2, 8).half(), torch.zeros(1, slots).half()
    cache = torch.randn(2, 1, slots, 8).half()

    def work() -> list[torch.Tensor]:
        return [*(weight.channels_first(x) for x in inputs), attend(q, mask, *cache)]

    set_threads(4)
    expected = work()
    before = threading.stack_size(1 << 16)
    try:
        found = in_a_new_thread(work)
    finally:
        threading.stack_size(before)
    assert all(map(torch.equal, found, expected))

"""The roofs of a machine: what they are made of, and what they say of a call."""

from ane_book.errors import InvalidInput
from ane_book_pages import roofline
from ane_book_pages.roofline import Roofs
from mlprogram.kernels import native
import pytest
import torch

MADE = Roofs(10e9, 200e9, 2, {}, {})


class TestRoofs:
    def test_a_call_waits_for_the_slower_of_the_two(self):
        assert MADE.seconds(5e9, 1) == 0.5  # reads
        assert MADE.seconds(1, 50e9) == 0.25  # computes
        assert MADE.seconds(1e9, 20e9) == pytest.approx(0.1)  # both


class TestMeasure:
    def test_the_best_product_is_the_roof(self):
        found = roofline.measure(megabytes=1, rounds=1)
        assert found.bandwidth_bytes_s == max(found.reads.values())
        assert found.flops_s == max(found.computes.values())
        assert min(*found.reads.values(), *found.computes.values()) > 0
        assert found.threads == torch.get_num_threads()
        names = (*found.reads, *found.computes)
        assert any(name.startswith("compiled") for name in names) == native.available()
        assert any(name.startswith("torch") for name in found.reads)

    def test_every_reader_reads_what_it_says(self):
        works = roofline._readers(1_000_000)
        assert {amount for _, amount in works.values()} == {1_000_000 // 8192 * 8192}
        ones = works["compiled, one token, fp16"][0]() if native.available() else torch.ones(1)
        assert ones.unique().tolist() == [4096.0 if native.available() else 1.0]

    def test_every_product_computes_what_it_says(self):
        for name, (call, operations) in roofline._products().items():
            tokens = int(name.split(", ")[-1].split()[0])
            assert operations == 2 * 1024 * 1024 * tokens
            assert call().numel() == 1024 * tokens

    @pytest.mark.parametrize("wrong", [{"megabytes": 0}, {"rounds": 0}], ids=str)
    def test_nothing_to_measure(self, wrong):
        with pytest.raises(InvalidInput, match="must be at least 1"):
            roofline.measure(**wrong)

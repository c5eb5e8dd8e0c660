"""The function `verify` of a bundle: K tokens of a block in one call, which does all decoding."""

from _tiny import prompt
import ane_book
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
import numpy as np
import pytest

CONTEXT, K = 30, 4  # the last two slots make no whole block


@pytest.fixture(params=["state", "host"])
def bundle(tiny_bundle, request):
    return tiny_bundle("llama", kv=request.param, context=CONTEXT, verify=K)[1]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_it_does_all_decoding_but_for_the_end_of_the_context(bundle, precision):
    session = Session(bundle, precision)
    used = []
    forward = session._runner.forward
    session._runner.forward = lambda *call: used.append((call[0], call[2])) or forward(*call)
    ids = prompt(CONTEXT)
    session.prefill(ids[:9])
    found = [session.decode(token) for token in ids[9:]]
    blocks = [("verify", slot - slot % K) for slot in range(8, 28)]
    assert used == [("prefill", 0), *blocks, ("decode", 28), ("decode", 29)]
    session.reset()
    np.testing.assert_allclose(found, session.logits(ids)[9:], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("verify", [1, 33, 2.5])
def test_refused_before_anything_is_converted(tiny, tmp_path, verify):
    with pytest.raises(InvalidInput, match="verify must be"):
        ane_book.convert(str(tiny("llama")[1]), out=tmp_path / "b", verify=verify, context=32)
    assert not (tmp_path / "b").exists()

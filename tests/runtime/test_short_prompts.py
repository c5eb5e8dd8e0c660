"""A prompt shorter than a call of `prefill` computes its own columns, and changes no bit."""

from ane_book.runtime import Session
from mlprogram.kernels import native
from mlprogram.run.table import CallTable
import pytest


@pytest.mark.skipif(not native.available(), reason=native.status()[1])
@pytest.mark.parametrize("recipe", [{"kv": "state"}, {"kv": "host", "quant": "int8"}])
def test_a_short_prompt_leaves_columns_out(tiny_bundle, recipe, monkeypatch):
    """And gives the same logits, of it and of what comes after it."""
    _, bundle = tiny_bundle("llama", context=64, prefill=32, **recipe)
    asked = CallTable._used

    def logits(session: Session, all_columns: bool) -> bytes:
        found: list[int] = []

        def used(table: CallTable, *arguments) -> int:
            found.append(0 if all_columns else asked(table, *arguments))
            return found[-1]

        monkeypatch.setattr(CallTable, "_used", used)
        session.reset()
        made = [session.prefill([1, 2, 3, 4, 5]), session.decode(6), session.prefill([7] * 11)]
        assert {*found} == ({0} if all_columns else {0, 5, 11})
        return b"".join(array.tobytes() for array in made)

    session = Session(bundle.path)
    assert logits(session, False) == logits(session, True)

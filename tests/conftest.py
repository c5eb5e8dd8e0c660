"""What tests share: tiny checkpoints of every family and their bundles, made once a session."""

from _tiny import tiny_model, write_checkpoint
import ane_book
import pytest

pytest.register_assert_rewrite("_oracle")  # its `close` says what differs, as a test would


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """`tiny(family)` -> (transformers model, folder of its checkpoint), made once."""
    made = {}

    def make(family: str, **changes):
        key = (family, *sorted(changes.items()))
        if key not in made:
            model = tiny_model(family, **changes)
            made[key] = model, write_checkpoint(model, tmp_path_factory.mktemp(family))
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_bundle(tiny, tmp_path_factory):
    """`tiny_bundle(family, **recipe)` -> (transformers model, bundle), converted once."""
    made = {}

    def make(family: str, changes: tuple = (), **recipe):
        key = (family, changes, *sorted(recipe.items()))
        if key not in made:
            model, folder = tiny(family, **dict(changes))
            recipe = {"context": 32, "prefill": 8} | recipe
            out = tmp_path_factory.mktemp("bundles") / family
            made[key] = model, ane_book.convert(str(folder), out=out, **recipe)
        return made[key]

    return make

"""What tests share: tiny checkpoints of every family and their bundles, made once a session.

What a fixture needs is imported in it, since a suite has no more than its own distribution.
"""

import gc
from importlib.util import find_spec
import os
from pathlib import Path

import mlprogram  # noqa: F401  first: it says how OpenMP's threads wait
import pytest

# Plans of a thousand tiny programs would push the user's own out of the cache.
os.environ.setdefault("MLPROGRAM_CACHE", str(Path(__file__).parents[1] / "build" / "mlprogram"))

pytest_plugins = ["_long"]
pytest.register_assert_rewrite("_oracle")  # its `close` says what differs, as a test would


def pytest_configure(config):
    """Tests of the arithmetic use every form of weights; that some warn is tested where they do."""
    if find_spec("ane_book"):
        config.addinivalue_line("filterwarnings", "ignore::ane_book.errors.SchemeWarning")


@pytest.fixture(scope="module", autouse=True)
def spare_collector():
    """`ct.convert` collects garbage each time: a third of its time, with all that is imported."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(scope="module")
def site_url():
    """The address of the book's site, while it is served."""
    from _site import served_site

    with served_site() as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    from _chromium import chromium

    with chromium() as driver:
        yield driver


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """The folder of a cache of its own: empty, but for blocks that were lowered before."""
    from ane_book.bundle import cache

    folder, lowered = tmp_path / "cache", cache.lowered()
    for made in (folder, lowered):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "lowered").symlink_to(lowered)
    monkeypatch.setenv("ANE_BOOK_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """`tiny(family)` -> (transformers model, folder of its checkpoint), made once."""
    from _tiny import tiny_model, write_checkpoint

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
    import ane_book

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


@pytest.fixture(scope="session")
def tagger(tmp_path_factory):
    """`tagger(size, **recipe)` -> (transformers model, bundle), converted once."""
    from _taggers import tiny_tagger, write_tagger
    import ane_book

    made = {}

    def make(size: str = "usual", **recipe):
        recipe = {"context": 64} | recipe
        key = size, *sorted(recipe.items())
        if key not in made:
            model = tiny_tagger(size)
            folder = write_tagger(model, tmp_path_factory.mktemp(size))
            out = tmp_path_factory.mktemp("bundles") / size
            made[key] = model, ane_book.convert(str(folder), out=out, **recipe)
        return made[key]

    return make

"""The reference model that conversions are held against: made of a source, by `transformers`."""

from _tiny import tiny_model, write_checkpoint
from ane_book.errors import InvalidWeights
from ane_book.evidence import original
from ane_book.weights import open_source
import numpy as np
import pytest
import torch
import transformers

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def tiny():
    return tiny_model("qwen3")


@pytest.fixture(scope="module")
def source(tiny, tmp_path_factory):
    return open_source(write_checkpoint(tiny, tmp_path_factory.mktemp("qwen3")))


@pytest.fixture
def given(source):
    return source.config(), original.weights(source)


def test_it_gives_the_logits_of_the_model_that_was_saved(tiny, given):
    with torch.inference_mode():
        expected = tiny(torch.tensor([IDS])).logits[0].numpy()
    found = original.logits(original.model(*given))(IDS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_weights_are_those_that_a_package_stores(source):
    for name, tensor in original.weights(source).items():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor, source.tensor(name).astype(np.float16), name)


def test_greedy_takes_the_likeliest_token_of_the_whole_text_each_time(given):
    reference = original.model(*given)
    text, after = list(IDS), original.logits(reference)
    for _ in range(6):
        text.append(int(after(text)[-1].argmax()))
    assert original.greedy(reference, IDS, 6) == text[len(IDS) :]


def test_a_change_of_the_configuration_is_obeyed(given):
    config, weights = given
    one, other = (
        original.logits(original.model(config | {"rope_theta": theta}, weights))(IDS)
        for theta in (10_000.0, 500.0)
    )
    assert np.abs(one - other).max() > 1e-3


NORM, EXTRA = "model.norm.weight", "x"


@pytest.mark.parametrize(
    "change, said",
    [
        ({NORM: None}, f"tensor '{NORM}' is missing$"),
        ({NORM: torch.ones(3)}, f"tensor '{NORM}' is misshapen$"),
        ({EXTRA: torch.ones(3)}, f"tensor '{EXTRA}' is left over$"),
        ({EXTRA: torch.ones(3), "y": torch.ones(3)}, f"tensor '{EXTRA}' is left over, and 1 more$"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(given, change, said):
    config, weights = given
    changed = {name: tensor for name, tensor in (weights | change).items() if tensor is not None}
    with pytest.raises(InvalidWeights, match=f"qwen3: {said}"):
        original.model(config, changed)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_it_computes_in_float32_whatever_the_file_was_saved_in(given, name):
    config, weights = given
    config = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    saved = original.model(config | {name: "bfloat16"}, weights)
    expected = original.logits(original.model(config, weights))(IDS)
    np.testing.assert_array_equal(original.logits(saved)(IDS), expected)


def test_it_shows_no_bar_and_leaves_those_of_others(given, capfd):
    original.model(*given)
    assert capfd.readouterr().err == ""
    assert transformers.utils.logging.is_progress_bar_enabled()

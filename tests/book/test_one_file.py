"""The page "The whole thing in one file": its lines, its imports, and its tokens.

The page itself holds the package to its PyTorch model. Here that model and the tokenizer are held
to `transformers`, which reads the same file by code of its own.
"""

import ast
from pathlib import Path
import re
from types import ModuleType

from ane_book.evidence import original
from ane_book.weights import open_source
from hypothesis import example, given, settings
from hypothesis import strategies as st
import jupytext
import pytest
from tokenizers import Tokenizer
import torch

PAGE = Path(__file__).parents[2] / "book" / "one-file.md"
ALLOWED = {
    "coremltools",
    "importlib",
    "itertools",
    "numpy",
    "re",
    "struct",
    "tempfile",
    "torch",
    "unicodedata",
}
LINES = 250
PROMPTS = ("What is the capital of France?", "Écris 3 mots sur l'été")


def code() -> list[str]:
    """The cells that a reader sees, before the exercises."""
    cells = jupytext.read(PAGE).cells
    end = next(i for i, cell in enumerate(cells) if "## Exercises" in cell.source)
    shown = [cell for cell in cells[:end] if cell.cell_type == "code"]
    return [cell.source for cell in shown if "remove-cell" not in cell.metadata.get("tags", [])]


def test_it_is_as_short_as_it_says():
    lines = [line for cell in code() for line in cell.splitlines()]
    said = [int(number) for number in re.findall(r"(\d+) lines", PAGE.read_text("utf-8"))]
    elsewhere = [PAGE.with_name("index.md"), PAGE.parents[1] / "README.md"]
    starts = ("def linear", "def normalize", "def rotate", "class Layer", "class Model")
    model = [line for cell in code() if cell.startswith(starts) for line in cell.splitlines()]
    assert said == [len(lines), len(model)]
    assert len(lines) <= LINES
    assert all(f"{len(lines)} lines" in file.read_text("utf-8") for file in elsewhere)


def test_it_imports_nothing_but_what_runs_the_package():
    found = set()
    for node in ast.walk(ast.parse("\n".join(code()))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert {name.split(".")[0] for name in found - {"mlprogram"}} == ALLOWED


@pytest.fixture(scope="module")
def page():
    """What the page has defined before it converts."""
    cells = code()
    end = next(i for i, cell in enumerate(cells) if "torch.jit.trace" in cell)
    module = ModuleType("one_file")
    exec("\n".join(cells[:end]), vars(module))
    return module


@pytest.fixture(scope="module")
def source(page):
    return open_source(page.weight_file)


@pytest.fixture(scope="module")
def reference(source):
    """The tokenizer as the `tokenizers` library has it."""
    return Tokenizer.from_str(source.tokenizer().json)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example("/\U000f0000/")  # a byte that is in no token, between two that are one
@example(" \x85\x1f")  # white space for Python, and not for the library, after white space
@settings(max_examples=100, deadline=None)
def test_any_text_has_the_tokens_of_the_tokenizers_library(page, reference, text):
    ids = page.tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert page.tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=False)


def test_tokens_are_those_of_transformers(page, source):
    weights = {name: torch.from_numpy(source.tensor(name)).float() for name in source.names()}
    model = original.model(source.config(), weights)
    for prompt in PROMPTS:
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = page.tokenizer.encode(text)
        found = page.generate(page.in_torch, ids, most=6)
        assert found == original.greedy(model, ids, len(found)), prompt
        assert len(found) <= 6
        assert len(found) == 6 or found[-1] == source.tokenizer().eos_token_ids[0]


def test_the_norm_is_that_of_any_size(page):
    """Values so large that squares overflow in half precision, and so small that they vanish."""
    torch.manual_seed(0)
    shape = torch.randn(1, 64, 1, 8)
    for largest in (0.0, 2.0**-10, 2.0**-6, 1.0, 300.0, 60_000.0):
        x = (shape * largest / shape.abs().max()).half()
        exact = x.double() * torch.rsqrt((x.double() ** 2).mean(1, keepdim=True) + 1e-5)
        assert torch.allclose(page.normalize(x, 1, 1e-5).double(), exact, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("prompt", [[], [1] * 257])
def test_a_prompt_that_does_not_fit_is_refused(page, prompt):
    with pytest.raises(AssertionError, match="a prompt of 1 to CONTEXT tokens"):
        page.generate(page.in_torch, prompt)

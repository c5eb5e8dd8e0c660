"""The text side of a bundle: each fault planted in a copy is named, and sound ones are quiet."""

import json
from pathlib import Path
import shutil

from _plant import copied
from _smollm2_tokenizer import wheel_gguf
import ane_book
from ane_book.bundle import Bundle
from ane_book.evidence.text_side import check_text_side
from mlprogram.ane.laws.rule import Remark
import pytest
from tokenizers import Tokenizer, processors

WIDE = (("head_dim", 64), ("vocab_size", 263))
BEGIN, START, END = "<|begin|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def made(tiny_bundle):
    return tiny_bundle("llama", WIDE, head_rows=100)[1]


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """A copy that chats: ids 257 to 259 are its markers, ids 260 to 262 have no token."""
    folder = copied(made, tmp_path)
    write_tokenizer(folder, [BEGIN, START, END])
    says(folder, chat_template=CHATML, eos_token_ids=[256, 259])
    return folder


def write_tokenizer(folder: Path, tokens: list[str], bos: bool = False) -> None:
    """Add special tokens to a copy's tokenizer; bos: have it put the first before each text."""
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(tokens)
    if bos:
        pair = (BEGIN, tokenizer.token_to_id(BEGIN))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[pair]
        )
    tokenizer.save(str(file))
    size(folder, "tokenizer.json")


def size(folder: Path, name: str) -> None:
    """Have the manifest list a changed file's bytes."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][name] = (folder / name).stat().st_size
    file.write_text(json.dumps(manifest))


def says(folder: Path, **fields) -> None:
    """Change what a copy's manifest says of its tokenizer."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["tokenizer"] |= fields
    file.write_text(json.dumps(manifest))


def found(folder: Path, source: Path | None = None) -> dict[str, Remark]:
    return {one.name: one for one in check_text_side(Bundle.open(folder), source)}


SOUND = {"special-in-user-text", "logits-without-token"}


def test_a_sound_copy_has_what_is_true_of_it_alone(folder):
    findings = found(folder)
    assert findings.keys() == SOUND
    assert {one.severity for one in findings.values()} == {"warning"}
    assert "3 of 263 logits have no token (260, 261, 262)" in findings["logits-without-token"].text
    assert f"'{END}'" in findings["special-in-user-text"].text


@pytest.mark.parametrize(
    ("name", "severity", "words", "change"),
    [
        ("template-missing", "warning", "no chat template", {"chat_template": None}),
        ("template-fails", "error", "no users here", {
            "chat_template": "{{ raise_exception('no users here') }}"
        }),
        ("template-drops-user", "error", "user's text", {"chat_template": "<|im_start|>hello"}),
        ("template-no-generation-prompt", "error", "'<|im_start|>assistant'", {
            "chat_template": CHATML.partition("{% if")[0]
        }),
        ("bos-twice", "error", "'<|begin|>' twice", {
            "chat_template": BEGIN + BEGIN + CHATML, "bos_token": BEGIN
        }),
        ("stop-none", "error", "names no stop token", {"eos_token_ids": []}),
        ("stop-unknown", "error", "has the ids 261", {"eos_token_ids": [256, 259, 261]}),
        ("stop-eos", "error", "'<|end|>' (256)", {"eos_token_ids": [259]}),
        ("stop-turn", "error", "'<|im_end|>' (259)", {"eos_token_ids": [256]}),
    ],
)  # fmt: skip
def test_a_fault_in_the_manifest_is_named(folder, name, severity, words, change):
    says(folder, **change)
    finding = found(folder)[name]
    assert finding.severity == severity and words in finding.text
    assert not finding.text.endswith(".") and ("; " in finding.text or ", and " in finding.text)


def test_a_tokenizer_that_does_not_load(folder):
    (folder / "tokenizer.json").write_text("{}")
    size(folder, "tokenizer.json")
    (finding,) = check_text_side(Bundle.open(folder))
    assert (finding.name, finding.severity) == ("tokenizer-fails", "error")


def test_bos_by_the_template_and_by_the_tokenizer(folder):
    write_tokenizer(folder, [], bos=True)
    says(folder, bos_token=BEGIN)
    assert found(folder).keys() == SOUND  # by the tokenizer alone
    says(folder, chat_template=BEGIN + CHATML)
    finding = found(folder)["bos-also-by-tokenizer"]
    assert finding.severity == "warning" and "add_special_tokens=False" in finding.text


def test_tokens_beyond_the_embedding(folder):
    write_tokenizer(folder, [f"<|extra{i}|>" for i in range(5)])
    findings = found(folder)
    finding = findings["vocabulary-beyond-embedding"]
    assert finding.severity == "error"
    assert "2 tokens (263 '<|extra3|>', 264 '<|extra4|>')" in finding.text
    assert "logits-without-token" not in findings


def test_a_template_that_keeps_markers_out_of_contents_is_not_warned_of(folder):
    says(folder, chat_template=CHATML.replace("m.content", "m.content | replace('<|', '')"))
    assert "special-in-user-text" not in found(folder)


class TestSource:
    @pytest.fixture
    def source(self, tiny, tmp_path) -> Path:
        """The files of the weights, to be changed."""
        return Path(shutil.copytree(tiny("llama", **dict(WIDE))[1], tmp_path / "source"))

    def test_a_stop_token_that_the_bundle_lacks(self, folder, source):
        assert "stop-of-source" not in found(folder, source)
        (source / "generation_config.json").write_text('{"eos_token_id": [256, 7]}')
        finding = found(folder, source)["stop-of-source"]
        assert finding.severity == "error" and "stop tokens 7," in finding.text


def test_smollm2_has_no_fault():
    bundle = ane_book.convert("smollm2-135m-instruct", source=str(wheel_gguf()))
    (finding,) = check_text_side(bundle, wheel_gguf())
    assert (finding.name, finding.severity) == ("special-in-user-text", "warning")

"""`ane-book redact`: files, pipes and terminals, whatever is in them."""

import json

from _command import ane_book as command
from _command import refused
from ane_book.runtime import Tagger

TEXT = "Ann Lee, ann@example.org; zażółć 🙂🙂\r\n\tcall\x00 +48 600 100 200, é" * 4


class TestCommand:
    def test_replaces_spans_and_keeps_every_other_byte(self, tagger, tmp_path):
        path = tagger("odd")[1].path
        (file := tmp_path / "a.txt").write_bytes(TEXT.encode())
        done = command("redact", "--model", path, file, "--precision", "fp32")
        expected = Tagger(path, "fp32").redact(TEXT)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected.text.replace("\r\n", "\n")  # read as text by the test
        assert f"{len(expected.spans)} spans, " in done.stderr

    def test_spans_as_json_and_a_dry_run(self, tagger):
        path = tagger("odd")[1].path
        text = TEXT.replace("\r", "")
        words = "redact", "--model", path, "-", "--precision", "fp32"
        done = command(*words, "--json", input=text)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        spans = Tagger(path, "fp32").spans(text)
        assert [(r["label"], r["start"], r["byte_end"], r["text"]) for r in rows] == [
            (s.label, s.start, s.byte_end, text[s.start : s.end]) for s in spans
        ]
        done = command(*words, "--dry-run", input=text)
        first = spans[0]
        assert f"[{first.label}: {text[first.start : first.end]}]" in done.stdout

    def test_an_empty_file_is_empty(self, tagger):
        done = command("redact", "--model", tagger("odd")[1].path, "-")
        assert (done.returncode, done.stdout) == (0, "") and "0 spans" in done.stderr

    def test_bad_input_is_told_in_one_sentence(self, tagger, tiny_bundle, tmp_path):
        path = tagger("odd")[1].path
        (file := tmp_path / "a.txt").write_bytes(b"ab\n\xff")
        assert "a.txt is not UTF-8 at byte 3 (line 2" in refused("redact", "--model", path, file)
        done = command("redact", "--model", path, file, "--errors", "replace", "--json")
        assert done.returncode == 0, done.stderr
        (file := tmp_path / "b.txt").write_bytes(b"ab")
        other = tiny_bundle("llama", kv="state")[1].path
        assert f"`ane-book run {other} PROMPT`" in refused("redact", "--model", other, file)
        assert f"`ane-book redact --model {path} FILE`" in refused("run", path, "Hi")
        assert "No such file" in refused("redact", "--model", path, tmp_path / "none")
        said = refused(
            "convert", "smollm2-135m-instruct", "--source", "random", "--experts", "dense"
        )
        assert "experts goes with mixtures of experts" in said

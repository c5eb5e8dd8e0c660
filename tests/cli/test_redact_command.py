"""`ane-book redact`: files, pipes and terminals, whatever is in them."""

from functools import partial
import json
import os
import re
import signal
import subprocess

from _command import COMMAND, ENVIRONMENT, errors, refused, start
from _command import ane_book as command
from _long import long_but
from _patience import HANGING, until
from _taggers import TEXT, tiny_tagger, write_tagger
from ane_book.cli.redact import _replaced, _rewrite
from ane_book.runtime import Tagger
from ane_book.runtime.tags import decode
from mlprogram import progress
import pytest
from safetensors.numpy import load_file, save_file


class TestCommand:
    def test_replaces_spans_and_keeps_every_other_byte(self, tagger, tmp_path):
        path = tagger("odd")[1].path
        (file := tmp_path / "a.txt").write_bytes(TEXT.encode())
        done = command("redact", "--model", path, file, "--precision", "fp32")
        expected = Tagger(path, "fp32").redact(TEXT)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected.text.replace("\r\n", "\n")  # read as text by the test
        assert f"{len(expected.spans)} spans, " in done.stderr

    def test_spans_as_json(self, tagger):
        path = tagger("odd")[1].path
        text = TEXT.replace("\r", "")
        words = "redact", "--model", path, "-", "--precision", "fp32"
        done = command(*words, "--json", input=text)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        spans = Tagger(path, "fp32").spans(text)
        assert [(r["label"], r["start"], r["byte_end"], r["text"]) for r in rows] == [
            (s.label, s.start, s.byte_end, text[s.start : s.end]) for s in spans
        ]

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


#: What editors, systems and networks leave in texts; the last two are no UTF-8.
FILES = {
    "signature": b"\xef\xbb\xbfAnn Lee\r\nann@example.org\r\n",
    "line ends": b"\r\r\nAnn\n\n\r\x0b\x0c\xc2\x85\xe2\x80\xa8Lee \t ",
    "zeros": b"\x00Ann\x00\x00 Lee\x1b[31m\x07\x7f\x00",
    "marks": "é e\u0301 n\u0303\u0303 \u202eLee\u202c \u200f\u05e9\u05dc\u05d5\u05dd".encode(),
    "emoji": "🙂👩\u200d👩\u200d👧🏽🇵🇱 \U0010ffff\ufffd".encode() * 9,
    "bytes": b"Ann \xff\xfe Lee \x80\xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf \xe2\x82",
    "utf-16": "Ann Lee".encode("utf-16"),
}


class TestBytes:
    @pytest.mark.parametrize("name", long_but(FILES, "signature", "marks", "bytes"))
    def test_outside_of_spans_stay_as_they_are(self, tagger, tmp_path, name):
        path, data = tagger("odd")[1].path, FILES[name]
        (file := tmp_path / "in").write_bytes(data)
        words = "redact", "--model", path, file, "--errors", "replace", "--precision", "fp32"
        assert command(*words, "--out", tmp_path / "out").returncode == 0
        assert command(*words, "--out", tmp_path / "rows", "--json").returncode == 0
        rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
        assert rows  # or nothing was shown
        parts, place = [], 0
        for row in rows:
            parts += [data[place : row["byte_start"]], f"<{row['label'].upper()}>".encode()]
            place = row["byte_end"]
        assert (tmp_path / "out").read_bytes() == b"".join([*parts, data[place:]])
        text = "".join(decode([data], "in", "replace"))
        found = Tagger(path, "fp32").redact(text)  # Python's are the command's
        assert (tmp_path / "out").read_bytes() == found.text.encode("utf-8", "surrogateescape")
        assert [row["text"] for row in rows] == [text[s.start : s.end] for s in found.spans]

    def test_of_no_text_are_refused_before_anything_is_written(self, tagger, tmp_path):
        (file := tmp_path / "a.txt").write_bytes(b"word " * 20_000 + b"\xff")
        said = refused("redact", "--model", tagger("odd")[1].path, file)
        assert "a.txt is not UTF-8 at byte 100,000 (line 1, byte 100,001 of it): 0xff" in said

    def test_of_a_weight_file_or_a_number_of_experts_that_does_not_fit(self, tmp_path):
        """A router with a row more than there are experts."""
        folder = write_tagger(tiny_tagger("odd"), tmp_path / "model")
        tensors = load_file(folder / "model.safetensors")
        (name,) = (name for name in tensors if name.endswith("router.weight"))
        for rows, config in ((6, 5), (6, 6), (4, 5)):
            changed = {name: tensors[name].repeat(2, axis=0)[:rows]}
            save_file(tensors | changed, folder / "model.safetensors")
            fields = json.loads((folder / "config.json").read_text())
            fields["num_local_experts"] = config
            (folder / "config.json").write_text(json.dumps(fields))
            (file := tmp_path / "a.txt").write_text("Ann")
            said = refused("redact", "--model", folder, file)
            assert ("model.layers.0.mlp" in said and f"({rows}, 96)" in said) or config == 6, said


class TestOut:
    def test_may_be_the_file_itself_and_keeps_its_mode_and_its_links(self, tagger, tmp_path):
        path = tagger("odd")[1].path
        (file := tmp_path / "a.txt").write_text(TEXT)
        file.chmod(0o640)
        (link := tmp_path / "link").symlink_to("a.txt")
        done = command("redact", "--model", path, link, "--out", link, "--precision", "fp32")
        assert (done.returncode, done.stdout) == (0, "")
        text = file.read_bytes().decode()
        assert text == Tagger(path, "fp32").redact(TEXT).text != TEXT
        assert file.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "link"]

    def test_that_is_the_input_is_refused(self, tagger, tmp_path):
        (file := tmp_path / "a.txt").write_text(TEXT)
        words = "redact", "--model", "none", file
        with file.open("ab") as output, start(*words, stdout=output) as process:  # FILE >> FILE
            said = process.stderr.read()
        assert process.returncode == 2 and "a.txt is its own output" in said
        assert file.read_bytes().decode() == TEXT

    def test_that_cannot_be_written(self, tagger, tmp_path):
        (file := tmp_path / "a.txt").write_text(TEXT)
        words = "redact", "--model", tagger("odd")[1].path, file, "--out"
        assert f"{tmp_path / 'no' / 'b'}: No such file" in refused(*words, tmp_path / "no" / "b")
        assert f"{tmp_path} is no file" in refused(*words, tmp_path)
        assert f"{os.devnull} is no file" in refused(*words, os.devnull)
        assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]

    @pytest.mark.long
    def test_what_turns_out_to_be_no_text_leaves_nothing(self, tagger, tmp_path):
        words = "redact", "--model", tagger("odd")[1].path, "-", "--out", tmp_path / "out"
        with start(*words) as process:
            process.stdin.buffer.write(b"word\n" * 100 + b"\xc3(")
            process.stdin.close()
            said = process.stderr.read()
        assert "error: stdin is not UTF-8 at byte 500 (line 101, byte 1" in said
        assert process.returncode == 2 and not [*tmp_path.iterdir()]


@pytest.mark.skipif(os.name == "nt", reason="signals, pipes and terminals are POSIX's")
class TestStreams:
    SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

    def test_what_is_settled_comes_before_the_input_ends(self, tagger):
        with start("redact", "--model", tagger("odd")[1].path, "-") as process:
            process.stdin.write("some words in a log\n" * 40)
            process.stdin.flush()
            first = os.read(process.stdout.fileno(), 1)
            process.stdin.close()
            assert first and process.stdout.read().count("\n") > 10
        assert process.wait() == 0

    @pytest.mark.parametrize("number", long_but(SIGNALS, signal.SIGTERM))
    def test_a_signal_to_end_leaves_nothing_half_written(self, tagger, tmp_path, number):
        (out := tmp_path / "out").write_text("as it was")
        words = "redact", "--model", tagger("odd")[1].path, "-", "--out", out
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        heard = partial(signal.signal, number, usual)  # also where nohup runs the tests
        with start(*words, preexec_fn=heard) as process:
            process.stdin.write("some words in a log\n" * 400)
            process.stdin.flush()

            def writes() -> bool:
                assert process.poll() is None
                return any(p.stat().st_size for p in tmp_path.glob("out.*.part"))

            until(writes)
            process.send_signal(number)
            process.wait(timeout=HANGING)
            assert errors(process.stderr.read()) == ""
        assert process.returncode == 128 + number and out.read_text() == "as it was"
        assert [p.name for p in tmp_path.iterdir()] == ["out"]

    @pytest.mark.parametrize(
        ("line", "code", "out"),
        [
            pytest.param('"$@" <&-', 0, b"", marks=pytest.mark.long),
            pytest.param('"$@" < "$FILE" >&-', 0, b"", marks=pytest.mark.long),
            pytest.param('"$@" < "$FILE" >/dev/full', 2, b"", marks=pytest.mark.long),
            ('{ "$@" < "$FILE"; echo $? >&2; } | head -c 1', 0, None),
        ],
    )
    def test_that_are_closed_full_or_left(self, tagger, tmp_path, line, code, out):
        (tmp_path / "a.txt").write_text("word " * 2000)
        words = [*COMMAND, "redact", "--model", tagger("odd")[1].path, "-"]
        environment = os.environ | ENVIRONMENT | {"FILE": str(tmp_path / "a.txt")}
        done = subprocess.run(
            ["sh", "-c", line, "sh", *map(str, words)], capture_output=True, env=environment
        )
        assert done.returncode == code and b"Traceback" not in done.stderr
        assert out is None or done.stdout == out
        if out is None:
            assert errors(done.stderr.decode()) == "141\n" and len(done.stdout) == 1
        if code:
            said = "error: standard output: No space left on device\n"
            assert errors(done.stderr.decode()) == said

    def test_a_long_text_tells_how_far_it_is(self, tagger, tmp_path, monkeypatch, capsys):
        """A file of how much; of a pipe nobody knows."""
        monkeypatch.setattr(progress._LogLines, "PAUSE", 0.0)
        tagging, data = Tagger(tagger("odd")[1]), b"some words in a log\n" * 60
        ours, theirs = os.pipe()
        os.write(theirs, data)
        os.close(theirs)
        (file := tmp_path / "a.txt").write_bytes(data)
        capsys.readouterr()  # of what made the bundle
        for source, of in ((file.open("rb"), " of 1,200"), (os.fdopen(ours, "rb"), "")):
            with source, (tmp_path / "out").open("wb") as target:
                _rewrite(tagging, source, "a text", target, "strict", _replaced)
            said = capsys.readouterr().err
            far = re.findall(rf"^redacting \(([\d,]+){of}\)$", said, re.M)
            far = [int(number.replace(",", "")) for number in far]
            assert len(far) > 9 and far == sorted(far) and far[-1] > 1000
            assert len(far) == said.count("\n") and (of == "" or 1200 not in far)

    def test_a_folder_is_no_text(self, tagger, tmp_path):
        said = refused("redact", "--model", tagger("odd")[1].path, tmp_path)
        assert said == f"error: {tmp_path}: Is a directory"

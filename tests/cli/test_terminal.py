"""`ane-book` as a process: streams that are closed, full or a terminal, Ctrl-C, exit codes."""

import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys

from _command import COMMAND, ane_book, chatty_copy, errors, refused, start
from _long import long_but
from _patience import HANGING
from _terminal import Terminal, attend
import ane_book as library
from mlprogram.terminal import _refuse
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals, pipes and terminals are POSIX's")


def shell(command: str, *arguments) -> subprocess.CompletedProcess:
    """A line of sh in which $@ is `ane-book` with these arguments."""
    line = ["sh", "-c", command, "sh", *COMMAND, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(line, capture_output=True, timeout=HANGING, env=environment)


NO_TEXT = ['"$@" "$(printf "a\\377b")"', 'printf "a\\377b" | "$@" -']


class TestStreams:
    @pytest.mark.parametrize(
        ("command", "code", "said"),
        [
            ('"$@" >&-', 0, b""),
            ('"$@" <&- >&- 2>&-', 0, b""),
            ('"$@" >/dev/full', 2, b"error: standard output: No space left on device\n"),
            ('PYTHONUNBUFFERED=1 "$@" >/dev/full', 2, b"error: standard output: No space left"),
            ('{ "$@"; echo $? >&2; } | true', 0, b"141\n"),
            ('{ PYTHONUNBUFFERED=1 "$@"; echo $? >&2; } | true', 0, b"141\n"),
            *long_but([('"$@" 2>&-', 0, b""), ('"$@" 2>/dev/full', 0, b""),
                       ('"$@" >/dev/full 2>/dev/full', 2, b"")]),
        ],
    )  # fmt: skip
    def test_what_is_closed_full_or_left(self, command, code, said):
        if "full" in command and not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        done = shell(command, "models")
        assert done.returncode == code
        assert done.stderr.startswith(said) and (said or not done.stderr)
        assert done.stdout.startswith(
            b"zaya-small" if command in ('"$@" 2>&-', '"$@" 2>/dev/full') else b""
        )

    @pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full"])
    def test_an_error_that_nobody_hears_is_still_one(self, stream):
        assert shell(f'"$@" {stream}', "cache", "delete", "nothing").returncode == 2

    def test_a_reader_that_has_left_ends_the_answer(self, bundle):
        command = '{ "$@"; echo $? >&2; } | true'
        done = shell(command, "run", bundle, "Hi", "--max-tokens", "25")
        assert done.stderr.endswith(b"141\n") and done.stderr.count(b"\n") == 1

    @pytest.mark.parametrize("command", long_but(NO_TEXT, NO_TEXT[0]))
    def test_what_is_no_text(self, bundle, command):
        done = shell(command, "run", bundle)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1
        assert b"error: the prompt is not valid text at character 1" in done.stderr

    @pytest.mark.long
    def test_a_line_that_is_no_text_does_not_end_a_conversation(self, chatty):
        done = shell('printf "a\\377b\nHi\n" | "$@"', "chat", chatty, "--max-tokens", "3")
        assert done.returncode == 0 and done.stdout
        assert b"error: the prompt is not valid text" in done.stderr


class TestFiles:
    def test_what_the_system_refuses_is_told_in_one_line(self, tmp_path):
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        for command in (["run", loop, "Hi"], ["inspect", loop], ["convert", "x" * 300]):
            refused(*command)

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for command in (["run", tmp_path / "pipe", "Hi"], ["inspect", tmp_path / "pipe"]):
            refused(*command)

    @pytest.mark.parametrize("command", [["run", "Hi"], ["chat"]])
    def test_a_package_is_no_model(self, bundle, command):
        message = refused(command[0], bundle / "head.mlpackage", *command[1:])
        assert "head.mlpackage: a package" in message and "mlprogram run" in message


class TestEntry:
    def test_version_and_module(self):
        done = ane_book("--version")
        assert (done.returncode, done.stdout) == (0, f"ane-book {library.__version__}\n")

    def test_an_error_of_several_lines_is_told_in_one(self, capsys):
        assert _refuse("no weights; tried:\n  here: no\n  there: no\nto get them, run x") == 2
        told = "error: no weights; tried: here: no; there: no; to get them, run x\n"
        assert capsys.readouterr().err == told

    def test_completes_models(self):
        words = {"_ANE_BOOK_COMPLETE": "complete_bash", "COMP_WORDS": "ane-book run smol"}
        environment = os.environ | words | {"COMP_CWORD": "2"}
        done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment)
        assert done.stdout.split() == ["smollm2-135m-instruct"]

    def test_a_command_that_is_gone_completes_to_nothing(self):
        words = {"_ANE_BOOK_COMPLETE": "complete_bash", "COMP_WORDS": "ane-book report smol"}
        environment = os.environ | words | {"COMP_CWORD": "2"}
        done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == done.stderr == ""

    def test_names_are_completed_before_they_are_imported(self):
        code = "import ane_book; print(*dir(ane_book))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert set(library.__all__) | {"__version__"} <= set(done.stdout.split())


#: The command in a process that sends itself a signal when it begins to lower blocks.
SIGNALLED = """
import os
from ane_book.__main__ import main
from ane_book.conversion import build
lower = build.lower_blocks
build.lower_blocks = lambda *given: os.kill(os.getpid(), {}) or lower(*given)
main()
"""


class TestInterrupt:
    def test_while_everything_is_imported(self, tmp_path):
        (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run([*COMMAND, "models"], capture_output=True, env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")

    def test_while_a_line_is_waited_for(self, chatty):
        with start("chat", chatty, "--max-tokens", "1", preexec_fn=attend) as process:
            process.stdin.write("Hi\n")
            process.stdin.flush()
            assert process.stdout.readline()  # it answered, and now waits for the next line
            process.send_signal(signal.SIGINT)
            process.wait(timeout=HANGING)
            assert process.stderr.read() == ""
        assert process.returncode == 130

    @pytest.mark.parametrize(
        "number", long_but([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGINT)
    )
    def test_a_conversion_says_what_it_leaves(self, tiny, tmp_path, monkeypatch, number):
        """Interrupted when embedding and tokenizer are written, and no package is."""
        monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
        out, partial = tmp_path / "b", tmp_path / "b.partial"
        command = ["convert", tiny("llama")[1], "--out", out, "--context", "32", "--prefill", "8"]
        code = [sys.executable, "-c", SIGNALLED.format(int(number))]
        done = subprocess.run([*code, *command], capture_output=True, text=True, preexec_fn=attend)
        assert (done.returncode, done.stdout) == (128 + number, "")
        assert errors(done.stderr) == (
            f"interrupted: {partial} keeps the files and packages that are finished; "
            "repeat the command to go on, or delete that folder\n"
        )
        written = (partial / "embedding.npy").stat().st_ino
        assert ane_book(*command).returncode == 0 and not partial.exists()
        assert (out / "embedding.npy").stat().st_ino == written


def wordy(bundle: Path) -> Path:
    """The bundle, with 100 characters to a byte: its answer fills a terminal that nobody reads, and
    waits there for Ctrl-C, however late that comes."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    file = bundle / manifest["tokenizer"]["file"]
    tokenizer = json.loads(file.read_text())
    longer = {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 100}
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [tokenizer["decoder"], longer]}
    file.write_text(json.dumps(tokenizer))
    manifest["files"][file.name] = file.stat().st_size
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


class TestTerminal:
    def test_ctrl_c_ends_an_answer_and_not_the_program(self, tiny_bundle, tmp_path):
        changes = (("max_position_embeddings", 8192),)
        long = tiny_bundle("llama", changes, kv="state", context=8192)[1].path
        chatty = wordy(chatty_copy(long, tmp_path, eos_token_ids=[]))
        with Terminal("chat", chatty, "--max-tokens", "8000") as terminal:
            terminal.until("/quit ends.*> ")
            terminal.type("Hi\n")
            terminal.until("Hi\r\n.{20}")
            terminal.type("\x03")
            terminal.until(r"\r\n> ")
            terminal.type("/stats\n")
            stats = terminal.until(r"/stats\r\n(.*)> ")[1]
            assert re.fullmatch(r"1 answer, \d+ of 8192 tokens held\r\n", stats), "not stopped"
            terminal.type("/quit\n")
            assert terminal.process.wait(timeout=HANGING) == 0

    def test_ctrl_c_at_the_prompt_clears_the_line(self, chatty):
        with Terminal("chat", chatty, "--max-tokens", "2") as terminal:
            terminal.until("> ")
            terminal.type("Hi\n")
            terminal.until("Hi\r\n.*\r\n> ")
            for typed in ("half a line", "", ""):
                terminal.type(typed)
                terminal.until(typed)
                assert terminal.interrupt("(.*)> ")[1] == "^C\r\n"
            terminal.type("/stats\n")
            terminal.until("1 answer, .*> ")
            terminal.type("\x04")  # the end of input
            assert terminal.process.wait(timeout=HANGING) == 0

    @pytest.mark.long
    def test_a_terminal_gets_a_bar(self, tiny, tmp_path):
        out = tmp_path / "made"
        command = "convert", tiny("llama")[1], "--out", out, "--context", "32", "--prefill", "8"
        with Terminal(*command, stdout=subprocess.PIPE, text=True) as terminal:
            shown = terminal.rest()
            assert terminal.process.communicate(timeout=HANGING)[0] == f"{out}\n"
        assert terminal.process.returncode == 0 and "━" in shown and "%" in shown

"""What `anebook` says to whoever types it, and how it takes what makes no sense."""

import subprocess

from _anebook import PIPE
import pytest

pytest_plugins = ["_talker"]


def said(anebook, *words, typed=""):
    command = [*anebook, *map(str, words)]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("words", ["--help", "run --help", "chat x -h", "serve -h"])
def test_help_is_on_every_command(anebook, words):
    done = said(anebook, *words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: anebook run BUNDLE PROMPT")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--port", "99999"), "--port takes a number from 0 to 65535, not 99999"),
        (("--port",), "the value of --port is missing"),
        (("--executor", "no-such-command"), "run `no-such-command` to see why"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(anebook, folder, options, sentence):
    done = said(anebook, "run", folder, "Hi", *options)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_tokens_are_the_tokenizers(anebook, folder, session):
    ids = session.tokenizer.encode("Hello", add_special_tokens=False).ids
    assert said(anebook, "tokens", folder, "Hello").stdout == ",".join(map(str, ids)) + "\n"


def test_a_conversation_outlives_a_question_that_does_not_fit(anebook, folder, session):
    """Answers come line by line, also where nobody looks: a newline comes with its own answer."""
    done = said(
        anebook, "chat", folder, "--executor", PIPE, "--max-tokens", 4,
        typed=f"Hello\n{'x ' * 400}\nAgain\n/reset\nHello\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hello = [{"role": "user", "content": "Hello"}]
    first = session.generate(hello, max_tokens=4).text
    then = [*hello, {"role": "assistant", "content": first}, {"role": "user", "content": "Again"}]
    again = session.generate(then, max_tokens=4, reuse_cache=True).text
    assert done.stdout == f"{first}\n{again}\n{first}\n"
    assert done.stderr.count("; or begin anew with /reset") == 1

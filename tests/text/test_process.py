"""Tokenizer and template in their own process: what the libraries give, limits, one clean error."""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading

from _patience import HANGING, until
from _tokenizer_kinds import CHATML, MESSAGES, TEXT, base_tokenizers
from ane_book.errors import InvalidInput
from ane_book.text import process
from ane_book.text.chat import as_messages
from ane_book.text.process import TextProcess
from ane_book.text.template import render
import pytest
from tokenizers import Tokenizer

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no such limits")


LOOP = "{% for a in range(99999) %}"


@pytest.fixture
def words(monkeypatch):
    monkeypatch.setattr(process, "SECONDS", 1)
    monkeypatch.setattr(process, "MEMORY", 1 << 30)
    return TextProcess()


def saved(folder: Path, **fields) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(base_tokenizers()[0] | fields))
    return path


def test_a_process_that_was_started_ahead_is_the_next_ones(tmp_path):
    process.start_ahead()
    (ahead,) = process._ahead
    first, second = TextProcess(), TextProcess()
    assert first._process is ahead is not second._process and not process._ahead
    first.load(saved(tmp_path))
    assert first.encode(TEXT, True)


class TestSame:
    def test_as_the_libraries_in_this_process(self, words, tmp_path):
        path = saved(tmp_path)
        words.load(path)
        here = Tokenizer.from_file(str(path))
        ids = words.encode(TEXT, True)
        assert ids == here.encode(TEXT).ids and len(ids) > 50
        assert words.decode_batch([ids, ids[:5], []]) == here.decode_batch([ids, ids[:5], []])
        assert words.token_to_id("<|end|>") == here.token_to_id("<|end|>") is not None
        assert words.token_to_id("not a token") is None
        assert words.render(CHATML, MESSAGES) == render(CHATML, MESSAGES)

    @pytest.mark.skipif(sys.platform == "darwin", reason="names of files are UTF-8 there")
    def test_a_folder_may_have_any_name(self, words, tmp_path):
        folder = tmp_path / os.fsdecode(b"bad\xff")
        folder.mkdir()
        words.load(saved(tmp_path).rename(folder / "tokenizer.json"))
        assert words.encode(TEXT, True)

    def test_settings_to_cut_and_fill_are_off(self, words, tmp_path):
        tokenizer = Tokenizer.from_file(str(saved(tmp_path)))
        whole = tokenizer.encode(TEXT).ids
        tokenizer.enable_truncation(16)
        tokenizer.enable_padding(length=200)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        words.load(tmp_path / "tokenizer.json")
        assert words.encode(TEXT, True) == whole

    def test_a_text_is_cut_between_what_is_put_around_it(self, words, tmp_path):
        around = {"type": "TemplateProcessing", "pair": [], "special_tokens": {
            "<|end|>": {"id": "<|end|>", "ids": [256], "tokens": ["<|end|>"]}},
            "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "<|end|>", "type_id": 0}}]}  # fmt: skip
        words.load(saved(tmp_path, post_processor=around))
        whole = words.encode(TEXT, True)
        assert whole[0] == whole[-1] == 256 and len(whole) > 50
        assert words.encode(TEXT, True, most=20) == [*whole[:19], 256]
        assert words.encode(TEXT, True, most=2) == [256, 256]
        assert words.encode(TEXT, True, most=len(whole)) == whole
        assert words.encode(TEXT, True) == whole  # no setting is left behind

    def test_threads_get_their_own_answers(self, words, tmp_path):
        words.load(saved(tmp_path))
        wrong = []

        def ask(text: str) -> None:
            for _ in range(50):
                if words.decode_batch([words.encode(text, False)]) != [text]:
                    wrong.append(text)

        threads = [threading.Thread(target=ask, args=(text * 20,)) for text in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_message_of_lists_without_end():
    deep = []
    for _ in range(100_000):  # Python 3.13 takes 5,000 for plain
        deep = [deep]
    with pytest.raises(InvalidInput, match="message 0 is not plain JSON"):
        as_messages([{"role": "user", "content": deep}])


@POSIX
class TestLimits:
    @pytest.mark.parametrize(
        ("template", "message"),
        [
            pytest.param(f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}", "template took more than 1 s",
                         marks=pytest.mark.long),
            ("{{ 9 ** (9 ** 9) }}", "template took more than 1 s"),
            ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
            ("{{ messages[0].content * 10 ** 7 }}", "template gives 90,000,000 characters"),
            ("{{ 'a\nb' | indent(10 ** 10) }}", "MemoryError"),
            ("{{ '%10000000000d' % 1 }}", "chat template"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
            ("{{ 'a'.encode('utf-99') }}", "LookupError"),
            ("{{ raise_exception('no' * 10000) }}", "refuses these messages: nono"),
        ],
    )  # fmt: skip
    def test_a_template_that_does_not_end_or_breaks(self, words, template, message):
        with pytest.raises(InvalidInput, match=message) as caught:
            words.render(template, MESSAGES)
        assert len(str(caught.value)) < 700
        assert words.render("{{ 1 + 1 }}", MESSAGES) == "2"  # the next call works

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}},
             "tokenizer"),
            ({"normalizer": {"type": "Sequence", "normalizers":
                [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 99}] * 9}},
             "tokenizer (broke down|took more)"),
            ({"post_processor": {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                                 "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 99_999}},
             "tokenizer"),
        ],
        ids=["expression", "replacements", "repetitions"],
    )  # fmt: skip
    def test_a_tokenizer_that_does_not_end_or_breaks(self, words, tmp_path, fields, message):
        words.load(saved(tmp_path, **fields))
        with pytest.raises(InvalidInput, match=message):
            words.encode("a" * 400 + "b", True)
        words.load(saved(tmp_path))
        assert len(words.encode("b", True)) == 1

    def test_a_panic_in_rust(self, words, tmp_path):
        path = saved(tmp_path, pre_tokenizer={"type": "FixedLength", "length": 0})
        with pytest.raises(InvalidInput, match="tokenizer"):
            words.load(path)
            words.encode("ab", True)

    def test_what_is_no_file(self, words, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path, tmp_path / "nothing", tmp_path / "pipe"):
            with pytest.raises(InvalidInput, match="no such file"):
                words.load(path)


@POSIX
class TestProcess:
    def test_it_comes_back_after_its_end(self, words, tmp_path):
        words.load(saved(tmp_path))
        before = words.encode("abc", True)
        words._process.send_signal(signal.SIGINT)  # Ctrl-C reaches the whole group
        assert words.encode("abc", True) == before
        words._process.kill()
        words._process.wait()
        assert words.encode("abc", True) == before

    def test_a_fork_has_its_own(self, words, tmp_path):
        words.load(saved(tmp_path))
        ids = words.encode("abc", True)
        child = os.fork()
        if child == 0:
            os._exit(0 if words.encode("abc", True) == ids else 1)
        answers = [words.encode("abc", True) for _ in range(20)]
        assert os.waitpid(child, 0)[1] == 0
        assert answers == [ids] * 20

    def test_a_fork_while_another_thread_waits_for_an_answer(self, words):
        asking = threading.Thread(target=words.render, args=("{{ 'a' * 10 ** 6 }}" * 3, MESSAGES))
        asking.start()
        until(lambda: words._lock.locked() or not asking.is_alive())
        child = os.fork()
        if child == 0:
            signal.alarm(int(HANGING))  # rather than for ever
            os._exit(0 if words.render("b", MESSAGES) == "b" else 1)
        asking.join()
        assert os.waitpid(child, 0)[1] == 0
        assert words.render("c", MESSAGES) == "c"

    def test_where_the_system_refuses_the_limit_of_memory(self):
        # As a Mac does; here since a smaller one is there already.
        code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 30, 1 << 30));"
        code += "from ane_book.text.worker import limit; limit(2 << 30)"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_current_folder_is_gone(self, tmp_path):
        (tmp_path / "gone").mkdir()
        code = "import os; os.rmdir(os.getcwd()); from ane_book.text.process import TextProcess;"
        code += "assert TextProcess().render('b', []) == 'b'"
        path = {"PYTHONPATH": str(Path(process.__file__).parents[2])}
        subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=tmp_path / "gone", env=os.environ | path
        )

    def test_an_answer_that_nobody_waited_for_is_not_the_next_ones(self, words, tmp_path):
        words.load(saved(tmp_path))

        def interrupt(*_):
            raise KeyboardInterrupt

        handler = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(KeyboardInterrupt):
                words.render("{% for a in range(99999) %}{{ a }}{% endfor %}" * 99, MESSAGES)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        assert words.encode("a", True) != [] and words.render("b", MESSAGES) == "b"

    def test_it_ends_with_its_owner(self, words):
        process = words._process
        words.render("a", MESSAGES)
        del words._process
        words._stop()
        assert process.returncode == -signal.SIGKILL and process.stdin.closed

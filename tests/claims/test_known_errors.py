"""The index of errors: whole, sourced, and found by what people paste."""

import json
import re

from _command import ane_book
from ane_book.claims import known_errors
from ane_book.errors import InvalidInput
from ane_book.evidence.mac.verdict import MESSAGES
import pytest

ENTRY = """
[[error]]
id = "one"
messages = ["something went wrong"]
printed_by = "Core ML"
means = "It failed."
do = "Try again."
sure = "reported"
sources = ["https://github.com/owner/name/issues/1"]
"""


class TestIndex:
    def test_each_message_is_answered_by_its_own_entry_first(self):
        for entry in known_errors.load().values():
            for message in entry.messages:
                assert len(message) >= 8, (entry.id, message)
                assert known_errors.explain(message)[0] is entry, (entry.id, message)

    def test_each_entry_names_public_threads(self):
        for entry in known_errors.load().values():
            assert all(re.fullmatch(r"https://\S+", source) for source in entry.sources), entry.id

    def test_what_residency_hears_of_a_compiler_has_an_entry(self):
        """Each pattern of MESSAGES is met by the message of some entry."""
        spoken = [text for entry in known_errors.load().values() for text in entry.messages]
        silent = [one for one in MESSAGES if not any(re.search(one, text) for text in spoken)]
        assert silent == []


class TestExplain:
    def test_a_pasted_log_with_paths_line_breaks_and_noise_around_is_understood(self):
        log = """2026-11-03 10:22:31.115 App[812:99] [espresso] /private/var/x/model.mlmodelc
          E5RT: ANECCompile()
             failed 0x1f; retry"""
        assert known_errors.explain(log)[0].id == "compiler-failed"

    def test_what_nobody_reported_has_no_answer(self):
        assert known_errors.explain("the kettle is on") == []


@pytest.mark.parametrize(
    "text, said",
    [
        (ENTRY + ENTRY, "'one' is there twice"),
        (ENTRY.replace('do = "Try again."', ""), "one: missing or unknown: do"),
        (ENTRY.replace('"reported"', '"certain"'), "one: it needs"),
    ],
)
def test_an_entry_that_is_not_whole_is_refused(tmp_path, text, said):
    path = tmp_path / "errors.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=said):
        known_errors.load(path)


class TestCommand:
    def test_it_answers_what_was_pasted_or_piped(self):
        assert "compiler-failed" in ane_book("explain", "ANECCompile() FAILED").stdout
        piped = ane_book("explain", "-", "--json", input="x\nANECCompile() FAILED\ny")
        assert json.loads(piped.stdout)[0]["id"] == "compiler-failed"

    def test_exit_codes_tell_what_is_not_known_from_what_cannot_be_asked(self):
        unknown = ane_book("explain", "the kettle is on")
        assert unknown.returncode == 1 and "has nothing like this" in unknown.stdout
        empty = ane_book("explain", " ")
        assert empty.returncode == 2 and "nothing to explain" in empty.stderr

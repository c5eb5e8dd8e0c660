"""The texts that research/train makes: templates read right, spans where the values are."""

from importlib.util import find_spec
from random import Random

from ane_book.models.privacy_filter import KINDS, LABELS
import pytest
from texts.templates import _parse, slots, templates
from texts.tokens import IGNORED, Rows, _without_a_half, labels_of, train_tokenizer
from texts.values import PRIVATE, PUBLIC

LANGUAGES = ("en", "de", "fr", "es", "it", "nl", "pt")


def names(labels: list[int]) -> list[str]:
    return ["-" if number == IGNORED else LABELS[number] for number in labels]


class TestTemplates:
    @pytest.mark.parametrize("language", LANGUAGES)
    def test_have_slots_that_there_are(self, language):
        trained, held_out = templates(language)
        assert len(trained) > 25 and len(held_out) >= 4
        for nodes in trained + held_out:
            assert slots(nodes) <= PRIVATE.keys() | PUBLIC.keys()
        assert not [nodes for nodes in held_out if nodes in trained]

    def test_of_choices_in_choices(self):
        assert _parse("a [b|c [d|]] {first2}|e") == [
            "a ", [["b"], ["c ", [["d"], [""]], ""]], " ", ("first2",), "|", "e",
        ]  # fmt: skip

    @pytest.mark.parametrize("line", ["[a", "a]"])
    def test_that_do_not_close(self, line):
        with pytest.raises(ValueError, match=r"a \] "):
            _parse(line)

    def test_all_kinds_are_there(self):
        assert {label for label, _ in PRIVATE.values()} == set(KINDS)


class TestLabels:
    def test_of_tokens_that_a_span_touches(self):
        places = [(0, 2), (2, 6), (6, 9), (9, 10), (10, 14)]
        spans = [(3, 9, "private_person"), (10, 14, "secret")]
        assert names(labels_of(places, spans)) == [
            "O", "B-private_person", "E-private_person", "O", "S-secret",
        ]  # fmt: skip

    def test_a_span_that_is_cut_does_not_count(self):
        cut = labels_of([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 3, "secret")])
        assert names(_without_a_half(cut[1:], "IE", "ES")) == ["-", "-", "O", "O"]
        ends = labels_of([(0, 1), (1, 2), (2, 3)], [(1, 3, "secret")])
        kept = _without_a_half(ends[:2][::-1], "BI", "BS")[::-1]
        assert names(kept) == ["O", "-"]
        assert names(_without_a_half(ends, "IE", "ES")) == ["O", "B-secret", "E-secret"]


@pytest.mark.skipif(find_spec("faker") is None, reason="`make train` installs faker")
class TestDocuments:
    def test_spans_are_the_values(self):
        from texts.documents import document, joined

        kinds = set()
        for i in range(300):
            pieces = document(Random(i), i % 3 == 1, i % 3 == 2)
            text, spans = joined(pieces)
            assert [text[a:b] for a, b, _ in spans] == [
                part.strip() for part, label in pieces if label and part.strip()
            ]
            kinds.update(label for *_, label in spans)
            assert joined(document(Random(i), i % 3 == 1, i % 3 == 2)) == (text, spans)
        assert kinds == set(KINDS)

    def test_rows_depend_on_their_number_alone(self):
        rows = Rows(train_tokenizer(50, 400, 0), 4, 64, 0)
        first = rows.batch(3)
        rows.batch(4)
        for a, b in zip(first, rows.batch(3), strict=True):
            assert (a == b).all()
        ids, labels, mask = first
        assert ids.max() < 400 and (labels[mask == 0] == IGNORED).all() and mask.mean() > 0.5

"""Style sheets are cut to what pages use, and to no less (book/_ext/light_site.py)."""

import light_site
import pytest

KEPT = [
    "a{color:red}",
    ".used{x:y}",
    "a.used>b:hover{x:y}",
    ".used:not(.gone){x:y}",
    ":is(.gone,.used) p{x:y}",
    '[class*="gone"]{x:y}',
    '.used::before{content:"}.gone{"}',
    ".used{background:url(\"data:image/svg+xml,<path d='M(0)'/>;{\")}",
    ".used{background:url(data:image/png;base64,AA==)}",
    "@media (min-width:1px){.used{x:y}}",
    "@font-face{font-family:X;src:url(x.woff)}",
    "@keyframes gone{from{x:y}to{x:z}}",
    '@charset "UTF-8";',
    ".used\\:x{x:y}",
    ":root{--x:.gone}",
    "a{width:.5em;margin:0}",
]
LOST = {
    ".gone{x:y}": "",
    ".used .gone{x:y}": "",
    ".gone,.used{x:y}": ".used{x:y}",
    ".used,:is(b,i).gone,.used b{x:y}": ".used,.used b{x:y}",
    "@media print{.gone{x:y}}": "",
    "@media print{.gone{x:y}@media x{.gone{x:y}}.used{x:y}}": "@media print{.used{x:y}}",
    "/* a {note} */.used{x:y}": ".used{x:y}",
}


class TestTrimmed:
    @pytest.mark.parametrize("css", KEPT)
    def test_keeps_what_may_be_needed(self, css):
        assert light_site.trimmed(css, {"used"}) == css
        assert light_site.trimmed(f".gone{{x:y}}{css}.gone{{x:y}}", {"used"}) == css

    @pytest.mark.parametrize("css", LOST)
    def test_loses_what_no_page_has(self, css):
        assert light_site.trimmed(css, {"used"}) == LOST[css]

    def test_keeps_notices_of_licences(self):
        assert light_site.trimmed("/*! MIT */.gone{x:y}", set()) == "/*! MIT */\n"

    def test_twice_is_once(self):
        once = light_site.trimmed("/*! MIT */" + "".join([*KEPT, *LOST]), {"used"})
        assert light_site.trimmed(once, {"used"}) == once

    def test_words_are_of_tags_and_scripts(self, tmp_path):
        (tmp_path / "_static").mkdir()
        (tmp_path / "_static" / "x.js").write_text("e.classList.add('from-script')")
        (tmp_path / "x.html").write_text('<p class="in-tag other">in text</p>')
        words = light_site.words_of(tmp_path)
        assert {"in-tag", "other", "from-script"} <= words and "text" not in words

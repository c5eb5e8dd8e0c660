"""The chat page in Chromium: against a server that says what a test wants it to say, and ours."""

from _chat_peer import Peer, chunk, usage
from _chromium import DESK, PHONE, axe_violations, look, needs_chromium, visit
from _patience import HANGING
from _serving import served, serving
from ane_book.runtime import Session
from ane_serve.page import add_page
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.testclient import TestClient
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WHOLE = [chunk("Four"), chunk("."), chunk(finish="stop"), usage(9, 3)]
ENDLESS = [chunk("One. "), *[step for _ in range(400) for step in (0.02, chunk("and "))]]
QUESTION = "What is two and two?"
SPEECH = "It is so. It was not! Is it? yes"

#: [who, what, facts] of each message on the page.
MESSAGES = """
  return [...document.querySelectorAll("article")].map(article => [
    article.querySelector("h2").innerText, article.querySelector(".text").innerText.trim(),
    article.querySelector(".facts")?.firstChild.textContent ?? ""]);
"""
FIND = "const $ = (id) => document.getElementById(id); return "
#: Counts how often the live region changes.
WATCH = """
  window.changes = 0;
  new MutationObserver(list => { window.changes += list.length; }).observe(
    document.getElementById("spoken"), { childList: true, subtree: true, characterData: true });
"""


class Chat:
    """The page as its reader has it before them."""

    def __init__(self, browser, peer: Peer, url: str):
        self.browser, self.peer, self.url = browser, peer, url

    def run(self, script: str, *arguments):
        return self.browser.execute_script(script, *arguments)

    def until(self, script: str):
        wait = WebDriverWait(self.browser, HANGING, poll_frequency=0.02)
        return wait.until(lambda driver: driver.execute_script(FIND + script), script)

    def open(self) -> None:
        visit(self.browser, self.url)
        if self.run("const kept = sessionStorage.length; sessionStorage.clear(); return kept"):
            self.browser.get(self.url)  # without an earlier test's key
        self.until("$('model').length || $('error').textContent")

    def find(self, name: str):
        return self.browser.find_element("id", name)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.browser.switch_to.active_element.send_keys(*keys)

    def focus(self) -> str:
        return self.run("return document.activeElement.id || document.activeElement.innerText")

    def ask(self, text: str, script: list | None = None) -> None:
        """Send a message and wait until its answer has ended."""
        self.peer.script = WHOLE if script is None else script
        self.find("box").send_keys(text, Keys.ENTER)
        self.until("$('stop').disabled")

    def start(self) -> None:
        """Ask for an answer without end and see it begin."""
        self.peer.script = ENDLESS
        self.find("box").send_keys(QUESTION, Keys.ENTER)
        self.until("[...document.querySelectorAll('.text')].at(-1)?.innerText.includes('and')")

    def error(self) -> str:
        return self.run("return document.getElementById('error').innerText")

    def messages(self) -> list[list[str]]:
        return self.run(MESSAGES)

    def spoken(self) -> list[str]:
        return self.run("return [...document.querySelectorAll('#spoken p')].map(p => p.innerText)")

    def console(self) -> list[str]:
        entries = self.browser.get_log("browser")
        return [entry["message"] for entry in entries if entry["source"] != "network"]


@pytest.fixture(scope="module")
def other():
    peer = Peer()
    with served(peer.app) as url:
        yield peer, url


@pytest.fixture
def chat(browser, other):
    peer, url = other
    peer.reset()
    look(browser, DESK)
    chat = Chat(browser, peer, url)
    chat.open()
    yield chat
    assert chat.console() == []


@needs_chromium
class TestAnAnswer:
    def test_ends_with_what_the_server_says_of_it(self, chat):
        """Its own speeds; that it was cut; and no error where there is no text."""
        chat.ask(QUESTION, [*WHOLE[:-1], usage(9, 3, decode_tps=24.13, prefill_tps=80.0)])
        (_, asked, _), (who, text, facts) = chat.messages()
        assert (asked, who, text) == (QUESTION, "tiny", "Four.")
        assert facts.startswith("3 tokens, 24.1 tokens/s, first after 0.")
        assert facts.endswith(" s, prompt of 9, read at 80.0 tokens/s")
        chat.ask(QUESTION, [chunk("Fo"), chunk(finish="length"), usage(9, 1)])
        assert chat.messages()[3][2].endswith("cut at the most tokens that it may have")
        chat.ask(QUESTION, [chunk(finish="stop"), usage(9, 1)])
        assert chat.messages()[5][1:] == ["", "1 token, prompt of 9"] and chat.error() == ""

    def test_arrives_in_pieces_of_any_size(self, chat):
        """Of events too: a line may end in one packet and begin in another, in either newline."""
        event = 'data: {"choices":[{"delta":{"content":"Grüße 🍎"},"finish_reason":null}]}\r\n\r\n'
        pieces = [piece for letter in event.encode() for piece in (bytes([letter]), 0.001)]
        chat.ask(QUESTION, [": waiting\n\n", *pieces, chunk(finish="stop")])
        assert chat.messages()[1][1] == "Grüße 🍎"

    def test_shows_code_apart(self, chat):
        code = chunk("Run:\n``"), chunk("`sh\nls -l\n```"), chunk("\nEnd.")
        chat.ask(QUESTION, [*code, *WHOLE[2:]])
        parts = "return [...document.querySelectorAll('.assistant .text > *')]"
        shown = chat.run(f"{parts}.map(part => [part.tagName, part.innerText])")
        assert shown == [["P", "Run:"], ["PRE", "ls -l"], ["P", "End."]]

    def test_a_conversation_is_sent_whole(self, chat):
        chat.find("settings").click()
        chat.find("system").send_keys("Be brief.")
        chat.find("temperature").send_keys(Keys.ARROW_RIGHT * 3)
        chat.find("most").clear()
        chat.find("most").send_keys("64")
        chat.run("document.getElementById('model').value = 'other'")
        chat.ask("one")
        chat.ask("two")
        sent = chat.peer.asked[-1]
        said = [*map(tuple, map(dict.values, sent.pop("messages")))]
        assert said == [("system", "Be brief."), ("user", "one"), ("assistant", "Four."),
                        ("user", "two")]  # fmt: skip
        assert sent == {"model": "other", "temperature": 0.3, "max_tokens": 64, "stream": True,
                        "stream_options": {"include_usage": True}}  # fmt: skip

    def test_a_new_conversation_forgets_the_old(self, chat):
        chat.ask("one")
        chat.find("new").click()
        assert chat.messages() == [] and chat.spoken() == []
        chat.start()  # and in the middle of an answer
        chat.find("new").click()
        assert chat.peer.left.wait(HANGING)
        chat.ask("two")
        assert [text for _, text, _ in chat.messages()] == ["two", "Four."]
        assert [message["content"] for message in chat.peer.asked[-1]["messages"]] == ["two"]


@needs_chromium
class TestStop:
    def test_ends_the_request_and_keeps_what_came(self, chat):
        chat.start()
        chat.find("stop").click()
        assert chat.peer.left.wait(HANGING)
        chat.until("$('stop').disabled")
        _, text, facts = chat.messages()[1]
        assert text.startswith("One. and") and facts.endswith(", stopped")
        assert chat.focus() == "box" and chat.error() == ""
        chat.ask("more")
        assert chat.peer.asked[-1]["messages"][1]["content"].startswith("One. and")

    def test_before_the_first_word_gives_the_question_back(self, chat):
        chat.peer.script = [30]
        chat.find("box").send_keys(QUESTION, Keys.ENTER)
        chat.until("!$('stop').disabled")
        chat.press(Keys.ESCAPE)
        chat.until("$('stop').disabled")
        assert chat.messages() == [] and chat.find("box").get_property("value") == QUESTION


REFUSALS = {
    "openai": (
        JSONResponse({"error": {"message": "the prompt\nhas 600 tokens; shorten it"}}, 400),
        "The prompt has 600 tokens; shorten it.",
    ),
    "busy": (
        JSONResponse({"error": {"message": "eight requests wait"}}, 429, {"Retry-After": "7"}),
        "Eight requests wait. Try again in 7 s.",
    ),
    "proxy": (PlainTextResponse("<h1>bad</h1>", 502), "The server answered 502 Bad Gateway."),
    # Its name goes on in another way in older versions of Python.
    "shape": (JSONResponse({"detail": []}, 422), "The server answered 422 Unprocessable"),
    "event": ([{"error": {"message": "the engine failed"}}], "The engine failed."),
    "no events": (PlainTextResponse("hello"), "The connection ended before the answer did."),
    "not JSON": (["data: {\n\n"], "The server sent what is no answer, or the connection broke."),
    "cut": ([None], "The connection ended before the answer did."),
}


@needs_chromium
class TestErrors:
    def test_are_one_sentence_and_lose_nothing(self, chat):
        chat.find("box").send_keys(QUESTION)
        for script, sentence in REFUSALS.values():
            chat.peer.script = script
            chat.press(Keys.ENTER)  # it waits there to be sent again
            chat.until(f"$('stop').disabled && $('error').innerText.startsWith({sentence!r})")
            assert chat.messages() == [] and chat.find("box").get_property("value") == QUESTION
        chat.peer.script = WHOLE
        chat.press(Keys.ENTER)
        chat.until("document.querySelector('.facts')?.innerText.includes('prompt of')")
        assert chat.error() == "" and len(chat.messages()) == 2

    def test_in_the_middle_keep_what_came(self, chat):
        chat.ask(QUESTION, [chunk("Fou"), 0.1, {"error": {"message": "the engine failed"}}])
        assert chat.error() == "The engine failed."
        assert chat.messages()[1][1] == "Fou"

    def test_a_server_that_went_away(self, browser, chat):
        peer = Peer()
        with served(peer.app) as url:
            gone = Chat(browser, peer, url)
            gone.open()
        gone.ask(QUESTION)
        assert gone.error().startswith("The server does not answer: see whether ane-book serve")
        assert gone.find("box").get_property("value") == QUESTION

    def test_a_setting_out_of_bounds_is_shown(self, chat):
        chat.run("document.getElementById('most').value = '0'")
        chat.find("box").send_keys(QUESTION, Keys.ENTER)
        assert chat.find("settings").get_property("open") and chat.focus() == "most"
        assert chat.peer.asked == []

    def test_only_white_space_is_no_question(self, chat):
        chat.find("box").send_keys(" ", Keys.ENTER)
        assert chat.messages() == [] and chat.peer.asked == []


@needs_chromium
class TestKey:
    def test_is_asked_for_where_the_server_wants_one(self, chat):
        assert not chat.find("unlock").is_displayed()
        chat.peer.key = "sesame"
        chat.open()
        assert chat.error() == "The API key is wrong." and chat.focus() == "key"
        chat.press("wrong", Keys.ENTER)
        chat.until("$('error').textContent && !$('model').length")
        chat.find("key").clear()
        chat.find("key").send_keys("sesame", Keys.ENTER)
        chat.until("$('model').length")
        assert not chat.find("unlock").is_displayed() and chat.focus() == "box"
        chat.peer.key = "changed"
        chat.ask(QUESTION)
        assert chat.focus() == "key" and chat.find("box").get_property("value") == QUESTION
        chat.find("key").clear()
        chat.find("key").send_keys("changed", Keys.ENTER)
        chat.until("document.activeElement.id === 'box'")
        chat.press(Keys.ENTER)
        chat.until("document.querySelector('.facts')?.innerText.includes('prompt of')")

    def test_that_no_header_can_hold_is_not_sent(self, chat):
        chat.peer.key = "sesame"
        chat.open()
        chat.press("schlüssel", Keys.ENTER)
        assert chat.run("return document.querySelector('#key:invalid') !== null")


HOSTILE = (
    "<img src=x onerror='document.title=1'><script>document.title=2</script>"
    "<style>body{display:none}</style><a href='javascript:0'>x</a></pre></div>&lt;b&gt;"
)


@needs_chromium
class TestHostileText:
    def test_of_a_model_is_text(self, chat):
        chat.ask(HOSTILE, [chunk(HOSTILE), chunk(f"\n```\n{HOSTILE}\n```"), *WHOLE[2:]])
        assert chat.messages()[1][1].count(HOSTILE) == 2 and chat.messages()[0][1] == HOSTILE
        inside = "return document.querySelectorAll('article :is(img, script, style, a)').length"
        assert chat.run(inside) == 0
        assert chat.run("return document.title") == "Chat: the ANE book"

        chat.peer.models = [HOSTILE]
        chat.open()
        chat.ask(QUESTION, JSONResponse({"error": {"message": HOSTILE}}, 400))
        assert HOSTILE in chat.error()
        chat.ask(" again")
        assert chat.messages()[1][0] == HOSTILE

    def test_could_do_nothing_even_as_markup(self, browser, chat):
        """The policy alone holds: neither markup from text nor a script nor another host."""
        tried = """
          const done = arguments[0], seen = [];
          document.addEventListener("securitypolicyviolation", e => seen.push(e.violatedDirective));
          try { document.body.innerHTML = "<p>"; } catch { seen.push("refused"); }
          const image = document.body.appendChild(new Image());
          image.src = "http://127.0.0.2:9/x.png";
          fetch("http://127.0.0.2:9/").catch(() => setTimeout(() => done(seen), 100));
        """
        seen = browser.execute_async_script(tried)
        assert {"refused", "require-trusted-types-for", "img-src", "connect-src"} <= set(seen)
        browser.get_log("browser")  # where Chromium says the same


@needs_chromium
class TestKeyboardAndEars:
    def test_the_keyboard_alone_reaches_everything(self, chat):
        chat.ask(QUESTION)
        reached = [chat.focus()]
        for _ in range(12):
            chat.press(Keys.TAB)
            reached.append(chat.focus())
            if chat.focus() == "Settings":
                chat.press(Keys.ENTER)
        order = ["model", "new", "Copy", "box", "send", "Settings", "temperature", "most", "system"]
        assert set(order) <= set(reached)
        assert [name for name in reached if name in order[3:]][:6] == order[3:]

    def test_shift_enter_breaks_the_line(self, chat):
        chat.peer.script = WHOLE
        chat.press("one", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two", Keys.ENTER)
        chat.until("document.querySelector('.assistant')")
        assert chat.peer.asked[-1]["messages"][0]["content"] == "one\ntwo"

    def test_a_message_can_be_written_while_an_answer_arrives(self, chat):
        chat.start()
        assert not chat.find("send").is_enabled()
        chat.press("next", Keys.ENTER)
        assert chat.find("box").get_property("value") == "next" and len(chat.peer.asked) == 1

    def test_sentences_are_spoken_once_each(self, chat):
        words = [chunk(f"{word} ") for word in SPEECH.split()]
        chat.run(WATCH)
        chat.ask(QUESTION, [step for word in words for step in (word, 0.05)] + WHOLE[2:])
        assert " ".join(chat.spoken()) == SPEECH
        assert 2 <= chat.run("return window.changes") <= 4

    def test_one_who_scrolled_up_is_left_there(self, chat):
        chat.ask(QUESTION, [chunk("line\n" * 100), *WHOLE[2:]])
        assert chat.run("return scrollY") > 500  # one at the end stays there
        chat.start()
        chat.run("scrollTo(0, 0)")
        seen = len(chat.messages()[-1][1])
        chat.until(f"[...document.querySelectorAll('.text')].at(-1).innerText.length > {seen + 20}")
        assert chat.run("return scrollY") == 0


@needs_chromium
@pytest.mark.parametrize(("screen", "scheme", "expected"), [
    (DESK, "light", "rgb(255, 255, 255)"), (PHONE, "dark", "rgb(20, 24, 30)"),
], ids=["desk", "phone"])  # fmt: skip
def test_fits_and_is_accessible(chat, screen, scheme, expected):
    look(chat.browser, screen, scheme)
    chat.open()
    assert chat.run("return getComputedStyle(document.body).backgroundColor") == expected
    assert axe_violations(chat.browser) == []
    code = f"```\n{'x' * 300}\n```\n"
    chat.ask(QUESTION + "y" * 200, [chunk(code), *WHOLE])
    chat.find("settings").find_element("tag name", "summary").click()
    chat.peer.key = "sesame"
    chat.ask("again")
    assert chat.find("unlock").is_displayed() and chat.error()
    assert axe_violations(chat.browser) == []
    assert chat.run("return document.documentElement.scrollWidth") <= screen["width"]


@needs_chromium
class TestOurServer:
    """The real one, with a tiny model that never ends an answer by itself and an encoder."""

    @pytest.fixture
    def real(self, browser, models):
        look(browser, PHONE)
        with serving(*models, key="sesame") as url:
            chat = Chat(browser, Peer(), url)
            chat.open()
            chat.press("sesame", Keys.ENTER)
            chat.until("$('model').length")
            yield chat
            assert chat.console() == []

    def test_answers_as_a_session_does_and_says_what_does_not_fit(self, real, talker):
        assert real.run("return [...model.options].map(option => option.value)") == ["talker"]
        real.run("document.getElementById('most').value = '9'")
        session = Session(talker, precision="fp32")
        said = []
        for question in ("Hello", "And then?"):
            real.ask(question)
            said.append({"role": "user", "content": question})
            expected = session.generate(said, max_tokens=9)
            shown = real.run("return [...document.querySelectorAll('.text')].at(-1).textContent")
            assert shown == expected.text.strip("\n")
            facts = real.messages()[-1][2]
            assert facts.startswith("9 tokens, ") and f"prompt of {expected.prompt_tokens}" in facts
            said.append({"role": "assistant", "content": expected.text})
        assert real.error() == ""
        real.ask("word " * 200)
        said = real.error()
        assert said.startswith("The prompt has ") and "context of 128 tokens" in said


def test_policy_allows_its_own_script_and_style_alone():
    app = FastAPI()
    add_page(app)
    answer = TestClient(app).get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("'sha256-") == answer.text.count("<script") + answer.text.count("<style")
    assert "unsafe" not in policy and "*" not in policy
    assert answer.text.count("style=") == answer.text.count("onclick=") == 0

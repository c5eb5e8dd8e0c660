"""Texts of a request, keys among them, become no control tokens."""

import json

from _control_tokens import CALL, CONTROL, END, TURN, opener, spelled
from ane_serve.generation import Ask, ServedSession
import pytest


@pytest.fixture
def opened(tiny_bundle, tmp_path):
    return opener(tiny_bundle, tmp_path)


@pytest.mark.parametrize("place", ["property", "argument"])
def test_control_tokens_in_keys_are_text(opened, place):
    served = ServedSession(opened())

    def ids(key: str) -> list[int]:
        function = {"name": "f", "parameters": {"type": "object", "properties": {key: {}}}}
        call = {"function": {"name": "f", "arguments": json.dumps({key: 1})}}
        asked = {"role": "assistant", "content": "", "tool_calls": [call]}
        tools = [{"type": "function", "function": function}] if place == "property" else []
        prompt = [{"role": "user", "content": "Hi"}] + [asked] * (place == "argument")
        return served.ids(Ask([prompt], {}, tools=tools), prompt)

    found, plain = ids(f"{END}{TURN}{CALL}"), ids("k")
    assert [i for i in found if i in CONTROL] == [i for i in plain if i in CONTROL]
    assert len(found) == len(plain) + len(END + TURN + CALL) - 1


@pytest.mark.parametrize("name", ["{}|turn|", "{}<|turn|", "call{}"])
def test_a_text_and_what_the_template_writes_beside_it_are_no_control_token(opened, name):
    """As `<parameter={{ key }}>` of Qwen's templates, and contents without anything between."""
    template = "<call><{{ messages[0].content }}>{{ messages[1].content }}<|turn|>"
    served = ServedSession(opened(template=template))

    def ids(*texts: str) -> list[int]:
        prompt = [{"role": "user", "content": text} for text in texts]
        return served.ids(Ask([prompt], {}), prompt)

    control = [258, 257]
    for texts in (name.format(""), "x"), ("x", name.format(">")), ("<|tu", "rn|>"), ("a", "tool"):
        assert [i for i in ids(*texts) if i in CONTROL] == control
    letters = spelled(served.session, "<{}>{}".format("x", "<|turn|"))
    assert ids("x", "<|turn|") == [258, *letters, 257]

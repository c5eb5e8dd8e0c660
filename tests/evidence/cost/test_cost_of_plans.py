"""What a plan asks of an engine, and what `ane-book plan` says a token of it takes."""

import json

from _command import ane_book as command
from _command import refused
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import work_of
from mlprogram.ane.cost import TokenWork, parameter, predict, saving
import pytest

QWEN = "qwen2.5-0.5b-instruct"


def work(model: str = QWEN, **recipe) -> TokenWork:
    config = find_config(model)
    return work_of(plan(config, make_recipe(config, **recipe)))


class TestWork:
    """What a plan asks: the very bytes that it announces."""

    def test_of_half_precision(self):
        planned = plan(find_config(QWEN), make_recipe())
        found = work_of(planned)
        assert (found.plain_bytes, found.packed_bytes) == (planned.weight_bytes, 0)
        assert (found.cache_bytes, found.slots) == (planned.cache_bytes, 512)
        assert found.programs == len(planned.programs)

    def test_of_a_head_in_another_form(self):
        planned = plan(find_config(QWEN), make_recipe(quant="lut4", quant_head="int8"))
        found = work_of(planned)
        assert found.packed_bytes == sum(program.bytes for program in planned.shards)
        assert found.plain_bytes == sum(program.bytes for program in planned.head)

    @pytest.mark.parametrize("quant", ["int4-channel", "lut8"])
    def test_what_takes_longer_than_its_bytes_is_packed(self, quant):
        found = work(quant=quant)
        assert found.packed_bytes > found.plain_bytes == 0

    def test_the_cache_grows_with_the_context(self):
        assert work(context=2048).cache_bytes == 4 * work().cache_bytes

    def test_inputs_for_an_adapter_are_read_as_the_cache_is(self):
        least, most = parameter("cache").bounds
        plain, slotted = predict(work(), "m4"), predict(work(lora_slots=16), "m4")
        more = work(lora_slots=16).adapter_bytes / 1e6
        assert more > 1 and work().adapter_bytes == 0
        assert slotted.ms.low - plain.ms.low == pytest.approx(more / most)
        assert slotted.ms.high - plain.ms.high == pytest.approx(more / least)
        (term,) = (term for term in slotted.terms if "adapter" in term.what)
        assert f"{more:,.1f} MB" in term.what and term.rests_on == (parameter("cache"),)
        share = saving(work(), work(lora_slots=16), "m4")
        assert 0 < share.low < share.high < 0.1

    def test_what_cannot_be_predicted(self):
        with pytest.raises(InvalidInput, match="'int4' has scales along the input channels"):
            work(quant="int4")


class TestCommand:
    def test_a_chip_adds_its_prediction(self):
        without = command("plan", QWEN, "--quant", "int8")
        done = command("plan", QWEN, "--quant", "int8", "--chip", "M4 Max")
        evidence = command("plan", QWEN, "--quant", "int8", "--chip", "M4 Max", "--why")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(without.stdout.rstrip("\n"))
        estimate = predict(work(quant="int8"), "m4-max")
        added = " ".join(done.stdout[len(without.stdout.rstrip("\n")) :].split())  # as one line
        assert f"{estimate.tokens_s.text()} tokens/s, {estimate.ms.text()} ms a token" in added
        assert "not predicted: prefill, first load" in added
        told = " ".join(evidence.stdout.split())
        for term in estimate.terms:
            assert f"{term.what}: {term.ms.text()} ms ({term.evidence})" in told

    def test_the_context_is_in_the_plan_and_in_the_prediction(self):
        done = command("plan", QWEN, "--context", "2048", "--chip", "m4-max", "--why")
        assert "for a context of 2048" in done.stdout and "cache of 2,048 slots" in done.stdout

    def test_a_chip_that_is_not_known(self):
        message = refused("plan", QWEN, "--chip", "m9")
        assert "chip 'm9'; known are m1," in message and "m4-max" in message

    def test_a_model_without_decode(self):
        said = refused("plan", "all-minilm-l6-v2", "--chip", "m4")
        assert "bert generates no text; leave the chip out" in said

    def test_the_plan_says_so(self):
        told = " ".join(command("plan", QWEN, "--chip", "m2-pro").stdout.split())
        assert "on the engine of an M2 Pro" in told
        assert "borrowed from the M2 and the M2 Max, since nobody has published its own" in told

    def test_what_is_not_predicted_is_refused_by_name(self):
        told = " ".join(command("plan", QWEN, "--chip", "m4", "--why").stdout.split())
        assert "prefill not predicted: prompts were published of a few models" in told
        assert "published first loads lie between 23 and 521 s of Whisper models (" in told
        assert "), and between 15 and 900 s of two language models (" in told
        found = json.loads(command("plan", QWEN, "--chip", "m4", "--json").stdout)
        assert found["predicted"]["not_predicted"].keys() == {"prefill", "first load"}

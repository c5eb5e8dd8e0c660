"""What a plan says is wired on a device: weights by loaded functions, caches, devices."""

import json
from math import prod

from _command import ane_book as command
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe

MODEL = "smollm2-135m-instruct"


def planned(name: str = MODEL, **recipe):
    return plan(find_config(name), make_recipe(**recipe))


class TestBytes:
    def test_with_tiers_the_head_is_loaded_no_more_often(self):
        plain, tiered = planned(context=512), planned(context=512, tiers=(128,))
        head = sum(program.bytes for program in plain.head)
        assert plain.wired.copied == 2 * plain.weight_bytes - head
        assert tiered.wired.copied == 4 * plain.weight_bytes - 3 * head

    def test_where_verify_takes_all_single_tokens_decode_is_not_loaded(self):
        for K, functions in ((8, 4), (7, 4), (6, 5)):  # 512 tokens: 64 blocks; 1 and 2 tokens over
            assert planned(context=512, verify=K).wired.functions == functions

    def test_caches_are_those_of_the_manifest(self, tiny_bundle):
        for kv in ("state", "host"):
            bundle = tiny_bundle("llama", kv=kv)[1]
            functions = [part.functions["decode"] for part in bundle.manifest.packages]
            held = [type_ for f in functions for type_ in f.states.values()]
            held += [t for f in functions for n, t in f.inputs.items() if f"new_{n}" in f.outputs]
            kept = sum(2 * prod(type_.shape) for type_ in held)
            assert kept == plan(bundle.config, bundle.recipe).wired.caches

    def test_the_slots_of_an_adapter_are_held_once(self):
        plain, slotted = planned().wired, planned(lora_slots=16).wired
        assert plain.adapter == 0 < slotted.adapter == planned(lora_slots=16).adapter_bytes
        assert slotted.least - plain.least == slotted.most - plain.most == slotted.adapter


class TestLines:
    def test_json(self):
        found = json.loads(command("plan", MODEL, "--device", "iphone-13", "--json").stdout)
        wired = found["wired_bytes"]
        assert wired["most"] == wired["copied"] + wired["caches"]
        assert wired["least"] == found["weight_bytes"] + found["cache_bytes"]
        assert (found["device"]["memory_bytes"], found["device"]["fits"]) == (4 * 10**9, "yes")

    def test_a_plan_beyond_the_device_warns(self):
        done = command("plan", "phi-4-mini-instruct", "--device", "iphone-15-pro", "--why")
        said = " ".join(done.stdout.split())
        assert "warning: " in said and "beyond it if every loaded function has a copy" in said
        assert "introlab/rtabmap#1446" in said and "cardona/SwiftMistralCoreML#15" in said
        assert "more than 6.00 GB" in said
        assert done.returncode == 0  # a plan is no error; nobody has measured it

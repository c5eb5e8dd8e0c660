"""The index of errors: whole, sourced, and found by what people paste."""

import json
import re
import tomllib

from _command import mlprogram
from mlprogram.ane.claims import known_errors
from mlprogram.ane.mac.verdict import REFUSALS
import pytest


class TestIndex:
    def test_each_message_is_answered_by_its_own_entry_first(self):
        for entry in known_errors.load().values():
            for message in entry.messages:
                assert len(message) >= 8, (entry.id, message)
                assert known_errors.explain(message)[0] is entry, (entry.id, message)

    def test_each_entry_names_public_threads(self):
        entries = tomllib.loads(known_errors.INDEX.read_text("utf-8"))["error"]
        assert len({entry["id"] for entry in entries}) == len(entries)
        for entry in known_errors.load().values():
            assert entry.messages and entry.sources, entry.id
            assert entry.sure in ("measured", "reported", "inferred"), entry.id
            assert all(re.fullmatch(r"https://\S+", source) for source in entry.sources), entry.id

    def test_there_are_many_and_what_residency_listens_for_is_among_them(self):
        assert len(known_errors.load()) >= 60
        assert known_errors.load().keys() >= REFUSALS


#: What people paste: with times, paths, line breaks, other lines, and in their own short words.
PASTED = {
    "compiler-failed": """2026-11-03 10:22:31.115 App[812:99] /private/var/x/model.mlmodelc
        E5RT: ANECCompile()
            FAILED 0x1f; retry""",
    "plan-failed": "error -14",
    "ane-status-1d": """[e5rt] ANE inference of /Users/me/a b/Model.mlmodelc/model0 : Failed with
        status=0x1d : statusType=0x9: Program Inference error""",
    "no-predict": """/opt/venv/lib/coremltools/models/model.py:560: RuntimeWarning:
        You will not be able to run predict() on this Core ML model. Underlying exception message
        was: Error compiling model: "Failed to parse the model specification.".""",
    "torch-op-not-implemented": """  File "/Users/x/convert.py", line 31, in <module>
        NotImplementedError: PyTorch convert function for op 'unfold' not implemented.""",
    "numpy-scalar-cast": "TypeError: only 0-dimensional arrays can be converted to Python scalars",
    "mil-storage-missing": """(venv) % python convert.py
        RuntimeError: BlobWriter not loaded
        zsh: exit 1""",
    "lfs-pointer": """coremlc: error: /tmp/x/Unet.mlpackage failed to compile: validator error:
        Unable to deserialize object""",
    "rank-above-five": "ValueError: Core ML only supports tensors with rank <= 5. Layer x_3",
    "grouped-queries": """  File "coremltools/converters/mil/mil/ops/defs/iOS18/transformers.py"
        ValueError: query, key, value must have a same batch dimension, got (1, 8) and (1, 2)""",
    "slice-assignment": """NotImplementedError: Only tensor assignment with exactly 1 pure dimension
        selection is supported""",
    "range-beside-fixed": """libc++abi: terminating due to uncaught exception of type
        CoreML::MLNeuralNetworkUtilities::EnumeratedWithRangeInputsException: A model doesn't allow
        a mixture of enumerated and range shape flexibility, but feature (a) uses""",
    "dequantize-verification": """'mps.dequantize' op operand #2 must be tensor of quantized
        values, but got 'tensor<1xf16>' ... `original module failed verification'""",
    "opset-of-operator": """coremlc: error: in operation op_72: The operator (const) referenced by
        this operation does not match the operator defined by expected opset ios15""",
    "pipeline-type": """validator error: Pipeline: Input 'image' of model 'ModelDescription' does
        not match the type previously specified by the pipeline input or the output of a previous
        model""",
    "image-buffer": """RuntimeError: {
        NSLocalizedDescription = "Error binding image input buffer x1.";""",
    "resources-missing": "12:00:00 App[1:2] Error: resources.bin missing at file:///a/b/c",
}


class TestExplain:
    @pytest.mark.parametrize("entry", PASTED)
    def test_what_people_paste_is_understood(self, entry):
        assert known_errors.explain(PASTED[entry])[0].id == entry

    def test_a_part_of_a_message_is_enough_and_a_word_or_another_number_is_not(self):
        assert known_errors.explain("compiler internal error")[0].id == "compiler-internal-error"
        for code in ("-14", "error code -14"):
            assert known_errors.explain(code)[0].id == "plan-failed"
        assert known_errors.explain("error") == []
        assert "plan-failed" not in [one.id for one in known_errors.explain("error -146")]

    def test_what_nobody_reported_has_no_answer(self):
        assert known_errors.explain("the kettle is on") == []


class TestCommand:
    def test_it_answers_what_was_pasted_or_piped(self):
        assert "compiler-failed" in mlprogram("explain", "ANECCompile() FAILED").stdout
        piped = mlprogram("explain", "-", "--json", input="x\nANECCompile() FAILED\ny")
        assert json.loads(piped.stdout)[0]["id"] == "compiler-failed"

    def test_exit_codes_tell_what_is_not_known_from_what_cannot_be_asked(self):
        unknown = mlprogram("explain", "the kettle is on")
        assert unknown.returncode == 1 and "has nothing like this" in unknown.stdout
        assert "`mlprogram check PACKAGE`" in unknown.stdout  # what to do next
        empty = mlprogram("explain", " ")
        assert empty.returncode == 2 and "nothing to explain" in empty.stderr

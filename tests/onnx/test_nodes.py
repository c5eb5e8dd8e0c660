"""A sample of ONNX's own node tests, judged by `nodes.py` as the full run is; what that found."""

from contextlib import suppress
import json

from _long import long_but
from _numbers import alone, changed
from mlprogram.errors import MLProgramError
from mlprogram.onnx.graph import convert_graph
from mlprogram.onnx.graph.ops import OPERATORS
from nodes import RESULT, cases, headline, is_claimed, reason, run_case
import pytest

#: Operators of the table without a case that runs: ONNX has none, or one with nothing to compute.
WITHOUT_A_CASE = {"Constant", "GlobalLpPool"}

#: A case or two of what differs most: dtypes, broadcasts, windows, modes, recurrences, quantities.
SAMPLE = """
test_add_bcast test_add_uint8 test_and_bcast3v1d
test_argmax_negative_axis_keepdims_example_select_last_index
test_averagepool_2d_ceil test_averagepool_2d_pads_count_include_pad test_batchnorm_epsilon
test_bitshift_left_int32_shift_ge_width test_bitshift_right_int32_negative_shift
test_linear_attention_gated_delta_expanded test_loop11 test_roialign_aligned_true test_scan9_sum
test_cast_DOUBLE_to_FLOAT test_cast_FLOAT_to_INT2 test_castlike_FLOAT_to_UINT4
test_clip_default_int8_min test_concat_3d_axis_negative_2
test_convtranspose_output_shape test_cumsum_2d_axis_1 test_depthtospace_crd_mode_example
test_dft_opset19 test_div_int32_trunc test_einsum_batch_matmul test_gather_elements_negative_indices
test_gemm_all_attributes test_gridsample_bilinear test_gru_with_initial_bias test_hardmax_one_hot
test_layer_normalization_3d_axis_negative_2_epsilon test_lstm_with_peepholes test_matmulinteger
test_maxpool_2d_dilations test_mod_mixed_sign_float32 test_onehot_negative_indices
test_qlinearconv test_quantizelinear_axis test_reduce_log_sum_exp_do_not_keepdims_random
test_reduce_max_bool_inputs test_reflect_pad test_resize_downsample_scales_cubic_antialias
test_resize_tf_crop_and_resize test_resize_upsample_scales_linear_align_corners
test_resize_upsample_scales_nearest test_rnn_seq_length test_scatter_elements_with_reduction_min
test_slice_neg_steps test_softmax_axis_0 test_split_variable_parts_2d_opset18 test_stft_with_window
test_top_k_smallest test_tril_neg test_where_long_example
"""


@pytest.fixture(scope="module")
def all_cases():
    return cases()


@pytest.mark.parametrize("name", SAMPLE.split())
def test_a_case_gives_onnx_values(all_cases, name):
    record = run_case(all_cases[name])
    assert (record["outcome"], record["why"]) in [("passed", ""), ("fixed", "")]


def test_a_wrong_result_is_a_failure(all_cases):
    """The judge has teeth: another operator's values are not this one's."""
    case = all_cases["test_sin"]
    case.model.graph.node[0].op_type = "Cos"
    assert run_case(case)["outcome"] == "failed"


def test_what_is_not_claimed_is_refused_by_name(all_cases):
    record = run_case(all_cases["test_det_2d"])
    assert record["outcome"] == "refused" and "Det" in record["why"] and not is_claimed(record)
    assert reason(record["why"]) == "an operator without a form in MIL here"


#: Where a number beyond int32 is right: it is cut to the axis, not used, or folded by numpy.
TAKEN = {
    ("Dropout", "seed"), ("EyeLike", "k"), ("Shape", "end"), ("Shape", "start"),
    ("Slice", "ends"), ("Slice", "starts"), ("Slice", "steps"),
}  # fmt: skip


BEYOND = [2**31, -(2**31) - 1, 2**33, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("number", long_but(BEYOND, 2**33))
def test_a_number_beyond_int32_is_refused_wherever_an_operator_has_one(all_cases, tmp_path, number):
    """Each attribute, and each input that has to be known, of each operator of the table."""
    path, taken = tmp_path / "m.onnx", set()
    for op, case in alone(all_cases).items():
        for name, shapes in changed(case, number, path):
            with suppress(MLProgramError):
                convert_graph(path, tmp_path / "m.mlpackage", shapes=shapes, force=True)
                taken.add((op, name))
    assert taken <= TAKEN


def test_the_record_covers_the_table_and_readme_says_what_it_found():
    found = json.loads(RESULT.read_text())
    claimed = found["claimed"]
    assert claimed["passed"] + claimed["fixed"] >= 0.85 * sum(claimed.values())
    assert headline(found) in (RESULT.parents[1] / "README.md").read_text()
    alone = {n for n, of in found["operators"].items() if of.keys() & {"passed", "fixed", "folded"}}
    assert OPERATORS.keys() - alone == WITHOUT_A_CASE

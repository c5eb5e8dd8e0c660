"""The required inputs of each MIL op, in a table that needs no torch.

`ops` has the ops themselves, with their optional inputs, and checks each against its row here.

Reference: the `input_spec` of each op in coremltools' `mil/ops/defs`.
"""


#: Names of inputs -> the ops that require exactly these.
ROWS = {
    "val": "const",
    "pred": "cond",
    "loop_vars": "while_loop",
    "input": "read_state",
    "input data": "write_state",
    "x alpha beta": (
        "clamped_relu clip linear_activation scaled_tanh sigmoid_hard softplus_parametric"
    ),
    "x alpha": "elu leaky_relu prelu threshold thresholded_relu",
    "x": (
        "abs acos argsort asin atan atanh band_part ceil cos cosh crop_resize cumsum erf exp "
        "exp2 flatten2d floor gelu identity instance_norm inverse l2_norm layer_norm log "
        "logical_not non_zero random_categorical reduce_argmax reduce_argmin reduce_l1_norm "
        "reduce_l2_norm reduce_log_sum reduce_log_sum_exp reduce_max reduce_mean reduce_min "
        "reduce_prod reduce_sum reduce_sum_square relu relu6 resize_bilinear reverse round "
        "rsqrt shape sigmoid sign silu sin sinh softmax softplus softsign sqrt square squeeze "
        "tan tanh topk upsample_bilinear upsample_nearest_neighbor"
    ),
    "probabilities classes": "classify",
    "quantized_data zero_point scale axis": "constexpr_affine_dequantize",
    "source_val output_dtype": "constexpr_cast",
    "data scale": "constexpr_blockwise_shift_scale",
    "indices lut": "constexpr_lut_to_dense",
    "nonzero_data mask": "constexpr_sparse_to_dense",
    "indices_mask indices_nonzero_data lut": "constexpr_lut_to_sparse",
    "data_mask nonzero_data scale": "constexpr_sparse_blockwise_shift_scale",
    "x weight": "conv conv_transpose linear",
    "x weight quantization_type quant_scale quant_bias": "conv_quantized",
    "x y": (
        "add equal floor_div greater greater_equal less less_equal logical_and logical_or "
        "logical_xor matmul maximum minimum mod mul not_equal pow real_div sub"
    ),
    "x dtype": "cast",
    "x target_size_height target_size_width": "resize_nearest_neighbor",
    "x shape resized_dims": "resize",
    "x crop_height crop_width": "crop",
    "x coordinates sampling_mode padding_mode padding_value coordinates_mode align_corners": (
        "resample"
    ),
    "x transform_matrix output_height output_width sampling_mode padding_mode padding_value "
    "coordinates_mode align_corners": "affine",
    "values equation": "einsum",
    "elem_shape": "make_list",
    "ls": "list_length",
    "ls index": "list_read",
    "ls index value": "list_write",
    "ls indices": "list_gather",
    "ls indices value": "list_scatter",
    "x mean variance": "batch_norm",
    "x size": "local_response_norm",
    "x kernel_sizes": "avg_pool l2_pool max_pool",
    "input scale output_dtype": "quantize",
    "input scale": "dequantize",
    "shape": "fill random_bernoulli random_normal random_uniform",
    "x initial_h initial_c weight_ih weight_hh": "lstm",
    "x initial_h weight_ih weight_hh": "gru rnn",
    "x indices": "gather gather_along_axis gather_nd",
    "data indices updates": "scatter scatter_along_axis scatter_nd",
    "values axis": "concat stack",
    "x axis": "split",
    "cond a b": "select",
    "x reps": "tile",
    "ref_tensor": "fill_like",
    "start end step": "range_1d",
    "indices one_hot_vector_size": "one_hot",
    "x pad": "pad",
    "boxes scores iou_threshold max_boxes": "non_maximum_suppression",
    "x shape": "reshape",
    "x ref_tensors begins ends end_masks": "reshape_like",
    "x axes": "expand_dims",
    "x perm": "transpose",
    "x lengths": "reverse_sequence",
    "x begin end": "slice_by_index",
    "x update begin end": "slice_update",
    "x begin size": "slice_by_size",
    "x axis size": "sliding_windows",
    "x block_size": "depth_to_space space_to_depth",
    "x upscale_factor": "pixel_shuffle",
    "x downscale_factor": "pixel_unshuffle",
    "x block_shape paddings": "space_to_batch",
    "x block_shape crops": "batch_to_space",
    "query key value": "scaled_dot_product_attention",
}

#: The required inputs of each op, including control flow, states and constants.
NEEDED = {op: frozenset(inputs.split()) for inputs, ops in ROWS.items() for op in ops.split()}

"""Quantise weights: an array becomes the operands of one MIL op that gives it back.

`SCHEMES` is the list of what `quant` may be. A weight in fp16 is the operand of a `const`; the
others become one of iOS 18's compressed constants (coremltools, `defs/iOS18/compression.py`), which
stands where the `const` stood:

    linear   constexpr_blockwise_shift_scale   w = scale * data
    palette  constexpr_lut_to_dense            w = lut[index]

Letters: O output channels, C input channels, G groups of output channels, b = O / G channels in a
group, B blocks of input channels, P = 2^bits entries of a palette, n = b * C weights of a group.
"""

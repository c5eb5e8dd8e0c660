"""What the architectures share: their interface, a dense decoder, and layers.

Dimension letters, in every file of `ane_book.models` and in the book's chapters:

    C   hidden size: the channels of the residual stream
    F   feed-forward size; in a mixture, that of one expert
    H   query heads; Q = H * D
    K   key/value heads; KV = K * D, and G = H / K query heads share one of them
    D   head size, the first R of whose dimensions are rotated
    L   layers
    S   slots of the KV cache
    T   tokens of one call: 1 in decode, more in prefill
    V   vocabulary size
    E   experts of a layer, n of them in a group
"""

"""What only a Mac can answer: where Core ML plans each op, whether it stays there, and how fast.

`child` runs a question in a process of its own, which may crash, hang or take all memory; `probe`
is that process. `plan` reads Core ML's plan, `residency` measures where a function runs and
`verdict` judges it, `speed` times a bundle. On another machine each says why it is unmeasured.
"""

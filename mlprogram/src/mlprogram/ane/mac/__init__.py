"""Measurements that need a Mac: where Core ML plans each op, where it really runs, and how fast.

`plan` reads Core ML's plan, `residency` measures where a function runs and `verdict` judges that,
`speed` times a bundle. Since Core ML may crash, hang or take all memory, `child` runs each of them
in a process of its own; `probe` is the program of that process. On another machine each says why
it is unmeasured.
"""

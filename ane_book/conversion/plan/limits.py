"""The claims about limits of the Neural Engine that a plan is compared with.

Apple has published none of these sizes of programs and axes, and no two sources agree, so nothing
here is enforced: a plan beyond one says so, with its grade and evidence (`mlprogram.ane.claims`).
"""

from mlprogram.ane.claims import find

#: Bytes of weights in one program.
PROGRAM = find("program-250mb")
#: Bytes of one weight file, from below.
FILE = (find("program-1gb"), find("program-2gb"))
SMALL = find("program-small")
#: Bytes of all programs of a model.
LOADED = find("loaded-3gb")
#: How memory grows with the functions that are loaded.
WIRED = find("functions-memory")
#: The longest axis of a tensor, from below.
AXIS = (find("axis-habit"), find("axis-most"))
#: The cost of a call, noted of a plan with more than MANY of them for a token.
CALLS = find("call-coreml")
MANY = 100

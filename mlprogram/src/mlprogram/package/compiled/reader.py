"""Parse MIL's text form, the `model.mil` of a compiled model, into MIL's protobuf.

The text has the same content as the protobuf, so everything that reads the protobuf (validation,
executor, `inspect`) reads compiled models too, and they can be saved as packages. There are two
dialects: `program(1.0)` writes scalars as tensors, `tensor<int32, []>(1)`; `program(1.3)`, for iOS
18 and newer, writes `int32(1)`. Both forms are accepted everywhere.

Apple documents no grammar. This one is inferred from `model.mil` files in public repositories. For
the blocks of `cond` and `while_loop`, of which none was found, it accepts `name(inputs) {ops} ->
(outputs)` after the call, with name and inputs optional.
"""

import re

from mlprogram.package.compiled.values import MAX_DEPTH, WORD, ValueReader

#: name of an opset in text -> in protobuf
OPSETS = {f"ios{n + 10}": f"CoreML{n}" for n in range(3, 9)} | {"ios26": "CoreML9"}

CALL = re.compile(r"[A-Za-z_][\w@]*\s*(?:<\s*\w+\s*>\s*)?\(")  # an op without outputs
REFERENCE = re.compile(r"([A-Za-z_][\w@]*)\s*(?=[,)])")
VERSION = re.compile(r"\d+(?:\.\d+)*")


def read_text(text: str, where: str, below: str = ""):
    """Parse a MIL text to a `Program` message. Raises InvalidPackage with line and column.

    below: the folder, with its slash, that the names of weight files are relative to.
    """
    return _Parser(text, where, below).program()


class _Parser(ValueReader):
    """Parses statements: functions, blocks, ops."""

    def program(self):
        program = self.mil.Program(version=1)
        if self.word("'program'") != "program":
            raise self.error("'program' expected", 0)
        self.expect("(")
        self.match(VERSION, "a version")
        self.expect(")")
        self.attributes(program.attributes)
        self.expect("{")
        while not self.take("}"):
            self.function(program)
        self.skip()
        if self.at != len(self.text):
            raise self.error(f"the end expected, not {self.next()}")
        return program

    def function(self, program) -> None:
        if self.word("'func'") != "func":
            raise self.error("'func' expected")
        name = self.word("a function's name")
        if name in program.functions:
            raise self.error(f"a second function {name!r}")
        function = program.functions[name]
        self.expect("<")
        opset = self.word("an opset")
        function.opset = OPSETS.get(opset, opset)
        self.expect(">")
        self.expect("(")
        self.named(function.inputs, ")")
        self.attributes(function.attributes)
        self.block(function.block_specializations[function.opset], 0)
        self.take(";")

    def named(self, values, end: str) -> None:
        """`type name, type name` up to `end`."""
        for _ in self.separated(end):
            self.one_named(values)

    def one_named(self, values) -> None:
        type_ = self.type()
        values.add(name=self.word("a name"), type=type_)

    def block(self, block, depth: int) -> None:
        """`{ops} -> (outputs)`."""
        if depth > MAX_DEPTH:
            raise self.error(f"blocks in blocks, {depth} deep")
        self.expect("{")
        while not self.take("}"):
            self.operation(block.operations.add(), depth)
        self.expect("->")
        self.expect("(")
        block.outputs.extend([self.word("a name") for _ in self.separated(")")])

    def operation(self, operation, depth: int) -> None:
        self.skip()
        if not CALL.match(self.text, self.at):
            if self.take("("):
                self.named(operation.outputs, ")")
            else:
                self.one_named(operation.outputs)
                while self.take(","):
                    self.one_named(operation.outputs)
            self.expect("=")
        operation.type = self.word("an op")
        if self.take("<"):  # the opset of this op alone
            self.word("an opset")
            self.expect(">")
        self.expect("(")
        for _ in self.separated(")"):
            key = self.word("the name of an input")
            if key in operation.inputs:
                raise self.error(f"a second input {key!r}")
            self.expect("=")
            self.argument(operation.inputs[key].arguments)
        self.attributes(operation.attributes)
        while not self.take(";"):
            self.nested(operation, depth)

    def nested(self, operation, depth: int) -> None:
        """A block of an op, with its name and its inputs, if it has any, before it."""
        self.take(",")
        self.skip()
        block = operation.blocks.add()
        if WORD.match(self.text, self.at):
            self.word("a block's name")
        if self.take("("):
            self.named(block.inputs, ")")
        self.block(block, depth + 1)
        self.attributes(operation.attributes)

    def argument(self, arguments) -> None:
        """One value, or several in parentheses; a value is a name or a constant."""
        if self.take("("):
            for _ in self.separated(")"):
                self.binding(arguments.add())
        else:
            self.binding(arguments.add())

    def binding(self, binding) -> None:
        self.skip()
        found = REFERENCE.match(self.text, self.at)
        if found:
            self.at, binding.name = found.end(), found[1]
        else:
            self.value(binding.value)

    def attributes(self, attributes) -> None:
        """`[key = value, ...]`, if that comes next."""
        if not self.take("["):
            return
        for _ in self.separated("]"):
            key = self.word("the name of an attribute")
            if key in attributes:
                raise self.error(f"a second attribute {key!r}")
            self.expect("=")
            self.value(attributes[key])

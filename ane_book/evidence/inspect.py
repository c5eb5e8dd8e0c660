"""List the contents of a bundle or a package: manifest, functions, weights."""

import os
from pathlib import Path
from shlex import quote

from ane_book.errors import InvalidPackage
from mlprogram.tables import table


def inspect_path(path: str | Path) -> dict:
    """Describe a bundle (a folder with manifest.json) or a package in plain JSON values.

    Raises InvalidBundle or InvalidPackage.
    """
    from mlprogram.contents import inspect_package

    path = Path(path)
    if not is_bundle(path):
        refuse_weights(path)
        return inspect_package(path)
    from ane_book.bundle import Bundle

    bundle = Bundle.open(path)
    manifest = bundle.manifest
    packages = dict.fromkeys(part.package for part in manifest.packages)
    return {
        "bundle": str(bundle.path),
        "name": manifest.name,
        "task": manifest.task,
        "config": bundle.config.model_dump(),
        "recipe": manifest.recipe.model_dump(),
        "source": manifest.source.model_dump(),
        "files": manifest.files,
        "evidence": bundle.evidence.model_dump(mode="json")["levels"],
        "packages": [inspect_package(bundle.path / name) for name in packages],
    }


def refuse_weights(path: Path) -> None:
    """Raise InvalidPackage for weights, a file or a folder of them, and for an ONNX graph, with the
    commands that take them, ready to paste. A folder with a program among them is none of these."""
    file = quote(str(path))
    if is_bundle(path) or any(path.glob("*.ml*")):
        return
    if path.suffix == ".onnx":
        raise InvalidPackage(
            f"{path}: an ONNX graph, not a package; `mlprogram convert {file} --out "
            "NAME.mlpackage` makes one of it"
        )
    kinds = {one.suffix for one in path.iterdir()} if path.is_dir() else {path.suffix}
    if kind := next((kind for kind in (".safetensors", ".gguf") if kind in kinds), None):
        what = f"a folder of {kind} files" if path.is_dir() else f"a {kind} file"
        raise InvalidPackage(
            f"{path}: {what} holds weights, not a program; `ane-book plan {file}` shows what "
            f"would be made of it, and `ane-book convert {file}` makes a bundle to inspect"
        )


def is_bundle(path: str | Path) -> bool:
    """Whether a folder is a bundle: it has manifest.json. A package's Manifest.json does not count,
    even on a Mac, whose file system ignores case."""
    try:
        return "manifest.json" in os.listdir(path)
    except (OSError, ValueError):  # no folder, or none that can be read; no path at all
        return False


def report(facts: dict, why: bool = False) -> str:
    """The description from `inspect_path` as text; why: with all that each package holds."""
    from mlprogram.contents import package_report, packages_report

    if "bundle" not in facts:
        return package_report(facts, why)
    config = facts["config"]
    recipe = {name: value for name, value in facts["recipe"].items() if value not in (None, ())}
    head: list[tuple[str, ...]] = [
        ("bundle", facts["bundle"]),
        ("model", f"{facts['name']} ({config['architecture']}, {config['num_layers']} layers)"),
        ("source", f"{facts['source']['kind']}: {', '.join(facts['source']['files'])}"),
        ("recipe", ", ".join(f"{key} {value}" for key, value in recipe.items())),
        ("size", f"{sum(facts['files'].values()):,} bytes in {len(facts['files'])} files"),
    ]
    if any("/layers_" in package["package"] for package in facts["packages"]):
        head.append(("names", "layers_A-B has the layers from A up to, and without, B"))
    if "verified" in facts:
        head.append(("verified", f"all {facts['verified']} files are as they were written"))
    from ane_book.bundle.evidence import LEVELS

    levels: list[tuple[str, ...]] = [
        (f"{name} {LEVELS[name]}", level["status"], level["date"] or "", level["reason"])
        for name, level in facts["evidence"].items()
    ]
    parts = [table(head), f"evidence\n{table(levels, indent=2)}"]
    return "\n\n".join([*parts, packages_report(facts["packages"], why)])

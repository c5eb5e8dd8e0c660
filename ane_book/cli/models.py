"""`ane-book models` and `ane-book plan`: the reference models, and the plan of a conversion."""

from shutil import get_terminal_size
from typing import Annotated

from ane_book.cli import options
from ane_book.cli.absent import serving
from mlprogram.cli.options import AsJson, Why
from mlprogram.terminal import show
import typer


def models_command(as_json: AsJson = False) -> None:
    """List the reference models: weights, recipe, evidence, figures."""
    import ane_book
    from ane_book.reference import ReferenceModel
    from mlprogram.tables import table
    from pydantic import TypeAdapter

    known = [*ane_book.reference_models().values()]

    def text() -> str:
        head = table([(model.name, model.size, model.license, model.taught) for model in known])
        return "\n\n".join([head, *(f"{m.name}\n{table(m.rows(), indent=2)}" for m in known)])

    dump = TypeAdapter(ReferenceModel).dump_python  # where it lies on this machine is no fact of it
    facts = [dump(m, mode="json", exclude={"folder"}) for m in known]
    show(lambda: facts, text, as_json)


@options.takes(
    "Recipe", "shard_limit", "quant", "quant_head", "partition", "context", "tiers",
    "experts", "verify", "functions", "lora_slots",
)  # fmt: skip
def plan_command(
    model: options.Weights,
    recipe: dict,
    chip: Annotated[
        str | None,
        typer.Option(help="Predict the speed of decode on its Neural Engine: m4-max, ..."),
    ] = None,
    machines: Annotated[
        int | None, typer.Option(min=1, help="Cut it over so many, for `serve --cluster`.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Warn if it wires more than this has: iphone-15-pro, ..., or 16GB."),
    ] = None,
    why: Why = False,
    as_json: AsJson = False,
) -> None:
    """Predict what a model takes: size, memory, speed on a chip.

    Its weights are not needed.
    """
    import ane_book
    from ane_book.evidence import cost
    from mlprogram.ane.cost.devices import find_device
    from mlprogram.tables import headed

    planned = ane_book.plan(model, **recipe)
    lines, facts = planned.rows(why), planned.to_json()
    if chip is not None:
        lines += cost.rows(planned, chip, why)
        if planned.head:
            facts |= cost.to_json(planned, chip)
    if device is not None:
        memory = find_device(device)
        lines += memory.rows(planned.wired, why)
        facts["device"] = memory.to_json(planned.wired)
    elif chip is not None:
        unknown = "memory unknown, a chip is sold with several sizes of memory: --device 16GB"
        lines.append(("device", unknown))
    if machines is not None:
        cut = serving("cluster.plan").split(planned, machines)
        lines += cut.rows()
        facts["machines"] = cut.to_json()
    width = get_terminal_size((10_000, 24)).columns
    show(lambda: facts, lambda: headed(lines, width), as_json)

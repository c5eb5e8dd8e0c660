"""Exact rewrites of ops that read at positions."""

from collections.abc import Callable

from mlprogram.ane.faults.fix.mend import At, Mend, Unmended

GATHERS = ("gather", "gather_along_axis")


def gather_negative(at: At) -> Mend:
    """gather by a computed index -> by that index, raised by the axis' size where negative."""
    import torch

    x, indices, axis = at.value("x"), at.value("indices"), int(at.setting("axis", 0))
    if at.operation.type not in GATHERS or int(at.setting("batch_dims", 0)):
        raise Unmended("only gather and gather_along_axis are rewritten")
    size = x.type.shape[axis]
    if size is None:
        raise Unmended("the size of its axis is open")
    make = at.make
    below = make.op("less", {"x": indices, "y": 0}, "bool")
    raised = make.op("add", {"x": indices, "y": size})
    whole = make.op("select", {"cond": below, "a": raised, "b": indices}, indices.type.dtype)
    given = {key: item for key, item in at.inputs().items() if key != "indices"}
    result = make.op(at.operation.type, {**given, "indices": whole}, x.type.dtype, at.type.shape)

    def meant(x, indices):
        places = indices.long() % size
        if at.operation.type == "gather_along_axis":
            return torch.gather(x, axis, places)
        picked = torch.index_select(x, axis, places.reshape(-1))
        at_axis = axis % x.dim()
        return picked.reshape(*x.shape[:at_axis], *indices.shape, *x.shape[at_axis + 1 :])

    return at.mend(result, [x, indices], meant, values={indices.name: range(-size, size)})


REWRITES: tuple[Callable[[At], Mend], ...] = (gather_negative,)

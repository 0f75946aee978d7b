"""What two methods of one chain cannot both do."""

from __future__ import annotations

from trimtab.control.protocol import Method, Ratio, WeighMethod


def clash(a: Method, b: Method) -> str:
    """Why two methods cannot stand in one chain, in words; "" where they can."""
    if a.name == b.name:
        return f"are {a.name}"
    owned = a.owns() & b.owns()
    if owned:
        return f"own the {next(iter(owned)).value} point"
    if any(isinstance(m, WeighMethod) and m.masks_only for m in (a, b)):
        return ""
    for ratio in a.corrects & b.corrects:
        return f"correct the {ratio.value} ratio"
    for x, y in ((a, b), (b, a)):
        if Ratio.CURRENT_BEHAVIOR in x.corrects and y.corrects:
            return f"correct the same staleness ({x.name} from the behavior policy to the current one, {y.name} a part of that way)"
    if (a.uncorrected and b.corrects) or (b.uncorrected and a.corrects):
        return "say what to do about stale rollouts"
    return ""

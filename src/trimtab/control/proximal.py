"""Where the proximal policy's log-probs come from: what methods share that weigh against it or anchor a clip on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Composition, MethodOptions, Need, View
from trimtab.records import TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

Anchor = Literal["recompute", "a3po"]


class ProximalOptions(MethodOptions):
    anchor: Anchor = Field(
        "recompute", description="recompute: a scoring forward at the start of the batch; a3po: interpolated, no forward"
    )


def need(anchor: Anchor) -> Need:
    """What the learner must compute."""
    return Need.PROXIMAL if anchor == "recompute" else Need.NOTHING


def proximal(view: View, anchor: Anchor) -> Tensor:
    """log pi of the proximal policy per token, detached: recomputed, or A-3PO's interpolation between behavior and current policy."""
    if anchor == "recompute":
        return view.proximal.detach()
    return F.ratios.interpolated(view.current, view.behavior_N, view.age_N)


def check_agreement(chain: Composition) -> None:
    """Refuse a chain whose weight and anchor mean two different proximal policies."""
    chosen = {m.name: m.options.anchor for m in chain.methods if isinstance(m.options, ProximalOptions)}
    if len(set(chosen.values())) > 1:
        raise TrimtabError.field(
            "methods", [f"{name}.anchor = {a}" for name, a in chosen.items()], "the proximal policy is one; give all the same"
        )

"""What the routes cost, so that ``auto``, each layer and the sketch can choose. Costs are in FLOP-equivalents, sizes in bytes.

For a layer of width d_in -> d_out over P rows, R rollouts in blocks of ``count`` x ``length`` rows, with s bytes a number:

    W = 2 P d_in d_out                       the weight product of an ordinary backward
    M = R d_in d_out s                       bytes of all per-rollout gradients
    gram = 2 sum_blocks count length^2 (d_in / m + d_out)      m layers share the input's Gram matrices

    KEEP   = W + BYTE M                      materialize e_i^T x_i, keep them, combine once c is known
    FORGET = W + BYTE M + W                  materialize for the norm only, a second product for the gradient
    GRAM   = GRAM_RATE gram + W              inner products for the norm, one product for the gradient

    bookkeeping = F + B_act + sum_layers min(KEEP, FORGET, GRAM)     holds e of the layers that do not keep, and M of those that do
    two_pass    = F + B_act + sum_layers min(FORGET, GRAM) - W + B   holds nothing beyond the graph; B = B_act + sum W
    two_buffer  = F + sum over rollouts (F + B + CALL layers)        holds 2 gradients a group

with F = B_act = sum_layers W. A sketch reads Linears from the last one down: it costs 3 CALL to reach the first, each costs
CALL + GRAM_RATE 2 P PROBES (d_in + d_out) to project and W + BYTE P (d_in + d_out) s to go below. The constants are ratios of
speeds, measured on one core of a 2025 server processor in float32 at 41 to 256 tokens and widths 64 to 768: products run at about
100 GFLOP/s and inner products at 40, a byte that is written once and read twice costs 0.12 ns, and a layer alone, with what surrounds
it, costs 0.2 ms however few its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from trimtab.learner.layout import BlockLayout

BYTE = 12.0
GRAM_RATE = 2.5
CALL = 2e7
PROBES = 8  # columns a layer's gradient is projected to
SKETCH_SHARE = 0.05  # of the plain step's products; what surrounds a product doubles it


Route = Literal["bookkeeping", "two_pass", "two_buffer"]


class Mode(Enum):
    """How a layer's per-rollout norms are formed."""

    KEEP = "keep"
    FORGET = "forget"
    GRAM = "gram"


@dataclass(frozen=True, slots=True)
class Shape:
    """A linear layer's widths, and how many layers share its input."""

    inputs: int
    outputs: int
    sharing: int = 1


def weight_cost(shape: Shape, layout: BlockLayout) -> float:
    return 2.0 * layout.rows * shape.inputs * shape.outputs


def kept_bytes(shape: Shape, layout: BlockLayout, itemsize: int) -> int:
    return len(layout.lengths) * shape.inputs * shape.outputs * itemsize


def mode_costs(shape: Shape, layout: BlockLayout, itemsize: int) -> tuple[float, float, float]:
    """Norm plus weighted product under KEEP, FORGET and GRAM, beyond the forward and the activation-only backward."""
    w, m = weight_cost(shape, layout), kept_bytes(shape, layout, itemsize)
    gram = 2.0 * layout.squares * (shape.inputs / shape.sharing + shape.outputs)
    return w + BYTE * m, 2 * w + BYTE * m, GRAM_RATE * gram + w


def choose_mode(shape: Shape, layout: BlockLayout, itemsize: int, *, keep: int) -> Mode:
    """The cheapest mode; KEEP only where its bytes fit ``keep``."""
    kept, forgotten, gram = mode_costs(shape, layout, itemsize)
    if kept <= gram and kept_bytes(shape, layout, itemsize) <= keep:
        return Mode.KEEP
    return Mode.FORGET if forgotten < gram else Mode.GRAM


@dataclass(frozen=True, slots=True)
class RouteCost:
    """Cost of a route and the bytes it holds beyond an ordinary forward and backward."""

    cost: float
    bytes: int


def estimate(shapes: list[Shape], parameters: int, layout: BlockLayout, itemsize: int, memory: int) -> dict[Route, RouteCost]:
    """Each route's :class:`RouteCost`. Every rollout counts as a group of its own: groups are not known at the forward."""
    weights = [weight_cost(s, layout) for s in shapes]
    plain = 3 * sum(weights)
    left, held, book, two_pass = memory, 0, 0.0, 0.0
    for shape, w in zip(shapes, weights, strict=True):
        kept, forgotten, gram = mode_costs(shape, layout, itemsize)
        mode = choose_mode(shape, layout, itemsize, keep=left)
        book += kept if mode is Mode.KEEP else min(forgotten, gram)
        size = kept_bytes(shape, layout, itemsize) if mode is Mode.KEEP else layout.rows * shape.outputs * itemsize
        held += size
        left -= size if mode is Mode.KEEP else 0
        two_pass += min(forgotten, gram) - w
    rollouts = len(layout.lengths)
    return {
        "bookkeeping": RouteCost(2 * sum(weights) + book, held),
        "two_pass": RouteCost(plain + sum(weights) + two_pass, 0),
        "two_buffer": RouteCost(plain + sum(weights) + CALL * rollouts * len(shapes), 2 * rollouts * parameters * itemsize),
    }


def sketched(shapes: Sequence[Shape], rows: int, itemsize: int) -> int:
    """How many Linears, counted from the last one of the forward, a sketch may read."""
    budget = SKETCH_SHARE * 6.0 * rows * sum(s.inputs * s.outputs for s in shapes)
    spent = 3 * CALL
    for n, s in enumerate(reversed(shapes)):
        spent += CALL + GRAM_RATE * 2 * rows * PROBES * (s.inputs + s.outputs)
        if spent > budget:
            return n
        spent += 2.0 * rows * s.inputs * s.outputs + BYTE * rows * (s.inputs + s.outputs) * itemsize
    return len(shapes)


def choose_route(routes: dict[Route, RouteCost], memory: int) -> Route:
    """The cheapest route whose bytes fit ``memory``; ``two_pass`` always fits."""
    return min((name for name, e in routes.items() if e.bytes <= memory), key=lambda name: routes[name].cost)

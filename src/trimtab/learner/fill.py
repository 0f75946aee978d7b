"""The one place that makes a :class:`View` and fills its columns.

=========================================  ===================  ============================================================
columns                                    filled by            when
=========================================  ===================  ============================================================
what the rollouts bring, ``scale_N``       ``make_view``        the update is packed
``proximal_N reference_N values_N boot_R`` ``fill_start``       the batch's start, each only if a method needs it
the same                                   ``fill_kept``        at each later packing, from :class:`KeptColumns`
``current_N entropy_N sum_p2_N``           ``fill_policy``      a forward; ``proximal_N``, too, where the batch has one update
``reward_N reward_R``, ``totals`` std      ``fill_shaped``      just before credit, over the whole update
``reward_R``                               ``fill_leveled``     just before credit
``norm2_R``                                ``fill_norms``       before credit that reads norms
``current_N entropy_N`` with gradient      ``differentiable``   for the length of the objective
=========================================  ===================  ============================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from trimtab import functional as F
from trimtab.control.protocol import Recorder, Reduction, Totals, View
from trimtab.learner.kept import KeptColumns
from trimtab.learner.packing import Packed
from trimtab.learner.passes import Pass
from trimtab.learner.views import leveled, rewards, spread
from trimtab.records import Rollout, StopReason


def make_view(
    packed: Packed,
    rollouts: Sequence[Rollout],
    group_R: Sequence[int],
    *,
    version: int,
    reduction: Reduction,
    totals: Totals,
    mini_step: int,
    recorder: Recorder,
    device: torch.device,
    dtype: torch.dtype,
) -> View:
    """The View of the rollouts in ``packed``, with what they bring. ``group_R`` numbers each rollout's group within the update, from 0."""

    def floats(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    length_R = torch.tensor([r.actions for r in rollouts], dtype=torch.int64, device=device)
    scale_N = F.reduce.token_scale(
        reduction.value, length_R, packed.rollout_N, rollouts=totals.rollouts, tokens=totals.tokens, max_length=totals.max_length
    )
    return View(
        behavior_N=packed.behavior_N,
        rollout_N=packed.rollout_N,
        turn_N=packed.turn_N,
        age_N=version - packed.version_N,
        version_N=packed.version_N,
        scale_N=scale_N.to(dtype),
        reward_N=packed.reward_N,
        score_R=floats([r.score for r in rollouts]),
        reward_R=torch.from_numpy(rewards(rollouts)).to(device),
        length_R=length_R,
        group_R=torch.tensor(group_R, dtype=torch.int64, device=device),
        terminated_R=torch.tensor([r.stop is not StopReason.LENGTH for r in rollouts], device=device),
        groups=totals.groups,
        totals=totals,
        mini_step=mini_step,
        recorder=recorder,
    )


def start_columns(view: View) -> Mapping[str, Tensor]:
    """The columns that are known at the batch's start and hold for all of its updates, as far as the view has them."""
    found = {"proximal_N": view.proximal_N, "reference_N": view.reference_N, "values_N": view.values_N, "boot_R": view.boot_R}
    return {name: x for name, x in found.items() if x is not None}


def fill_start(
    view: View, *, proximal_N: Tensor | None = None, reference_N: Tensor | None = None, values: tuple[Tensor, Tensor] | None = None
) -> None:
    """What the policy at the batch's start, the reference model and the critic (``values_N``, ``boot_R``) say; None: not asked."""
    if proximal_N is not None:
        view.proximal_N = proximal_N
    if reference_N is not None:
        view.reference_N = reference_N
    if values is not None:
        view.values_N, view.boot_R = values


def fill_kept(view: View, columns: KeptColumns, places: Sequence[int]) -> None:
    """What :func:`fill_start` filled when the batch started, for the rollouts at these places."""
    view.proximal_N, view.reference_N = columns.take("proximal_N", places), columns.take("reference_N", places)
    view.values_N, view.boot_R = columns.take("values_N", places), columns.take("boot_R", places)


def fill_policy(view: View, p: Pass, *, proximal: bool) -> None:
    """What a forward says, detached; ``proximal``: this policy is that of the batch's start, too."""
    view.current_N, view.entropy_N, view.sum_p2_N = p.current_N, p.entropy_N, p.sum_p2_N
    if proximal:
        view.proximal_N = p.current_N


def fill_shaped(view: View, added_N: Tensor) -> None:
    """Add a reward per token to the rewards that credit reads, and to the std that it may divide by."""
    view.reward_N = added_N if view.reward_N is None else view.reward_N + added_N
    view.reward_R = view.reward_R + view.sum_R(added_N.double())
    view.totals = dataclasses.replace(view.totals, reward_std=spread(view.reward_R))


def fill_leveled(view: View) -> None:
    """Rewards of a group that differ by rounding alone become one reward."""
    view.reward_R = leveled(view)


def fill_norms(view: View, norm2_R: Tensor) -> None:
    view.norm2_R = norm2_R


@contextmanager
def differentiable(view: View) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Inside, ``current_N`` and (where there is one) ``entropy_N`` are leaves that gradients reach: those that are yielded."""
    kept = view.current_N, view.entropy_N
    leaf_N = view.current.detach().requires_grad_()
    entropy_N = None if view.entropy_N is None else view.entropy_N.detach().requires_grad_()
    view.current_N, view.entropy_N = leaf_N, entropy_N
    try:
        yield leaf_N, entropy_N
    finally:
        view.current_N, view.entropy_N = kept

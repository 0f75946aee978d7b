"""Credit over whole views: shaped rewards, the owner's advantage, and what the batch needs to know at its start.

A column assigned here is kept by rollout in :class:`KeptColumns`, so that every mini-batch, epoch and micro-batch finds its part:
``proximal_N reference_N values_N boot_R`` (the batch's start) and ``advantage_N return_N`` (credit).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.control.protocol import Credit, Need, Notes, Recorder, Totals, View, Weighing
from trimtab.learner.fill import fill_leveled, fill_shaped, fill_start, start_columns
from trimtab.learner.kept import KeptColumns
from trimtab.learner.micro import Micro, Share, whole_view
from trimtab.learner.tools import Refused, Tools


def once_a_batch(tools: Tools) -> bool:
    """Does the credit owner assign it once a batch?"""
    return tools.chain.credit_owner.cadence == "batch"


def start_batch(tools: Tools, shares: Sequence[Share], totals: Totals, version: int, recorder: Recorder) -> KeptColumns:
    """The columns of a batch as the learner stands before its first update. Collective.

    Where the batch has several updates, the policy is scored here once (``proximal_N``) if a method reads that or if credit is
    assigned once a batch; with a single update the update's own forward serves. Values and reference log-probs come from their models.
    """
    columns = KeptColumns()
    at_once = tools.several and once_a_batch(tools)
    score = tools.several and (tools.needs(Need.PROXIMAL) or at_once)
    if not totals.tokens or not (score or tools.needs(Need.VALUES | Need.REFERENCE)):
        return columns  # without a token the updates refuse themselves
    with tools.together():
        with tools.clock.span("pack"):
            micros = tools.micros(shares, totals, columns, recorder, version=version, mini_step=0, silent=False)
        for m in micros:
            _start(tools, m, score=score, vocab=at_once and tools.needs(Need.VOCAB))
    for m in micros:
        for name, x in start_columns(m.view).items():
            columns.put(name, x, m.lengths if name.endswith("_N") else [1] * len(m.places), m.places)
    if at_once:
        view, places = whole_view(micros, tools.ranks)
        assign(tools, view, places, columns)
    return columns


def _start(tools: Tools, m: Micro, *, score: bool, vocab: bool) -> None:
    if score:
        tools.observe(m, graph=False, vocab=vocab)
        fill_start(m.view, proximal_N=m.view.current_N)
    if tools.reference is not None:
        with tools.clock.span("reference"):
            fill_start(m.view, reference_N=tools.reference.score(m.packed))
    if tools.critic is not None:
        with tools.clock.span("critic"):
            fill_start(m.view, values=(tools.critic.values(m.packed), tools.critic.boot(m.packed)))
    for name, x in start_columns(m.view).items():
        if not bool(torch.isfinite(x).all()):
            raise Refused(f"non-finite {name.rpartition('_')[0]}")


def shape(tools: Tools, view: View) -> None:
    """Add what the methods of the shape point say to the rewards that credit reads; the view is that of the whole update."""
    added_N = tools.chain.shape(view)
    if added_N is not None:
        fill_shaped(view, added_N)
        view.metric("reward/shaped", float(view.reward_R.sum()), view.reward_R.shape[0])


def weigh_quietly(tools: Tools, view: View) -> Weighing:
    """The weights, for credit alone: what a method notes about them is noted once, where they weigh the loss."""
    return tools.chain.weigh(dataclasses.replace(view, recorder=Notes()))


def assign(tools: Tools, view: View, places: Sequence[int], columns: KeptColumns) -> None:
    """Assign credit over a whole view and keep it by rollout."""
    with tools.clock.span("methods"):
        shape(tools, view)
        nothing = Weighing(view.score_R.new_zeros(view.score_R.shape[0]))
        w = nothing if view.current_N is None else weigh_quietly(tools, view)
        credit = ask(tools, view, w)
    lengths = view.length_R.tolist()
    columns.put("advantage_N", advantage_of(credit, view), lengths, places)
    if credit.return_N is not None:
        columns.put("return_N", credit.return_N, lengths, places)


def ask(tools: Tools, view: View, w: Weighing) -> Credit:
    """The owner's credit of a view that holds whole groups. Rewards that differ by rounding alone are one reward."""
    fill_leveled(view)
    credit = tools.chain.credit(view, w)
    if tools.chain.credit_owner.silent and credit.advantage_R is not None:
        # The mean of equal numbers is that number but for rounding, and the optimizer would make a step of the rounding.
        credit = dataclasses.replace(credit, advantage_R=torch.where(mixed(view), credit.advantage_R, 0 * credit.advantage_R))
    return credit


def mixed(view: View) -> Tensor:
    """bool _R: rewards of the rollout's group differ; asked of leveled rewards."""
    r = view.reward_R
    low_G, high_G = (r.new_zeros(view.groups).scatter_reduce(0, view.group_R, r, how, include_self=False) for how in ("amin", "amax"))
    return (high_G != low_G)[view.group_R]


def advantage_of(credit: Credit, view: View) -> Tensor:
    """Advantage of each token."""
    if credit.advantage_N is not None:
        return credit.advantage_N
    if credit.advantage_R is None:
        raise RuntimeError("the credit owner returned no advantage")
    return view.token(credit.advantage_R)

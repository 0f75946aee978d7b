"""One update's gradient: what is known of its rollouts, what the methods make of it, one backward a micro-batch.

The model's graph ends at the log-probs of the action tokens. The methods turn those small tensors into one coefficient a token,
``d_N = d loss / d current_N``, and one backward through the model applies it. Where the credit owner reads per-rollout gradient norms,
the backward first carries its unit coefficient ``q_N``; norms follow, then credit, then the re-weighted products (``d_N = c_R q_N``).

Order: score, where a method must see the whole update first (one micro-batch: its own forward serves) -> survey at weigh -> credit
over the whole, where it can or must come before the backward -> survey at objective -> backward, micro-batch by micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trimtab.control.protocol import Need, Notes, Point, ShapeMethod, Totals, View, Weighing
from trimtab.learner.credit import advantage_of, ask, assign, once_a_batch, shape, weigh_quietly
from trimtab.learner.fill import differentiable, fill_norms
from trimtab.learner.kept import KeptColumns
from trimtab.learner.micro import Micro, Seen, Share, applied_weights, collect, whole_view
from trimtab.learner.passes import Pass
from trimtab.learner.tools import Refused, Tools


class Accumulation:
    """Adds one update's gradient to ``.grad``. All methods but the constructor are collective."""

    def __init__(
        self, tools: Tools, share: Share, totals: Totals, columns: KeptColumns, notes: Notes, *, version: int, mini_step: int
    ) -> None:
        self.tools, self.chain, self.columns = tools, tools.chain, columns
        owner, norms = self.chain.credit_owner, self.chain.sequence_norms
        with tools.clock.span("pack"):
            silent = owner.silent and self.chain.credit_alone and not self.chain.acting(ShapeMethod)
            self.micros = tools.micros([share], totals, columns, notes, version=version, mini_step=mini_step, silent=silent)
        self.live = [m for m in self.micros if m.live]
        self._vocab = tools.options.entropy or tools.needs(Need.VOCAB)
        split = any(tools.ranks.gather(any(not m.whole for m in self.live)))
        single = len(self.live) == 1 and tools.ranks.size == 1
        # Norms before the backward: a group is split, or credit or a shaped reward is a matter of the whole update.
        shaped = bool(self.chain.acting(ShapeMethod))
        self._norms_first = norms is not None and (split or ((norms.whole_update or shaped) and not single))
        self._tape = norms is not None and not self._norms_first
        self._open_first = single and not self._norms_first
        self.signal = False

    def run(self, *, warming: bool) -> None:
        """Everything up to ``.grad``; ``warming``: only credit, for the critic."""
        tools, chain = self.tools, self.chain
        survey_weights, survey_loss = bool(chain.surveying(Point.WEIGH)), bool(chain.surveying(Point.OBJECTIVE))
        credited = tools.several and once_a_batch(tools)
        early = not credited and not self._tape
        ask_current = survey_weights or survey_loss or (early and tools.needs(Need.SCORE | Need.PROXIMAL))
        with tools.together():
            if self._open_first and (ask_current or not early):
                self._open(self.live[0])
            if ask_current:
                for m in self.micros if survey_weights or survey_loss else self.live:
                    if m.view.current_N is None:
                        tools.observe(m, graph=False, vocab=tools.needs(Need.VOCAB) if m.live else self._vocab)
        if survey_weights:
            chain.survey(Point.WEIGH, whole_view(self.micros, tools.ranks)[0])
        if self._norms_first:
            with tools.together():
                for m in self.live:
                    self._measure_first(m)
        if early and any(tools.ranks.gather(bool(self.live))):
            view, places = whole_view(self.live, tools.ranks)
            assign(tools, view, places, self.columns)
        if warming:
            raise Refused("critic warm-up", broken=False)
        if survey_loss:
            self._survey_loss()
        with tools.together():
            for m in self.micros:
                if m.live:
                    self.signal |= self._backward(m)
                    tools.collect()
                elif m.view.current_N is None:
                    tools.observe(m, graph=False, vocab=self._vocab)
        self.signal = any(tools.ranks.gather(self.signal))

    def seen(self) -> Seen:
        return collect(self.micros, self.tools.ranks)

    def weights(self) -> tuple[Tensor, Tensor]:
        """(mean applied weight of each rollout's tokens, its action tokens), all rollouts of the update."""
        weights = [_mean_weight(m.view, weigh_quietly(self.tools, m.view)) for m in self.micros]
        return applied_weights(self.micros, weights, self.tools.ranks)

    # ------------------------------------------------------------------------------------------------ before the backward
    def _open(self, m: Micro) -> Pass:
        """The forward whose graph the backward uses."""
        if m.opened is None:
            self.tools.observe(m, graph=True, norms=self._tape, vocab=self._vocab)
        assert m.opened is not None
        return m.opened

    def _measure_first(self, m: Micro) -> None:
        """Norms by a first pass of which only scalars are kept (``two_pass``)."""
        self.tools.observe(m, graph=True, norms=True, vocab=self.tools.needs(Need.VOCAB))
        assert m.opened is not None
        fill_norms(m.view, self._measure(m, m.opened, weigh_quietly(self.tools, m.view))[0])
        m.opened = None

    def _measure(self, m: Micro, p: Pass, w: Weighing) -> tuple[Tensor, Tensor]:
        """(norm2_R of the unit coefficient, q_N)."""
        view = m.view
        q_N = self.chain.unit(view, w).detach()
        pre_N = view.weights(w) * view.scale_N
        with self.tools.clock.span("norms"):
            return p.norms(q_N, _per_rollout(view, pre_N, q_N), view.reward_R, view.group_R), q_N

    def _survey_loss(self) -> None:
        view, places = whole_view(self.micros, self.tools.ranks)
        parts = []
        for place, length in zip(places, view.length_R.tolist(), strict=True):
            part = self.columns.take("advantage_N", [place])  # None: silent, whose advantage is 0
            parts.append(view.scale_N.new_zeros(length, dtype=torch.float64) if part is None else part)
        self.chain.survey(Point.OBJECTIVE, view, torch.cat(parts).to(view.scale_N.dtype))

    # ------------------------------------------------------------------------------------------------ the backward
    def _backward(self, m: Micro) -> bool:
        view, p = m.view, self._open(m)
        with self.tools.clock.span("methods"):
            w = self.chain.weigh(view)
        term = self._term(view, w, p) if self._tape else False
        q_N: Tensor | None = None
        if self._tape:
            shape(self.tools, view)
            norm2_R, q_N = self._measure(m, p, w)
            fill_norms(view, norm2_R)
        with self.tools.clock.span("methods"):
            advantage_N = self._advantage(m, w)
            d_N, h_N = self._coefficients(view, lambda: self._loss(view, w, advantage_N))
        m.opened = None
        if not bool(d_N.any()) and (h_N is None or not bool(h_N.any())):
            return term
        with self.tools.clock.span("backward"):
            if q_N is None:
                p.backward(d_N, h_N)
            else:
                p.finish(_linear(view, d_N, q_N))
        return True

    def _advantage(self, m: Micro, w: Weighing) -> Tensor:
        kept = self.columns.take("advantage_N", m.places)
        if kept is None:
            kept = advantage_of(ask(self.tools, m.view, w), m.view)
        return kept.to(m.view.scale_N.dtype)

    def _loss(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        loss_N = self.chain.objective(view, w, advantage_N)
        term_N = None if self._tape else self.chain.term(view, w, advantage_N)
        return loss_N if term_N is None else loss_N + term_N

    def _term(self, view: View, w: Weighing, p: Pass) -> bool:
        """Beside per-rollout norms, additive terms have a backward of their own: they are no multiple of q_N."""
        if not self.chain.terms:
            return False
        zero_N = torch.zeros_like(view.scale_N)
        d_N, h_N = self._coefficients(view, lambda: self._need(self.chain.term(view, w, zero_N)))
        with self.tools.clock.span("backward"):
            p.backward(d_N, h_N)
        return bool(d_N.any()) or (h_N is not None and bool(h_N.any()))

    @staticmethod
    def _need(loss_N: Tensor | None) -> Tensor:
        assert loss_N is not None
        return loss_N

    def _coefficients(self, view: View, loss: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
        """d_N and h_N: derivatives of the reduced loss with respect to current_N and entropy_N."""
        with differentiable(view) as (leaf, entropy):
            reduced = (view.scale_N * loss()).sum()
        leaves = [leaf] if entropy is None else [leaf, entropy]
        grads = torch.autograd.grad(reduced, leaves, allow_unused=True)
        # The loss, too: a clamp would hide a NaN from its coefficients.
        if not all(bool(torch.isfinite(x).all()) for x in (reduced, *grads) if x is not None):
            raise Refused("non-finite loss")
        d_N = grads[0] if grads[0] is not None else torch.zeros_like(leaf)
        return d_N, grads[1] if entropy is not None else None


def _linear(view: View, d_N: Tensor, q_N: Tensor) -> Tensor:
    """c_R with d_N = c_R q_N; an objective for which there is none cannot be re-weighted."""
    c_R = _per_rollout(view, d_N, q_N)
    gap = (d_N - view.token(c_R).to(d_N.dtype) * q_N).abs().max()
    if float(gap) > 1e-5 * float(d_N.abs().max()) + torch.finfo(d_N.dtype).tiny:
        raise RuntimeError("the objective is not linear in a rollout-constant advantage and weight; OPOB cannot re-weight its gradient")
    return c_R


def _per_rollout(view: View, x_N: Tensor, q_N: Tensor) -> Tensor:
    """c_R with x_N = c_R q_N, by least squares over each rollout; 0 where q is 0 throughout. float64[R]."""
    q, x = q_N.double(), x_N.double()
    den = view.sum_R(q * q)
    return torch.where(den > 0, view.sum_R(q * x) / den.where(den > 0, torch.ones_like(den)), torch.zeros_like(den))


def _mean_weight(view: View, w: Weighing) -> Tensor:
    return view.sum_R(view.weights(w).double()) / view.length_R.clamp(min=1)


def finite(seen: Seen) -> None:
    """Refuse an update whose sequence log-ratios are not finite."""
    if not np.isfinite(seen.log_ratio_R).all():
        raise Refused("non-finite sequence log-ratio")

"""One batch -> optimizer updates -> micro-batches -> one gradient -> the methods' verdict -> a step, or none.

The model's graph ends at the log-probs of the action tokens. The methods turn those small tensors into one coefficient a token,
``d_N = d loss / d current_N``, and one backward through the model applies it. Under ``Need.SEQ_NORMS`` the backward first carries the
credit owner's unit coefficient ``q_N``; norms follow, then credit, then the re-weighted products (``d_N = c_R q_N``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from trimtab.learner.gradient import ActorGradient, CosineSketch
from trimtab.learner.micro import Micro, Seen, collect, plan_micros
from trimtab.learner.optimizer import ScheduledAdamW
from trimtab.learner.options import LearnerOptions
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel, Pass
from trimtab.learner.views import drop_invalid, join, make_view, totals_of
from trimtab.methods.chain import Chain
from trimtab.methods.protocol import Credit, Need, Notes, Point, Refuse, Skip, StepResult, StepView, View, Weighing
from trimtab.records import Batch, Group
from trimtab.telemetry.clock import Clock


@dataclass(slots=True, kw_only=True)
class UpdateResult:
    """What became of one update. ``reason`` is "" where it was applied."""

    applied: bool
    reason: str
    multiplier: float = 0.0  # 0 where nothing was applied
    lr: float = 0.0  # the schedule's, before the multiplier
    raw_norm: float = 0.0
    norm: float = 0.0
    cosine: float | None = None
    seen: Seen | None = None
    notes: Notes = field(default_factory=Notes)
    invalid_tokens: int = 0


class Refused(Exception):
    """This update may not step; the reason is logged."""


class Learner:
    """Owns the parameters, their optimizer, the methods' learner side and the cosine's sketch."""

    def __init__(self, model: PackedModel, chain: Chain, options: LearnerOptions, *, max_length: int, clock: Clock | None = None) -> None:
        self.model, self.chain, self.options = model, chain, options
        self.optimizer = ScheduledAdamW(model.parameters(), options.optimizer, options.schedule)
        self.sketch = CosineSketch()
        self.clock = clock or Clock()
        self._max_length = max_length
        self.applied_batches = 0
        owner = chain.owner(Point.CREDIT)
        self._norms = Need.SEQ_NORMS in chain.needs
        self._vocab = options.entropy or Need.VOCAB in chain.needs
        self._silent = owner.silent and not chain.at(Point.SHAPE)
        self._dtype = torch.promote_types(model.dtype, torch.float32)  # of log-probs, weights and coefficients

    # ------------------------------------------------------------------------------------------------ a batch
    def train(self, batch: Batch, *, lag_zero: bool = False) -> list[UpdateResult]:
        """Consume one batch: ``updates_per_batch`` updates, each over its share of the groups."""
        with self.clock.span("pack"):
            groups, invalid = drop_invalid(batch.groups)
        bounds = np.linspace(0, len(groups), self.options.updates_per_batch + 1).astype(int)
        results = []
        for step, (a, b) in enumerate(pairwise(bounds)):
            with self.clock.span("methods"):  # what is in no span of its own: the columns between the passes
                result = self._update(groups[a:b], batch, step, lag_zero)
            result.invalid_tokens = invalid if step == 0 else 0
            results.append(result)
        if any(r.applied for r in results):
            self.applied_batches += 1
        return results

    def _update(self, groups: Sequence[Group], batch: Batch, mini_step: int, lag_zero: bool) -> UpdateResult:
        notes = Notes()
        self.optimizer.zero_grad()
        result = UpdateResult(applied=False, reason="", lr=self.optimizer.lr, notes=notes)
        try:
            signal = self._accumulate(groups, batch, mini_step, notes, result)
            if not signal:
                raise Refused("no_signal: every coefficient is zero")
            self._step(batch.number, mini_step, lag_zero, result)
        except Refused as refused:
            result.reason = str(refused)
        self.optimizer.zero_grad()
        self.chain.after(
            StepResult(
                applied=result.applied,
                reason=result.reason,
                multiplier=result.multiplier,
                batch_id=batch.number,
                mini_step=mini_step,
                raw_norm=result.raw_norm,
            )
        )
        return result

    # ------------------------------------------------------------------------------------------------ the gradient
    def _accumulate(self, groups: Sequence[Group], batch: Batch, mini_step: int, notes: Notes, result: UpdateResult) -> bool:
        """Add the update's gradient to ``.grad``; False where every coefficient was exactly zero."""
        totals = totals_of(groups, self._max_length)
        if not totals.tokens:
            raise Refused("no valid action token")
        with self.clock.span("pack"):
            micros = plan_micros(groups, self.options.micro_tokens, silent=self._silent)
            for micro in micros:
                micro.packed = pack(micro.rollouts, device=self.model.device, dtype=self._dtype)
                micro.view = make_view(
                    micro.packed,
                    micro.rollouts,
                    micro.group_R,
                    version=batch.version,
                    reduction=self.options.reduction,
                    totals=totals,
                    mini_step=mini_step,
                    recorder=notes,
                    device=self.model.device,
                    dtype=self._dtype,
                )
        live = [m for m in micros if m.live]
        split = any(not m.whole for m in live)
        early = self._early_credit(live, split)
        signal = False
        for micro in micros:
            if not micro.live:
                self._score(micro)
                continue
            with self.clock.span("forward"):
                p = self.model.forward(micro.packed, norms=self._norms and not split, vocab=self._vocab)
            self._observe(micro, p)
            signal |= self._backward(micro, p, early.get(id(micro)), split)
        result.seen = collect(micros)
        if not np.isfinite(result.seen.log_ratio_R).all():
            raise Refused("non-finite sequence log-ratio")
        return signal

    def _score(self, micro: Micro) -> None:
        with self.clock.span("forward"):
            micro.view.current_N = self.model.score(micro.packed)
        if not bool(torch.isfinite(micro.view.current_N).all()):
            raise Refused("non-finite current log-prob")

    def _observe(self, micro: Micro, p: Pass) -> None:
        micro.view.current_N, micro.view.entropy_N, micro.view.sum_p2_N = p.current_N, p.entropy_N, p.sum_p2_N
        if not bool(torch.isfinite(p.current_N).all()):
            raise Refused("non-finite current log-prob")

    def _early_credit(self, live: Sequence[Micro], split: bool) -> dict[int, Tensor]:
        """``advantage_R`` of every live micro-batch where credit can be, or has to be, assigned before the backward.

        Group credit needs whole groups. Where it reads no norms, the scores of the whole update suffice. Where it does and a
        group is split over micro-batches, a first pass measures the norms (``two_pass``); only scalars are kept of it.
        """
        if not live or (self._norms and not split):
            return {}
        if self._norms or Need.SCORE in self.chain.needs:
            for micro in live:
                with self.clock.span("forward"), torch.set_grad_enabled(self._norms):
                    p = self.model.forward(micro.packed, norms=self._norms, vocab=self._vocab)
                self._observe(micro, p)
                if self._norms:
                    w = self.chain.weigh(micro.view)
                    micro.view.norm2_R = self._measure(micro, p, w)[0]
        whole = join([m.view for m in live])
        self._shape(whole)
        w = self.chain.weigh(whole) if whole.current_N is not None else Weighing(whole.score_R.new_zeros(whole.score_R.shape[0]))
        advantage_R = _advantage(self.chain.credit(whole, w))
        ends = np.cumsum([m.view.score_R.shape[0] for m in live])
        return {id(m): advantage_R[end - m.view.score_R.shape[0] : end] for m, end in zip(live, ends.tolist(), strict=True)}

    def _shape(self, view: View) -> None:
        """Add what the methods of the shape point say to the rewards that credit reads."""
        added_N = self.chain.shape(view)
        if added_N is not None:
            view.reward_N = added_N if view.reward_N is None else view.reward_N + added_N
            view.reward_R = view.reward_R + view.sum_R(added_N.double())

    def _measure(self, micro: Micro, p: Pass, w: Weighing) -> tuple[Tensor, Tensor]:
        """(norm2_R of the unit coefficient, q_N)."""
        view = micro.view
        q_N = self.chain.unit(view, w).detach()
        pre_N = view.weights(w) * view.scale_N
        with self.clock.span("norms"):
            return p.norms(q_N, _per_rollout(view, pre_N, q_N), view.reward_R, view.group_R), q_N

    def _backward(self, micro: Micro, p: Pass, early_R: Tensor | None, split: bool) -> bool:
        view = micro.view
        with self.clock.span("methods"):
            w = self.chain.weigh(view)
        if early_R is None:
            self._shape(view)
        q_N: Tensor | None = None
        if self._norms and not split:
            view.norm2_R, q_N = self._measure(micro, p, w)
        with self.clock.span("methods"):
            advantage_R = _advantage(self.chain.credit(view, w)) if early_R is None else early_R
            d_N, h_N = self._coefficients(view, w, advantage_R)
        if not bool(torch.isfinite(d_N).all()):
            raise Refused("non-finite loss coefficient")
        if not bool(d_N.any()) and (h_N is None or not bool(h_N.any())):
            return False
        with self.clock.span("backward"):
            if q_N is None:
                p.backward(d_N, h_N)
            else:
                c_R = _per_rollout(view, d_N, q_N)
                gap = (d_N - view.token(c_R).to(d_N.dtype) * q_N).abs().max()
                if float(gap) > 1e-5 * float(d_N.abs().max()) + torch.finfo(d_N.dtype).tiny:
                    raise RuntimeError(
                        "the objective is not linear in a rollout-constant advantage and weight; OPOB cannot re-weight its gradient"
                    )
                p.finish(c_R)
        return True

    def _coefficients(self, view: View, w: Weighing, advantage_R: Tensor) -> tuple[Tensor, Tensor | None]:
        """d_N and h_N: derivatives of the reduced loss with respect to current_N and entropy_N."""
        leaf = view.current.detach().requires_grad_()
        entropy = None if view.entropy_N is None else view.entropy_N.detach().requires_grad_()
        kept = view.current_N, view.entropy_N
        view.current_N, view.entropy_N = leaf, entropy
        loss = (view.scale_N * self.chain.objective(view, w, view.token(advantage_R).to(leaf.dtype))).sum()
        view.current_N, view.entropy_N = kept
        leaves = [leaf] if entropy is None else [leaf, entropy]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        d_N = grads[0] if grads[0] is not None else torch.zeros_like(leaf)
        return d_N, grads[1] if entropy is not None else None

    # ------------------------------------------------------------------------------------------------ the step
    def _step(self, batch_id: int, mini_step: int, lag_zero: bool, result: UpdateResult) -> None:
        with self.clock.span("step"):
            gradient = ActorGradient(self.optimizer.parameters, batch_id, mini_step, result.notes)
            result.raw_norm = gradient.raw_norm
            if not np.isfinite(gradient.raw_norm):
                raise Refused("non-finite gradient norm")
            result.cosine = self.sketch.observe(gradient.parts)
            verdict = self.chain.gradient(gradient)
            result.norm = gradient.norm()
            assert result.seen is not None
            multiplier = self.chain.step(
                StepView(
                    log_ratio_R=torch.from_numpy(result.seen.log_ratio_R),
                    applied=self.applied_batches,
                    batch_id=batch_id,
                    mini_step=mini_step,
                    lag_zero=lag_zero,
                    recorder=result.notes,
                    update_norm=self.optimizer.update_norm,
                )
            )
            if isinstance(verdict, Skip):
                raise Refused(verdict.reason)
            if isinstance(multiplier, Refuse):
                raise Refused(multiplier.reason)
            self.optimizer.step(multiplier)
            result.applied, result.multiplier = True, multiplier

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, object]:
        return {
            "optimizers": {"actor": self.optimizer.state_dict()},
            "applied_batches": self.applied_batches,
            "sketch": self.sketch.previous,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        optimizers = state["optimizers"]
        assert isinstance(optimizers, dict)
        self.optimizer.load_state_dict(optimizers["actor"])
        self.applied_batches = int(str(state["applied_batches"]))
        sketch = state["sketch"]
        self.sketch.previous = sketch if isinstance(sketch, Tensor) else None


def _advantage(credit: Credit) -> Tensor:
    if credit.advantage_R is None:
        raise RuntimeError("the credit owner returned no advantage per rollout")
    return credit.advantage_R


def _per_rollout(view: View, x_N: Tensor, q_N: Tensor) -> Tensor:
    """c_R with x_N = c_R q_N, by least squares over each rollout; 0 where q is 0 throughout. float64[R]."""
    q, x = q_N.double(), x_N.double()
    den = view.sum_R(q * q)
    return torch.where(den > 0, view.sum_R(q * x) / den.where(den > 0, torch.ones_like(den)), torch.zeros_like(den))

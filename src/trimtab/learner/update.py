"""One batch -> optimizer updates -> micro-batches -> one gradient -> the methods' verdict -> a step, or none.

batch ── start_batch ──▶ columns known at its start: proximal, reference, values; credit, if assigned once a batch
  └─ epochs × updates_per_batch ──▶ Accumulation: .grad ── ranks: sum ──▶ GRADIENT ──▶ STEP ──▶ optimizer, or the reason why not
                                         └─ returns ──▶ critic: its own updates, also where the actor takes none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from trimtab.control.learner_chain import LearnerChain
from trimtab.control.protocol import Need, Notes, Refuse, Skip, StepResult, StepView
from trimtab.learner.accumulate import Accumulation, finite
from trimtab.learner.credit import start_batch
from trimtab.learner.critic import Regression, ValueFunction, make_critic
from trimtab.learner.gradient import ActorGradient, CosineSketch, parameter_groups
from trimtab.learner.kept import KeptColumns
from trimtab.learner.micro import Seen, Share, share
from trimtab.learner.optimizer import ScheduledAdamW, Stepped
from trimtab.learner.options import LearnerOptions
from trimtab.learner.passes import PackedModel
from trimtab.learner.ranks import Alone, Ranks, complete
from trimtab.learner.tools import Refused, Tools
from trimtab.learner.views import drop_invalid, totals_of
from trimtab.records import Batch, Group
from trimtab.telemetry.clock import Clock


@dataclass(slots=True, kw_only=True)
class UpdateResult:
    """What became of one update. ``reason`` is "" where it was applied; ``broken``: its data or a statistic was not finite."""

    applied: bool
    reason: str
    broken: bool = False
    multiplier: float = 0.0  # 0 where nothing was applied
    lr: float = 0.0  # the schedule's, before the multiplier
    raw_norm: float = 0.0
    norm: float = 0.0
    cosine: float | None = None
    step: Stepped | None = None  # where it was applied
    seen: Seen | None = None
    told: StepResult | None = None  # to every method, once it is over
    notes: Notes = field(default_factory=Notes)
    invalid_tokens: int = 0
    empty_rollouts: int = 0


class Learner:
    """Owns the parameters, their optimizer, the methods' learner side, the critic, and the cosine's sketch.

    ``reference`` is the frozen model of methods that need one. With several ``ranks`` every rank trains on its share of each
    update's groups, is given the same batches, and ends every update with the same weights.
    """

    def __init__(
        self,
        model: PackedModel,
        chain: LearnerChain,
        options: LearnerOptions,
        *,
        max_length: int,
        clock: Clock | None = None,
        critic: ValueFunction | None = None,
        reference: PackedModel | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.chain, self.options = model, chain, options
        self.optimizer = ScheduledAdamW(model.parameters(), options.optimizer, options.schedule)
        self.sketch = CosineSketch()
        self.clock = clock or Clock()
        self.applied_batches = 0
        self.consumed_batches = 0
        self.committed = False  # something of the batch in hand has moved, or is about to: it can no longer be given up
        if critic is None and Need.VALUES in chain.needs:
            critic = make_critic(model, options.critic, None)
        if reference is None and Need.REFERENCE in chain.needs:
            raise ValueError("a method of the chain needs a reference model and the learner was given none")
        self._tools = Tools(
            model=model,
            chain=chain,
            options=options,
            clock=self.clock,
            ranks=ranks or Alone(),
            max_length=max_length,
            collect=self.optimizer.collect,
            critic=critic if Need.VALUES in chain.needs else None,
            reference=reference if Need.REFERENCE in chain.needs else None,
        )
        self._groups = parameter_groups(model.names())

    @property
    def critic(self) -> ValueFunction | None:
        return self._tools.critic

    # ------------------------------------------------------------------------------------------------ a batch
    def train(self, batch: Batch, *, lag_zero: bool = False) -> list[UpdateResult]:
        """Consume one batch: ``epochs`` passes of ``updates_per_batch`` updates, each over its share of the groups.

        An exception from outside that comes before ``committed`` leaves parameters, optimizer and the methods' state as they were.
        """
        self.committed = False
        with self.clock.span("pack"):
            valid = drop_invalid(batch.groups)
            groups = valid.groups
        parts = [groups[a:b] for a, b in pairwise(np.linspace(0, len(groups), self.options.updates_per_batch + 1).astype(int).tolist())]
        results: list[UpdateResult] = []
        with self.clock.span("methods"):  # what is in no span of its own: the columns between the passes
            columns, refused, notes = self._start(groups, parts, batch)
            for step in range(self.options.epochs * len(parts)):
                part = step % len(parts)
                place = sum(len(g.rollouts) for p in parts[:part] for g in p)
                results.append(self._update(parts[part], place, columns, refused, batch, step, lag_zero))
        results[0].invalid_tokens, results[0].empty_rollouts = valid.tokens, valid.rollouts
        results[0].notes.add(notes)
        self.consumed_batches += 1
        if any(r.applied for r in results):
            self.applied_batches += 1
        return results

    def _start(self, groups: Sequence[Group], parts: Sequence[Sequence[Group]], batch: Batch) -> tuple[KeptColumns, Refused | None, Notes]:
        """The columns known at the batch's start, or why none of its updates may step; and what was noted of them."""
        shares, group, place, notes = [], 0, 0, Notes()
        for part in parts:
            mine = share(part, place, self._tools.ranks)
            shares.append(Share(mine.groups, group + mine.first_group, mine.first_place))
            group, place = group + len(part), place + sum(len(g.rollouts) for g in part)
        try:
            return start_batch(self._tools, shares, totals_of(groups, self._tools.max_length), batch.version, notes), None, notes
        except Refused as refused:
            return KeptColumns(), refused, notes

    def _update(
        self,
        groups: Sequence[Group],
        place: int,
        columns: KeptColumns,
        refused: Refused | None,
        batch: Batch,
        mini_step: int,
        lag_zero: bool,
    ) -> UpdateResult:
        result = UpdateResult(applied=False, reason="", lr=self.optimizer.lr)
        self.optimizer.zero_grad()
        try:
            if refused is not None:
                raise refused
            self._train(groups, place, columns, batch, mini_step, lag_zero, result)
        except Refused as why:
            result.reason, result.broken = str(why), why.broken
        self.optimizer.zero_grad()
        result.told = StepResult(
            applied=result.applied,
            reason=result.reason,
            multiplier=result.multiplier,
            batch_id=batch.number,
            mini_step=mini_step,
            raw_norm=result.raw_norm,
        )
        self.chain.after(result.told)
        return result

    def _train(
        self, groups: Sequence[Group], place: int, columns: KeptColumns, batch: Batch, mini_step: int, lag_zero: bool, result: UpdateResult
    ) -> None:
        tools = self._tools
        totals = totals_of(groups, tools.max_length)
        if not totals.tokens:
            raise Refused("no valid action token", broken=False)
        mine = share(groups, place, tools.ranks)
        accumulation = Accumulation(tools, mine, totals, columns, result.notes, version=batch.version, mini_step=mini_step)
        refused: Refused | None = None
        try:
            try:
                accumulation.run(warming=tools.critic is not None and self.consumed_batches < self.options.critic.warmup)
                result.seen = accumulation.seen()
            finally:
                self.committed = True
            finite(result.seen)
            if not accumulation.signal:
                raise Refused("no_signal: every coefficient is zero", broken=False)
            self._step(accumulation, batch.number, mini_step, lag_zero, result)
        except Refused as why:
            refused = why
        self._fit(accumulation, totals.tokens, result.notes)
        self._merge(result)
        if refused is not None:
            raise refused

    def _fit(self, accumulation: Accumulation, tokens: int, notes: Notes) -> None:
        """The critic's updates, on what credit said of this update's rollouts; also where the actor takes no step."""
        tools = self._tools
        if tools.critic is None:
            return
        parts = []
        for m in accumulation.micros:
            return_N, old_N = accumulation.columns.take("return_N", m.places), m.view.values_N
            if return_N is not None and old_N is not None:
                parts.append(Regression(m.packed, return_N, old_N))
        if not any(tools.ranks.gather(bool(parts))):
            return
        with self.clock.span("critic"):
            for _ in range(self.options.critic.updates):
                fitted = tools.critic.fit(parts, tokens=tokens, reduce=tools.ranks.sum_)
                notes.metric(f"{tools.critic.label}/loss", fitted.loss)
                notes.metric(f"{tools.critic.label}/grad_norm", fitted.grad_norm)
                if fitted.explained_variance is not None:
                    notes.metric(f"{tools.critic.label}/explained_variance", fitted.explained_variance)

    def _merge(self, result: UpdateResult) -> None:
        """Metrics summed over ranks; decisions are the first rank's."""
        first, *others = self._tools.ranks.gather((result.notes.metrics, result.notes.decisions))
        if others:
            result.notes = Notes(decisions=first[1], metrics=first[0])
            for metrics, _ in others:
                result.notes.add(Notes(metrics=metrics))

    # ------------------------------------------------------------------------------------------------ the step
    def _step(self, accumulation: Accumulation, batch_id: int, mini_step: int, lag_zero: bool, result: UpdateResult) -> None:
        with self.clock.span("step"):
            complete(self.optimizer.masters, self._tools.ranks)
            gradient = ActorGradient(
                self.optimizer.masters, batch_id, mini_step, result.notes, groups=self._groups, weights=accumulation.weights
            )
            result.raw_norm = gradient.raw_norm
            if not np.isfinite(gradient.raw_norm):
                raise Refused("non-finite gradient norm")
            exact = self.chain.aligner  # keeps the previous gradient itself, so its cosine needs no sketch
            if exact is None:
                result.cosine = self.sketch.observe(gradient.parts)
            verdict = self.chain.gradient(gradient)
            if exact is not None:
                result.cosine = exact.cosine
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
                raise Refused(verdict.reason, broken=False)
            if isinstance(multiplier, Refuse):
                raise Refused(multiplier.reason, broken=False)
            result.step = self.optimizer.step(multiplier)
            result.applied, result.multiplier = True, multiplier

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, object]:
        critic = self._tools.critic
        return {
            "optimizers": {"actor": self.optimizer.state_dict()},
            "critic": None if critic is None else critic.state_dict(),
            "applied_batches": self.applied_batches,
            "consumed_batches": self.consumed_batches,
            "sketch": self.sketch.previous,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        optimizers, critic, sketch = state["optimizers"], state["critic"], state["sketch"]
        assert isinstance(optimizers, dict)
        self.optimizer.load_state_dict(optimizers["actor"])
        if self._tools.critic is not None:
            assert isinstance(critic, dict)
            self._tools.critic.load_state_dict(critic)
        self.applied_batches, self.consumed_batches = int(str(state["applied_batches"])), int(str(state["consumed_batches"]))
        self.sketch.previous = sketch if isinstance(sketch, Tensor) else None

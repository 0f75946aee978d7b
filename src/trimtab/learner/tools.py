"""What an update works with, and how it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from trimtab.control.learner_chain import LearnerChain
from trimtab.control.protocol import Need, Recorder, Totals
from trimtab.learner.critic import ValueFunction
from trimtab.learner.fill import fill_kept, fill_policy, make_view
from trimtab.learner.kept import KeptColumns
from trimtab.learner.micro import Micro, Share, plan_micros
from trimtab.learner.options import LearnerOptions
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.learner.ranks import Ranks
from trimtab.telemetry.clock import Clock


class Refused(Exception):
    """This update may not step; the reason is logged. ``broken``: data or a statistic was not finite, the batch is worth a look."""

    def __init__(self, reason: str, *, broken: bool = True) -> None:
        super().__init__(reason)
        self.broken = broken


@dataclass(slots=True, kw_only=True)
class Tools:
    """The learner's parts. ``critic`` and ``reference`` are there where a method needs them; ``collect`` is the optimizer's."""

    model: PackedModel
    chain: LearnerChain
    options: LearnerOptions
    clock: Clock
    ranks: Ranks
    max_length: int
    collect: Callable[[], None]
    critic: ValueFunction | None = None
    reference: PackedModel | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of log-probs, weights and coefficients."""
        return torch.promote_types(self.model.dtype, torch.float32)

    @property
    def several(self) -> bool:
        """More than one update a batch: the policy moves while the batch is trained on."""
        return self.options.updates_per_batch * self.options.epochs > 1

    def needs(self, need: Need) -> bool:
        return bool(need & self.chain.needs)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A phase between two collectives: refused on one rank is refused on all, with the first rank's reason. Collective."""
        mine: Refused | None = None
        try:
            yield
        except Refused as refused:
            mine = refused
        found = [r for r in self.ranks.gather(None if mine is None else (str(mine), mine.broken)) if r is not None]
        if found:
            reason, broken = found[0]
            raise Refused(reason, broken=broken) from mine

    def micros(
        self,
        shares: Sequence[Share],
        totals: Totals,
        columns: KeptColumns,
        recorder: Recorder,
        *,
        version: int,
        mini_step: int,
        silent: bool,
    ) -> list[Micro]:
        """The packed micro-batches of these shares, with the columns already known of their rollouts."""
        out = [m for s in shares for m in plan_micros(s, self.options.micro_tokens, silent=silent)]
        for m in out:
            m.packed = pack(m.rollouts, device=self.model.device, dtype=self.dtype)
            m.view = make_view(
                m.packed,
                m.rollouts,
                m.group_R,
                version=version,
                reduction=self.options.reduction,
                totals=totals,
                mini_step=mini_step,
                recorder=recorder,
                device=self.model.device,
                dtype=self.dtype,
            )
            fill_kept(m.view, columns, m.places)
        return out

    def observe(self, micro: Micro, *, graph: bool, norms: bool = False, vocab: bool = False) -> None:
        """Run the model over a micro-batch and keep what it says in its view; with ``graph`` the pass stays open for a backward."""
        with self.clock.span("forward"), torch.set_grad_enabled(graph):
            p = self.model.forward(micro.packed, norms=norms, vocab=vocab)
        micro.opened = p if graph else None
        fill_policy(micro.view, p, proximal=not self.several and self.needs(Need.PROXIMAL))
        if not bool(torch.isfinite(p.current_N).all()):
            raise Refused("non-finite current log-prob")

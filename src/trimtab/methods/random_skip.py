"""GAC's control: the same share of steps skipped, chosen by chance."""

from __future__ import annotations

from pydantic import Field

from trimtab import keyed
from trimtab.control.protocol import Gradient, GradientMethod, Keep, MethodOptions, Rank, Skip, Status


class RandomSkipOptions(MethodOptions):
    rate: float = Field(0.5, ge=0, lt=1, description="share of updates that are not taken: what gac skipped in the run compared with")
    seed: int = Field(0, ge=0, description="of the draws: keyed by batch and update, so that a restart draws the same")


class RandomSkip(GradientMethod):
    """Skip an update with probability ``rate``, whatever its gradient: what is left of GAC's effect is due to *which* steps it skips.

    Several updates per batch: one draw each.
    """

    name = "random_skip"
    source = "control of GAC (arXiv 2603.01501): as many steps left out, without looking at the cosine"
    status = Status.CONTROL
    summary = "skip a share of the updates at random"
    formula = "skip if u(seed, batch, update) < rate"
    cost = "one draw"
    fails = "It is a smaller number of steps and nothing else."
    Options = RandomSkipOptions
    options: RandomSkipOptions
    rank = Rank.ALIGN

    def gradient(self, g: Gradient) -> Keep | Skip:
        draw = float(keyed.uniform(keyed.fold(keyed.SELECT, self.options.seed), g.batch_id, g.mini_step))
        skipped = draw < self.options.rate
        g.recorder.metric("random_skip/skipped", float(skipped))
        return Skip(f"by chance, at rate {self.options.rate:g}") if skipped else Keep()

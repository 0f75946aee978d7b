"""An entropy bonus, added to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trimtab.control.protocol import MethodOptions, Need, TermMethod, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class EntropyTermOptions(MethodOptions):
    coefficient: float = Field(0.001, gt=0, description="weight of the bonus; veRL's former default, PPO on Atari 0.01")


class EntropyTerm(TermMethod):
    """Adds -coefficient H(pi_current) per token to the owner's loss, reduced like it; neither weighted nor masked.

    H is the exact entropy over the kept vocabulary at the sampled prefix, not an estimate from the sampled token: it needs no ratio for
    the token, only the prefixes are stale. Taken anew at each of several updates per batch.
    """

    name = "entropy_term"
    source = "Mnih et al. 2016 (arXiv 1602.01783), section 4; Schulman et al. 2017 (arXiv 1707.06347), Eq. 9"
    summary = "entropy bonus"
    formula = "L -= c H(pi)"
    cost = "entropies in the forward and a second coefficient in the backward"
    fails = "Over a large vocabulary the bonus is spent on raising the tail of unlikely tokens, which the sampler then draws."
    docs = "docs/methods/objectives.md"
    Options = EntropyTermOptions
    options: EntropyTermOptions
    needs = Need.VOCAB

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        if view.entropy_N is None:
            raise RuntimeError("entropies are not computed at this point; entropy_term declares Need.VOCAB")
        return -self.options.coefficient * view.entropy_N

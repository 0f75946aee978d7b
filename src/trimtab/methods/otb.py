"""OTB: an optimal baseline for each token from logit gradients, which a forward knows."""

from __future__ import annotations

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, Need, View, Weighing


class OTBOptions(MethodOptions):
    zero_tail: bool = Field(False, description="baseline 0, not the rollout's own return, where the longest rollout is alone")


class OTB(CreditMethod):
    """A_t = G_t - B_t, B_t = sum_i G_it V_it / sum_i V_it over the group, V_it = sum_{j <= t} w_j^2 (1 - 2 pi_j + sum_v pi_v^2).

    G_t is the reward from action token t on, w the applied importance weight, and the term in brackets the squared norm of the token's
    logit gradient: the proxy for gradient energy up to t. Tokens are compared by their number in the rollout, whatever stands between
    them. Where the longest rollout of a group is alone, released versions differ; by default it is its own baseline there. Several
    updates per batch: each recomputes V under the weights it starts from.
    """

    name = "otb"
    source = "Optimal Token Baseline (arXiv 2602.07078); as in veRL, optimal_token_baseline"
    summary = "token baseline weighted by cumulated logit-gradient energy"
    formula = "B_t = sum G V / sum V, V_t = sum_{j<=t} w^2 (1 - 2 pi + sum pi^2)"
    cost = "a scoring forward where the update has several micro-batches; no backward"
    fails = "Logit energy is not gradient energy: it misses how large hidden states and lower layers make a token's gradient."
    docs = "docs/vcpo.md"
    Options = OTBOptions
    options: OTBOptions
    needs = Need.VOCAB | Need.SCORE
    reads_ratios = True
    min_group = 2

    def credit(self, view: View, w: Weighing) -> Credit:
        assert view.sum_p2_N is not None
        energy_N = view.weights(w).double().square() * F.baselines.logit_energy(view.current, view.sum_p2_N)
        return_N = F.advantages.reward_to_go(view.token_reward_N, view.length_R)
        baseline_N = F.baselines.token_baseline(
            return_N, energy_N, view.length_R, view.group_R, view.groups, zero_tail=self.options.zero_tail
        )
        return Credit(advantage_N=return_N - baseline_N)

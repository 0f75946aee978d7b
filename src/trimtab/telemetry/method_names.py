"""What the methods, the critic and the rejections record under ``method/``: unit and meaning, for the glossary and TensorBoard.

``*`` stands for the name of a method. A name followed by ``/age_A`` is the same, of the tokens of that age alone (A in versions).
"""

from __future__ import annotations

_SHARE = "rate"

# name below method/ -> (unit, meaning); each is a mean over the batch's updates, weighted by what it counts
OF_METHODS: dict[str, tuple[str, str]] = {
    "*/masked": (_SHARE, "share of the tokens or rollouts that the method leaves out of the loss"),
    "*/truncated": (_SHARE, "share of the weights that were cut at the method's cap c"),
    "*/clipped": (_SHARE, "share of the tokens or rollouts (of gradients at the gradient point) that are beyond the method's clip"),
    "*/loss": ("loss", "loss of the critic (critic, privileged_critic), before its step"),
    "*/grad_norm": ("norm", "norm of the critic's gradient"),
    "*/explained_variance": (_SHARE, "share of the variance of the returns that the critic's values explain, before its step; 1 is all"),
    "bapo/low": ("ratio", "lower bound that the search found"),
    "bapo/high": ("ratio", "upper bound that the search found"),
    "batch_norm_weights/mean": ("ratio", "mean weight that the gradient was divided by"),
    "copc/masked_low": (_SHARE, "share of the tokens masked because their ratio was below the range"),
    "copc/masked_high": (_SHARE, "share of the tokens masked because their ratio was above the range"),
    "copc/k3": ("nats", "k3 divergence of behavior and current policy"),
    "copc/weight": ("ratio", "mean weight of a token, masked ones 0"),
    "copc/weight_squared": ("ratio^2", "mean squared weight, which multiplies the variance of the advantages"),
    "copc/proxy_weight_gap": ("ratio", "mean distance of the weight from the unmasked ratio: the bias of the policy channel"),
    "copc/proxy_mass_removed": (_SHARE, "share of the summed ratio that the mask took away"),
    "copc/kappa_low": (_SHARE, "share of the TD residuals whose ratio was raised to the lower bound"),
    "copc/kappa_high": (_SHARE, "share of the TD residuals whose ratio was lowered to the upper bound"),
    "copc/kappa_distance": ("ratio", "mean distance of a residual's weight from 1; 0: GAE"),
    "copc/proxy_trace_gap": (
        "reward",
        "mean distance of the advantage from the one with unclipped weights: the bias of the credit channel",
    ),
    "copc/proxy_trace_overflow": (_SHARE, "share of the tokens where that comparison overflowed and was left out"),
    "copc/explained_variance": (_SHARE, "share of the variance of the returns that the values explain; 1 is all"),
    "decoupled/clamped": (_SHARE, "share of the tokens whose weight was cut into the range"),
    "decoupled/masked": (_SHARE, "share of the tokens masked because their weight was outside the range"),
    "ess/reference": (_SHARE, "calibrated ESS / B that the step is measured against"),
    "ess/multiplier": ("factor", "this method's factor on the learning rate"),
    "gac/cosine": ("cosine", "between this update's gradient and the previous one"),
    "gac/cosine_within": ("cosine", "the same where both are updates of one batch"),
    "gac/cosine_across": ("cosine", "the same where a new batch began between them"),
    "gac/skipped": (_SHARE, "share of the updates skipped because the gradients were too much alike"),
    "gac/projected": (_SHARE, "share of the updates whose common direction was taken out"),
    "gac/consecutive_skips": ("updates", "skips in a row so far"),
    "gac/norm_ratio": ("factor", "gradient norm after the projection over that before"),
    "gac/removed": (_SHARE, "share of the squared gradient norm that was projected out"),
    "kl_reward/kl": ("nats", "KL to the reference that was taken from the reward, a token"),
    "kl_reward/beta": ("factor", "its weight now"),
    "kl_term/kl": ("nats", "KL of the loss term, a token"),
    "kl_term/beta": ("factor", "its weight now"),
    "m2po/second_moment": ("nats^2", "mean squared log-ratio of the harmful tokens within the range"),
    "median_clip/ratio": ("factor", "gradient norm over the running median"),
    "opob/variance_ratio": ("factor", "second moment of the estimator under b over that under the group mean; below 1, b helps"),
    "opob/gradient_change": ("factor", "how far b moves the gradient off that of the group mean, relative to its length"),
    "overlong/punished": (_SHARE, "share of the rollouts that are punished for their length"),
    "random_skip/skipped": (_SHARE, "share of the updates skipped"),
    "reward/shaped": ("reward", "mean reward that credit read, all shapings included"),
    "update_cap/norm": ("norm", "norm of the step that AdamW would take"),
    "pace/interrupted": (_SHARE, "share of the waiting rollouts that a weight swap interrupted"),
    "pace/forgetting_known": (_SHARE, "share of those that have a forgetting score"),
    "pace/forgetting_p50": ("nats", "median forgetting score of those"),
    "pace/forgetting_p95": ("nats", "95th percentile of their forgetting scores"),
    "pace/omega": ("factor", "mean weight that generation staleness has"),
    "*/waiting": ("groups", "finished groups that waited when the batch formed (selection)"),
    "*/target": ("groups", "how many the method wants to wait: (1 + w_star) batches"),
    "*/excess": (_SHARE, "share of the waiting groups above that target"),
    "*/rate": (_SHARE, "its running mean, the share that is let go"),
    "*/rejected": ("groups", "groups let go when the batch formed"),
}
_STALENESS = {
    "waiting": "versions since a group was finished",
    "generation": "versions that passed while a group was generated",
    "staleness": "both together",
    "effective": "versions that pace counts: waiting, and generation as far as the policy has moved",
}
for _part, _meaning in _STALENESS.items():
    for _whose, _are in (("taken", "taken into the batch"), ("rejected", "let go")):
        OF_METHODS[f"*/{_part}_{_whose}"] = ("versions", f"{_meaning}, mean over the groups {_are}")
        OF_METHODS[f"*/{_part}_p95_{_whose}"] = ("versions", f"{_meaning}, 95th percentile over the groups {_are}")


def of_method(name: str) -> tuple[str, str] | None:
    """Unit and meaning of a metric below ``method/``; None: a method of somebody's own."""
    whole, _, age = name.partition("/age_")
    found = OF_METHODS.get(whole) or OF_METHODS.get(f"*/{whole.partition('/')[2]}")
    return found if found is None or not age else (found[0], f"{found[1]}; of tokens of age {age}")

"""One number from per-token losses: loss = sum_N scale_N * loss_N, with denominators that are known before the first backward."""

import torch
from torch import Tensor


def token_scale(reduction: str, length_R: Tensor, rollout_N: Tensor, *, rollouts: int, tokens: int, max_length: int) -> Tensor:
    """scale_N of the tokens of one micro-batch, float64.

    ``seq_mean_token_mean``      1 / (rollouts * L_i)
    ``token_mean``               1 / tokens
    ``seq_mean_token_sum``       1 / rollouts
    ``seq_mean_token_sum_norm``  1 / (rollouts * max_length)

    ``length_R`` holds the action tokens of each rollout present, ``rollout_N`` indexes into it. ``rollouts`` and ``tokens`` are totals
    of the whole optimizer update, over all micro-batches and ranks; a rollout without action tokens counts in ``rollouts`` and
    contributes nothing. Masked tokens count: a mask never changes a denominator.

    Raises:
        ValueError: the reduction is unknown, or its denominator is not positive although there are tokens to scale.
    """
    denominators = {
        "seq_mean_token_mean": rollouts,
        "token_mean": tokens,
        "seq_mean_token_sum": rollouts,
        "seq_mean_token_sum_norm": rollouts * max_length,
    }
    if reduction not in denominators:
        raise ValueError(f"reduction = {reduction!r}; known are {', '.join(denominators)}")
    denominator = denominators[reduction]
    n = rollout_N.shape[0]
    if n and denominator <= 0:
        raise ValueError(f"{reduction}: the denominator is {denominator} for {n} tokens; totals are those of the whole update")
    if reduction == "seq_mean_token_mean":
        return 1.0 / (denominator * length_R.double()[rollout_N])
    return torch.full((n,), 1.0 / denominator if n else 0.0, dtype=torch.float64, device=rollout_N.device)

"""Fuzz of the objectives: whatever a masked position holds, gradients stay finite; what an action holds is never hidden."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.functional.logprobs import gather_logp, selected_logprobs
from trimtab.functional.objectives import linear, ppo_clip
from trimtab.functional.ratios import log_ratio, sequence_mean, sequence_sum
from trimtab.functional.weights import mask, token_weight, truncate

# The first call of a torch operation can take longer than any fair deadline on a busy machine.
untimed = settings(deadline=None)
broken = st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30])
action = st.one_of(st.floats(-1e4, 0.0), st.just(-math.inf))


@st.composite
def cases(draw):
    """(current, behavior, advantage, keep): kept positions hold any log-prob down to -inf, masked ones anything at all."""
    n = draw(st.integers(1, 12))
    keep = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    current = [draw(action if k else broken) for k in keep]
    behavior = [draw(st.floats(-1e4, 0.0) if k else broken) for k in keep]
    advantage = [draw(st.floats(-10, 10) if k else broken) for k in keep]
    make = lambda x: torch.tensor(x, dtype=torch.float32)  # noqa: E731
    return make(current), make(behavior), make(advantage), torch.tensor(keep)


def losses(current, behavior, advantage, keep):
    """Every way a chain of this room's functions reaches a per-token loss."""
    rollout = torch.arange(len(current)) // 3
    rollouts = int(rollout[-1]) + 1
    d = log_ratio(current.detach(), behavior, keep)
    s, g = sequence_sum(d, rollout, rollouts), sequence_mean(d, rollout, rollouts)
    sequence, geometric, token = mask(s, 0.5, 2.0), mask(g, 0.99, 1.01), mask(d, 0.5, 5.0)
    zero = torch.zeros_like(s)
    weights = {
        "seq_tis": token_weight(truncate(s, 8.0), rollout, None, keep),
        "tok_tis": token_weight(zero, rollout, truncate(d, 2.0).exp(), keep),
        "seq_mis": token_weight(sequence.log_weight, rollout, None, keep & sequence.keep[rollout]),
        "geo_mis": token_weight(zero, rollout, None, keep & geometric.keep[rollout]),
        "tok_mis": token_weight(zero, rollout, token.log_weight.exp(), keep & token.keep),
    }
    for name, w in weights.items():
        yield name, linear(current, w, advantage, keep)
        yield f"{name}+ppo", ppo_clip(current, behavior, advantage, weight_N=w, keep_N=keep)
    yield "ppo", ppo_clip(current, behavior, advantage, keep_N=keep)
    yield "dual", ppo_clip(current, behavior, advantage, dual_clip=3.0, keep_N=keep)


@untimed
@given(cases())
def test_gradients_are_finite_and_zero_where_masked(case):
    current, behavior, advantage, keep = case
    current.requires_grad_()
    for name, loss in losses(current, behavior, advantage, keep):
        gradient = torch.autograd.grad(loss.sum(), current)[0]
        assert bool(torch.isfinite(gradient).all()), name
        assert bool((gradient[~keep] == 0).all()), name
        assert bool((loss[~keep] == 0).all()), name


@untimed
@given(cases(), st.data())
def test_what_a_masked_position_holds_changes_nothing(case, data):
    current, behavior, advantage, keep = case
    other = [torch.where(keep, x, torch.full_like(x, data.draw(broken))) for x in (current, behavior, advantage)]
    for (name, a), (_, b) in zip(losses(current, behavior, advantage, keep), losses(*other, keep), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=name)


@untimed
@given(cases(), st.data())
def test_a_nan_in_an_action_is_surfaced_by_every_loss(case, data):
    current, behavior, advantage, keep = case
    k = data.draw(st.integers(0, len(current) - 1))
    keep[k] = True
    current[k], behavior[k], advantage[k] = math.nan, -1.0, 1.0
    for name, loss in losses(current, behavior, advantage, keep):
        assert bool(torch.isnan(loss[k])), name


@untimed
@given(
    st.integers(1, 20), st.integers(1, 60), st.integers(1, 25), st.integers(1, 65), st.sampled_from([0.0, 1.0, 1e3]), st.integers(0, 999)
)
def test_any_chunking_gives_the_log_probs_of_the_plain_softmax(n, v, rows, vocab, scale, seed):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 6, generator=g, dtype=torch.float64) * scale
    weight, targets = torch.randn(v, 6, generator=g, dtype=torch.float64), torch.randint(v, (n,), generator=g)
    got = selected_logprobs(hidden, weight, targets, entropy=True, sum_p2=True, row_chunk=rows, vocab_chunk=vocab)
    p = (hidden @ weight.T).softmax(1)
    torch.testing.assert_close(got.logp, gather_logp(hidden @ weight.T, targets), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got.entropy, torch.special.entr(p).sum(1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.sum_p2, p.square().sum(1), rtol=1e-10, atol=0.0)

"""RL of a language model that stays stable when its rollouts are stale: the whole idea of VCPO, in one process.

    python examples/one_process.py MODEL_FOLDER [--lag 12] [--batches 200] ...

**Why stale.** Sampling is slow, so in a real system rollout workers never wait for the learner: they sample with whatever weights
they hold, and a batch reaches the learner k updates late. Nothing runs side by side here. A queue of sampled batches stands for the
workers: batch t was sampled by the weights as they stood after t - k batches, and has waited since. That is the staleness of an
asynchronous system without its timing, so a run repeats; examples/two_processes.py is the same algorithm with the processes.

**What staleness does.** With mu the policy that sampled a rollout tau and pi the policy now, the policy gradient is

    E_mu[ w(tau) (R(tau) - b) u(tau) ],    w = pi(tau) / mu(tau) = exp(sum_t log pi_t - log mu_t),    u = grad sum_t log pi_t

Unbiased, but w is a product over tokens: its variance grows with length and staleness until a few rollouts carry the whole batch.

**What VCPO does about it** (Huang et al. 2026, arXiv 2602.17616):

1. Truncate: w <- min(w, c). A little bias for a bounded weight (sequence-level truncated importance sampling, c = 8).
2. A baseline for *off-policy* data. For a group of rollouts of one prompt and a constant b, the second moment of the estimator is
   sum_i w_i^2 |u_i|^2 (R_i - b)^2, which is least at

       b* = sum_i W_i R_i / sum_i W_i,    W_i = w_i^2 |u_i|^2         (w not truncated)

   On-policy with equal norms that is the group's mean. Off-policy, the rollout that would shake the update hardest sets the
   baseline to its own reward, so its advantage vanishes. It needs the gradient norm of every single rollout.
3. A step as large as the data is worth. The effective sample size of B weighted rollouts is ESS = (sum w)^2 / sum w^2, between 1
   and B; the standard error of a mean over them goes as 1 / sqrt(ESS), so the learning rate is multiplied by sqrt(ESS / B).

**Randomness is keyed.** A token is drawn with a uniform that is a hash of *what it is for* (seed, epoch, prompt, rollout, position)
by walking the cumulative distribution. So a run does not depend on who samples what when, and this file reproduces, token for token
and to rounding, what the library does in lockstep (tests/e2e/test_one_process.py).

Shapes: R rollouts of a batch, T tokens of the longest, V vocabulary.
"""

import argparse
import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2ForCausalLM


@dataclass
class Args:
    batches: int = 200  # batches to train on
    lag: int = 12  # batch t is sampled by the weights after t - lag batches; 0 is the synchronous loop
    prompts: int = 8  # groups in a batch
    group: int = 8  # rollouts of one prompt
    new_tokens: int = 32  # longest response
    cap: float = 8.0  # c: importance weights are truncated here
    max_norm: float = 1.0  # the gradient is clipped to this norm
    lr: float = 4e-4  # of AdamW, before the ESS multiplier
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.1
    seed: int = 0  # of prompt order and sampling


# ---------------------------------------------------------------------------------------------------------- keyed randomness

ROLLOUT, ORDER = 1, 2  # purposes: the same numbers drawn for different purposes are different
MASK = 2**64 - 1


def fold(key: int, *parts: int) -> int:
    """Hash a tuple of integers to 64 bits: the finalizer of SplitMix64, folded over it."""
    for part in parts:
        key = ((key ^ (part & MASK)) + 0x9E3779B97F4A7C15) & MASK
        key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        key = (key ^ (key >> 27)) * 0x94D049BB133111EB & MASK
        key = key ^ (key >> 31)
    return key


def uniform(stream: int, position: int) -> float:
    """In [0, 1), with 53 bits. 0: the first turn of a conversation."""
    return (fold(stream, 0, position) >> 11) * 2.0**-53


@cache
def order(seed: int, epoch: int, n: int) -> list[int]:
    """The order in which an epoch visits n prompts."""
    return sorted(range(n), key=lambda i: fold(ORDER, seed, epoch, i))


# ------------------------------------------------------------------------------------------------------------------ sampling


@dataclass
class Batch:
    tokens: Tensor  # [R, T] prompt, response, padding
    action: Tensor  # [R, T] True where the token was sampled
    behavior: Tensor  # [R, T] log mu of sampled tokens, recorded when they were sampled; 0 elsewhere
    end: Tensor  # [R] tokens of prompt and response
    reward: Tensor  # [R]


def start(prompt: int, prompts: list[str], args: Args) -> tuple[str, list[int]]:
    """The text of prompt number ``prompt`` of the run, and the random stream of every rollout of its group."""
    epoch, place = divmod(prompt, len(prompts))
    text = prompts[order(args.seed, epoch, len(prompts))[place]]
    # 0: the first attempt at this prompt
    return text, [fold(ROLLOUT, args.seed, epoch, place, 0, member) for member in range(args.group)]


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return bos + tokenizer.encode(text, add_special_tokens=False)


@torch.no_grad()
def draw(model: PreTrainedModel, tokens: Tensor, end: Tensor, u: list[float]) -> tuple[Tensor, Tensor]:
    """The next token of every row, [rows], and its log mu, [rows]. ``end`` [rows] counts a row's tokens, ``u`` has its uniforms.

    Every row reads its own last token. Padding is on the right, where attention is causal and sees none of it. There is no KV cache:
    responses are short, and the forward is then the one the learner runs.
    """
    logits = model(tokens[:, : int(end.max())]).logits
    logp = logits[torch.arange(len(end)), end - 1].log_softmax(-1)  # [rows, V]
    # Inverse CDF in float64: the first token whose cumulative mass exceeds u times the whole.
    cdf = logp.double().exp().cumsum(-1)
    token = (cdf > (torch.tensor(u, dtype=torch.float64) * (cdf[:, -1] * (1 - 2.0**-52)))[:, None]).int().argmax(-1)
    return token, logp.gather(-1, token[:, None])[:, 0].float()


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    reward: Callable[[str, str], float],
    number: int,
    args: Args,
) -> Batch:
    """Batch ``number``: the next prompts of the epoch, a group of rollouts of each, with the weights the model has now."""
    groups = [start(i, prompts, args) for i in range(number * args.prompts, (number + 1) * args.prompts)]
    text = [prompt for prompt, streams in groups for _ in streams]
    stream = [s for _, streams in groups for s in streams]
    ids = [encode(tokenizer, t) for t in text]
    R, end = len(ids), torch.tensor([len(x) for x in ids])
    T = int(end.max()) + args.new_tokens
    tokens = torch.tensor([x + [tokenizer.eos_token_id] * (T - len(x)) for x in ids])
    action, behavior = torch.zeros(R, T, dtype=torch.bool), torch.zeros(R, T)

    live = torch.arange(R)  # rows that have not ended
    for position in range(args.new_tokens):
        at = end[live]
        token, logp = draw(model, tokens[live], at, [uniform(stream[i], position) for i in live.tolist()])
        tokens[live, at], action[live, at], behavior[live, at] = token, True, logp
        end[live] += 1
        live = live[token != tokenizer.eos_token_id]
        if not len(live):
            break

    rewards = [reward(text[i], tokenizer.decode(tokens[i][action[i]].tolist(), skip_special_tokens=True)) for i in range(R)]
    return Batch(tokens, action, behavior, end, torch.tensor(rewards, dtype=torch.float64))


# ------------------------------------------------------------------------------------------------------------------ learning


def log_probs(model: PreTrainedModel, tokens: Tensor, action: Tensor) -> Tensor:
    """log pi of the sampled tokens under the model as it is now, 0 elsewhere: [R, T]. The first token has no context: 0."""
    logp = model(tokens[:, :-1]).logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(torch.where(action[:, 1:], logp, 0.0), (1, 0))


def rollout_gradient(model: PreTrainedModel, batch: Batch, i: int) -> Tensor:
    """u_i = grad sum_t log pi_it as one vector, by definition: one backward of one rollout. (The library takes the norms of all
    rollouts, and then their weighted sum, from one packed backward.)"""
    n = int(batch.end[i])
    total = log_probs(model, batch.tokens[i : i + 1, :n], batch.action[i : i + 1, :n]).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])


def update(model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Batch, args: Args) -> dict[str, float]:
    """One VCPO step; none where no rollout says anything or a number is not finite, and then nothing moves."""
    R, reward, parameters = len(batch.reward), batch.reward, list(model.parameters())
    # 1. How much does each rollout count? Its weight is a constant: no gradient flows through it.
    with torch.no_grad():
        log_w = (log_probs(model, batch.tokens, batch.action) - batch.behavior).double().sum(1)  # [R]
    w = log_w.clamp(max=math.log(args.cap)).exp()
    # 2. How much are they worth together? From the weights before truncation, which hides the tail that ESS is there to see.
    ess = float((2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)).exp()) / R
    stats = {"reward": float(reward.mean()), "ess": ess, "norm": 0.0, "lr": 0.0}
    # 3. The gradient of -sum_i (1/R) (1/L_i) sum_t w_i A_i log pi_it, group by group. Where all rewards are equal, A is 0.
    mixed = [group for group in torch.arange(R).split(args.group) if reward[group].min() < reward[group].max()]
    if not mixed:
        return stats  # no signal
    gradient = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    for group in mixed:
        u = torch.stack([rollout_gradient(model, batch, i) for i in group.tolist()])  # [group, parameters]
        # Was each better than expected? W / sum W is a softmax of logarithms, so that nothing overflows.
        W = (2 * log_w[group] + u.double().square().sum(1).log()).softmax(0)
        advantage = (reward[group] - (W * reward[group]).sum()) / (reward[group].std() + 1e-6)
        gradient -= (w[group] * advantage / batch.action[group].sum(1) / R).to(u.dtype) @ u
    # 4. How much of it is safe?
    stats["norm"] = norm = float(gradient.double().norm())
    if not math.isfinite(norm) or not math.isfinite(ess):
        return stats
    gradient *= min(1.0, args.max_norm / norm)
    for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)
    # 5. How far do we move?
    stats["lr"] = optimizer.param_groups[0]["lr"] = args.lr * math.sqrt(min(1.0, ess))
    optimizer.step()
    return stats


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], reward: Callable[[str, str], float], args: Args
) -> Iterator[dict[str, float]]:
    """Train ``model`` in place; yields what happened at every batch. ``reward(prompt, response)`` is any verifiable function."""
    model.eval()  # no dropout: what is scored must be the distribution that was sampled from
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(args.beta1, args.beta2), eps=args.eps, weight_decay=args.weight_decay
    )
    waiting: deque[tuple[int, Batch]] = deque()  # sampled and not yet trained on, with the number of batches consumed by then
    sampled = 0
    for consumed in range(args.batches):
        # The samplers run ahead of the learner as far as the lag allows: lag + 1 batches at the start, then one after each step.
        while sampled < args.batches and len(waiting) <= args.lag:
            waiting.append((consumed, sample(model, tokenizer, prompts, reward, sampled, args)))
            sampled += 1
        then, batch = waiting.popleft()
        yield {"batch": consumed, "age": consumed - then, **update(model, optimizer, batch, args)}


# ---------------------------------------------------------------------------------------------------------------------- task


def chained_sum(rng: random.Random) -> str:
    """Eight terms, 4+7-1+...=. The policy may write running totals, 11,10,...; only the last one is looked at."""
    return str(rng.randint(0, 9)) + "".join(rng.choice("+-") + str(rng.randint(0, 9)) for _ in range(7)) + "="


def last_total_is_right(prompt: str, response: str) -> float:
    return float(response.split(",")[-1] == str(sum(int(term) for term in re.findall(r"[+-]?\d", prompt))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Asynchronous RL with VCPO on chained sums.")
    parser.add_argument("model", help="a Qwen2 folder whose tokenizer knows 0-9 + - = and the comma")
    for f in fields(Args):
        parser.add_argument(f"--{f.name}", type=type(f.default), default=f.default)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    folder = options.pop("model")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    args, rng = Args(**options), random.Random(0)
    prompts = [chained_sum(rng) for _ in range(10_000)]
    for s in train(model, tokenizer, prompts, last_total_is_right, args):
        print(" ".join(f"{name} {value:.3g}" for name, value in s.items()), flush=True)


if __name__ == "__main__":
    main()

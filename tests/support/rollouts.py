"""Random rollouts for tests of the learner: ragged, several segments, interior zeros in the action mask, kept sets."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from trimtab.records import Kept, Outcome, Rollout, Sampling, Segment, StopReason


def segment(
    rng: np.random.Generator, actions: str, *, vocab: int = 17, temperature: float = 1.0, cut: bool = False, turn: int = 0
) -> Segment:
    """``actions`` draws the mask: ``"...aaa..aa"`` has an action token at every ``a``."""
    mask = np.array([c == "a" for c in actions])
    n = len(actions)
    tokens = rng.integers(0, vocab, n).astype(np.int32)
    kept = None
    if cut:
        sets = [np.unique(np.append(rng.integers(0, vocab, rng.integers(1, vocab)), tokens[t])) for t in np.flatnonzero(mask)]
        kept = Kept(indptr=np.cumsum([0, *map(len, sets)]), ids=np.concatenate(sets).astype(np.int32))
    return Segment(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.where(mask, -rng.random(n), 0).astype(np.float32),
        versions=np.where(mask, rng.integers(0, 5, n), -1).astype(np.int32),
        turn=np.full(n, turn, np.int16),
        sampling=Sampling(temperature=temperature, top_p=0.9 if cut else 1.0),
        kept=kept,
    )


def rollout(*segments: Segment, member: int = 0, reward: float = 0.0) -> Rollout:
    return Rollout(member=member, segments=segments, score=reward, outcome=Outcome.CORRECT, stop=StopReason.EOS)


def ragged(rng: np.random.Generator, n: int, *, vocab: int = 17, temperature: float = 1.0, cut: bool = False) -> list[Rollout]:
    """``n`` rollouts of 6 to 24 tokens; every third is multi-turn, every fourth has two segments."""
    rollouts = []
    for i in range(n):
        response = "a" * int(rng.integers(2, 12))
        actions = "." * int(rng.integers(4, 12)) + (response if i % 3 else "aaa...." + response + "..")
        parts = [segment(rng, actions, vocab=vocab, temperature=temperature, cut=cut)]
        if i % 4 == 3:
            parts.append(segment(rng, "..." + response, vocab=vocab, temperature=temperature, cut=cut, turn=1))
        rollouts.append(rollout(*parts, member=i, reward=float(i % 2)))
    return rollouts


def naive_logp(model: PreTrainedModel, one: Rollout) -> torch.Tensor:
    """Log-probs of the action tokens of one rollout, differentiable: segment by segment, unpadded, dense masks, plain log_softmax."""
    parts = []
    for s in one.segments:
        actions = np.flatnonzero(s.action_mask)
        if not actions.size:
            continue
        ids = torch.from_numpy(s.tokens.astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0, actions - 1] / s.sampling.temperature
        if s.kept is not None:
            keep = torch.zeros(logits.shape, dtype=torch.bool)
            for i in range(len(actions)):
                keep[i, s.kept.ids[s.kept.indptr[i] : s.kept.indptr[i + 1]]] = True
            logits = logits.masked_fill(~keep, -torch.inf)
        parts.append(torch.log_softmax(logits, -1)[torch.arange(len(actions)), ids[actions]])
    return torch.cat(parts) if parts else torch.zeros(0, dtype=model.dtype)

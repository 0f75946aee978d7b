"""From a verdict to rewards: of the rollout, and of the action tokens at which they are earned."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trimtab.records import I32, Segment
from trimtab.tasks.protocol import Step, Verdict
from trimtab.tasks.shaping import ShapingOptions

Completing = Callable[[I32, Sequence[int | None]], list[int]]  # see Renderer.completing


def rewarded(
    segments: Sequence[Segment], verdict: Verdict, shaping: ShapingOptions, completing: Completing
) -> tuple[tuple[Segment, ...], float | None]:
    """The segments with their step-level rewards, if any, and the rollout's reward; None: it is the score.

    Step-level rewards are float32 and sum, in float64, to the rollout's reward exactly.
    """
    scale, offset = shaping.scale, shaping.offset
    if verdict.steps is not None:
        parts = _placed(segments, [replace(s, reward=scale * s.reward) for s in verdict.steps], offset, completing)
        return parts, sum(float(s.reward.sum(dtype=np.float64)) for s in parts if s.reward is not None)
    if (scale, offset) == (1.0, 0.0):
        return tuple(segments), verdict.reward
    return tuple(segments), offset + scale * (verdict.score if verdict.reward is None else verdict.reward)


def _placed(segments: Sequence[Segment], steps: Sequence[Step], rest: float, completing: Completing) -> tuple[Segment, ...]:
    """Each step on the action token that completes its characters, ``rest`` on the last action token of all."""
    lengths = [len(s.tokens) for s in segments]
    tokens, turn = (np.concatenate([getattr(s, name) for s in segments]) for name in ("tokens", "turn"))
    acted = np.concatenate([s.action_mask for s in segments])
    reward = np.zeros(len(tokens))
    for number in sorted({step.turn for step in steps}):
        here = [step for step in steps if step.turn == number]
        places = np.flatnonzero(acted & (turn == number))
        np.add.at(reward, places[completing(tokens[places], [step.end for step in here])], [step.reward for step in here])
    reward[np.flatnonzero(acted)[-1:]] += rest
    columns = np.split(reward.astype(np.float32), np.cumsum(lengths)[:-1])
    return tuple(replace(s, reward=column) for s, column in zip(segments, columns, strict=True))


def completing_tokens(
    ids: Sequence[int], text: str, ends: Sequence[int], piece: Callable[[int], str], decode: Callable[[Sequence[int]], str]
) -> list[int]:
    """For each of ``ends``, the index of the token with which the first ``end`` characters of ``text`` are there.

    Where the tokens' own texts (``piece``) lie end to end in ``text``, that is where they lie. Elsewhere (a character spread over
    tokens, a tokenizer that drops a leading blank) it is the first token at which the decoded beginning agrees with ``text``.
    """
    pieces = [piece(i) for i in ids]
    if "".join(pieces) == text and "\ufffd" not in text:
        return np.searchsorted(np.cumsum([len(p) for p in pieces]), ends).tolist()
    agrees = [lambda n, end=end: decode(ids[: n + 1])[:end] == text[:end] for end in ends]
    return [bisect_left(range(len(ids) - 1), True, key=a) for a in agrees]

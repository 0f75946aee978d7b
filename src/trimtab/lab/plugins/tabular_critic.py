"""A critic that is told whether the response is still right: an upper bound for learned ones, in experiments on chained sums.

V is a table over (is every character so far that of the right response?, how many tokens so far?). No learned critic has the first: the
answer is recomputed from the prompt. Whatever this one explains, a learned one explains less, and its metrics say ``privileged_critic``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.lab.plugins.running_totals import right_response, separator_of
from trimtab.learner.critic import Regressing, Told
from trimtab.learner.critic_options import CriticOptions
from trimtab.learner.optimizer import ScheduledAdamW
from trimtab.learner.packing import Packed
from trimtab.learner.passes import PackedModel
from trimtab.records import Bool, Rollout, TrimtabError

_EXPRESSION = re.compile(r"-?[0-9]+(?:\s*[+-]\s*[0-9]+)+")

Decode = Callable[[Sequence[int]], str]  # the text of tokens, without special ones


def make(policy: PackedModel, options: CriticOptions, told: Told | None) -> TabularCritic:
    """The critic of a run, which is told the right answers: only the task and the tokenizer know them.

    Raises:
        ValueError: ``told`` is None, or the task has no running totals.
    """
    separator = None if told is None else separator_of(told.task)
    if told is None or separator is None:
        raise ValueError("a tabular critic needs the task's answers and the learner was given none")
    return TabularCritic(options, told.decode, separator=separator, positions=told.positions, device=policy.device)


class TabularCritic(Regressing):
    """``positions``: most action tokens of a rollout. ``separator``: stands between two totals."""

    label = "privileged_critic"

    def __init__(self, options: CriticOptions, decode: Decode, *, separator: str, positions: int, device: torch.device) -> None:
        self.options = options
        self._decode, self._separator = decode, separator
        self._pieces: dict[int, int] = {}  # characters of single tokens
        self.table = nn.Parameter(torch.zeros(2, positions, device=device))
        self.optimizer = ScheduledAdamW([self.table], options.optimizer, options.schedule)

    def _values(self, packed: Packed) -> Tensor:
        right = [self.still_right(r) for r in packed.rollouts]
        position_N = torch.from_numpy(np.concatenate([np.arange(len(x)) for x in right])).to(packed.device)
        right_N = torch.from_numpy(np.concatenate(right).astype(np.int64)).to(packed.device)
        return self.table[right_N, position_N].to(packed.behavior_N.dtype)

    def still_right(self, rollout: Rollout) -> Bool:
        """Before each action token: is what the response says so far the beginning of the right response?"""
        if not rollout.actions:
            return np.zeros(0, np.bool_)
        (s,) = (part for part in rollout.segments if part.actions)
        begin = int(np.flatnonzero(s.action_mask)[0])
        found = _EXPRESSION.search(self._decode(s.tokens[:begin].tolist()))
        if found is None:
            raise TrimtabError("learner.critic.kind = 'tabular': the prompt shows no sum of terms; use model or head")
        right = right_response(found[0], self._separator)
        said = self._decode(s.tokens[begin:].tolist())
        agree = next((i for i, (a, b) in enumerate(zip(said, right, strict=False)) if a != b), min(len(said), len(right)))
        ends = np.cumsum([0, *(self._length(t) for t in s.tokens[begin:-1].tolist())])
        return np.asarray(ends <= agree, dtype=np.bool_)

    def _length(self, token: int) -> int:
        if token not in self._pieces:
            self._pieces[token] = len(self._decode([token]))
        return self._pieces[token]

    def boot(self, packed: Packed) -> Tensor:
        """Nothing: the table has no state after the last token."""
        return torch.zeros(len(packed.rollouts), dtype=torch.float64, device=packed.device)

    def state_dict(self) -> dict[str, object]:
        return {"table": self.table.detach().clone(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        if "table" not in state:
            raise ValueError("critic kind tabular: the checkpoint holds a critic of another kind")
        table, optimizer = state["table"], state["optimizer"]
        assert isinstance(table, Tensor)
        assert isinstance(optimizer, dict)
        with torch.no_grad():
            self.table.copy_(table)
        self.optimizer.load_state_dict(optimizer)

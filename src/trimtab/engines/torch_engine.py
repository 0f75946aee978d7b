"""The embedded engine: the real transformers model, batched decoding with continuous batching.

One ``step``::

    weights committed since the last step?  recompute: the keys of running rows are computed again
    free places?                            queued requests start: the keys of their prompts are put into the slot cache
    decode                                  every row's last token goes in, one token a row comes out
    finished rows                           leave; their places are free for the next step

A row enters decoding with its *last* prompt token, so that starting it needs only the keys of the tokens before. Those are
computed for several queued prompts ahead in one forward, and once for requests with the same prompt (a group's members).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimtab.engines import kv
from trimtab.engines.checkpoint import Policy
from trimtab.engines.forgetting import Phi, forgetting
from trimtab.engines.forward import Forward
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Completion, Engine, Request
from trimtab.engines.rows import Rows, kept_sets
from trimtab.engines.scoring import said, score
from trimtab.engines.served import ServedWeights
from trimtab.engines.waiting import WaitingRequests
from trimtab.functional.distribution import Knobs, check_sampling, kept_set, log_probs, sample, tempered
from trimtab.records import F32, Segment, TrimtabError


def make(policy: Policy, options: TorchEngineOptions, rescore: Phi | None) -> Engine:
    """The engine of a run, serving version 0."""
    return TorchEngine(policy, options, rescore=rescore)


class TorchEngine:
    """Serves its own copy of ``policy.model`` (training the original changes nothing here) as ``version`` of ``incarnation``.

    Sampled tokens and log-probs depend on the request and the weights alone, not on slot, neighbors or order (floats round).

    ``rescore``: where a swap makes the keys of running rows be computed again, score what they have said so far as well.
    """

    reports_kept = True

    def __init__(
        self, policy: Policy, options: TorchEngineOptions, version: int = 0, incarnation: int = 0, rescore: Phi | None = None
    ) -> None:
        self.options, self._rescore = options, rescore
        self._device = torch.device(options.device)
        model = copy.deepcopy(policy.model).eval().requires_grad_(False).to(self._device)
        dtype = getattr(torch, options.dtype)
        for parameter in model.parameters():  # parameters only: the rotary frequencies stay float32
            parameter.data = parameter.data.to(dtype)
        kv.install(model)
        self._eos_ids = frozenset(policy.eos_ids)
        self._context = min(policy.context, options.max_context or policy.context)
        self._forward = Forward(model, policy.context, policy.vocabulary)
        self._weights = ServedWeights(model, version, incarnation)
        self._cache = kv.SlotCache(model, options.slots, dtype, self._device)
        self._rows = Rows(options.slots)
        self._waiting = WaitingRequests(self._forward, options.slots)
        self._stale = False  # keys of running rows are older than the weights

    # ----------------------------------------------------------------------------------------------------------- weights

    @property
    def version(self) -> int:
        return self._weights.version

    @property
    def incarnation(self) -> int:
        return self._weights.incarnation

    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        return self._weights.stage(version, incarnation, weights)

    def commit(self, version: int) -> None:
        self._weights.commit(version)
        self._rows.new_version(version)
        # The keys of requests that have not started are computed anew under either policy, those of running rows under `recompute`.
        self._waiting.new_weights()
        self._stale = self.options.cache_policy == "recompute"

    def abort(self) -> None:
        self._weights.abort()

    # ---------------------------------------------------------------------------------------------------------- requests

    @property
    def slots(self) -> int:
        return self.options.slots

    @property
    def running(self) -> int:
        return self._rows.n - len(self._rows.holes)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ``TrimtabError`` where it cannot be run: no context, too long, or no distribution."""
        check_sampling(request.sampling, self._forward.vocabulary)
        prompt, new = len(request.prompt), request.max_new_tokens
        if prompt == 0:
            raise TrimtabError.field("prompt", [], "the first token needs a context to be sampled from, prepend a BOS")
        if new < 1:
            raise TrimtabError.field("max_new_tokens", new, "ask for at least one token")
        if prompt + new > self._context:
            raise TrimtabError(
                f"prompt of {prompt} tokens + max_new_tokens = {new} exceed the context of {self._context}; shorten one of them"
            )
        self._waiting.add(request)

    def cancel(self, request_id: int) -> None:
        if not self._waiting.remove(request_id):
            for row, running in enumerate(self._rows.running):
                if running is not None and running.request.id == request_id:
                    self._rows.free(row)

    def score(self, segments: Sequence[Segment]) -> list[F32]:
        return score(self._forward, segments)

    def close(self) -> None:
        """Forget all requests."""
        self._rows = Rows(self.options.slots)
        self._waiting = WaitingRequests(self._forward, self.options.slots)

    # -------------------------------------------------------------------------------------------------------------- step

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        begun = time.time()  # what starts now starts here: the keys of its prompt are part of its first step
        if self._stale:
            self._recompute()
        self._fill(begun)
        rows = self._rows
        if rows.n == 0:
            return []
        due = rows.due()
        if not len(due):
            return []
        tokens, logp = self._decode(due)
        return [rows.finish(row, self._eos_ids) for row in rows.record(tokens, logp, due).tolist()]

    def _decode(self, due: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]:
        """One token a row and its log-prob; what rows say that are not due is not kept."""
        rows, n = self._rows, self._rows.n
        position_n = rows.position[:n]
        decode = kv.Decode(self._cache, position_n)
        hidden = self._forward.hidden(self._tensor(rows.last[:n])[:, None], self._tensor(position_n)[:, None], decode)[:, 0]
        knobs = (
            Knobs.of(rows.samplings(), self._forward.vocabulary, self._device)
            if rows.cut
            else Knobs(self._tensor(rows.temperature[:n]), None, None, None)
        )
        z_NxV = tempered(self._forward.logits(hidden), knobs.temperature_N)
        kept_NxV = kept_set(z_NxV, knobs)
        logp_NxV = log_probs(z_NxV, kept_NxV)
        tokens = sample(logp_NxV, self._tensor(rows.draws()))
        if kept_NxV is not None:
            rows.record_kept(kept_NxV.cpu().numpy(), due)
        return tokens.cpu().numpy(), logp_NxV.gather(-1, tokens[:, None])[:, 0].cpu().numpy()

    def _tensor(self, column: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(column).to(self._device)

    def _fill(self, now: float) -> None:
        """Start waiting requests at free places; close the gaps that remain."""
        rows, in_use = self._rows, self._rows.n
        free = rows.take_free()
        starting = self._waiting.take(len(free))
        for row, ready in zip(free, starting, strict=False):
            if ready.keys is not None:
                self._cache.put(row, ready.keys)
            rows.start(row, ready.request, ready.uniform, self.version, self.incarnation, now, self.options.speed(ready.request.key))
        for row in reversed([row for row in free[len(starting) :] if row < in_use]):
            # From the highest hole down, the last row is the hole itself or a running one.
            self._cache.move(rows.n - 1, row, int(rows.position[rows.n - 1]))
            rows.drop_last(into=row)

    def _recompute(self) -> None:
        """Replace the keys of every running row by those of the served weights."""
        rows = self._rows
        self._stale = False
        self._cache.clear()
        running = [row for row in range(rows.n) if rows.running[row] is not None and rows.position[row] > 0]
        for i, hidden_TxD, keys in self._forward.keys([rows.sequence(row) for row in running]):
            self._cache.put(running[i], keys)
            if self._rescore is not None:
                self._score_again(running[i], hidden_TxD, self._rescore)

    def _score_again(self, row: int, hidden_TxD: Tensor, phi: Phi) -> None:
        """How far the served weights have moved on the row's tokens so far, all sampled by older ones."""
        running, made = self._rows.running[row], int(self._rows.made[row])
        assert running is not None
        if made:
            where = len(hidden_TxD) + 1 - made + torch.arange(made, device=self._device)
            tokens = self._rows.tokens[row, :made]
            now = said(self._forward, hidden_TxD, where, tokens, running.request.sampling, kept_sets(running))
            running.forgetting = forgetting(self._rows.logp[row, :made], now, phi)

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
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trimtab import keyed
from trimtab.engines import forward, kv
from trimtab.engines.checkpoint import Policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Completion, Request
from trimtab.engines.rows import Rows
from trimtab.engines.scoring import score
from trimtab.engines.served import ServedWeights
from trimtab.functional.distribution import Knobs, check_sampling, kept_set, log_probs, sample, tempered
from trimtab.records import F32, I32, Segment, TrimtabError


class TorchEngine:
    """Serves its own copy of ``policy.model`` (training the original changes nothing here) as ``version`` of ``incarnation``.

    Sampled tokens and log-probs depend on the request and the weights alone, not on slot, neighbors or order (floats round).
    """

    reports_kept = True

    def __init__(self, policy: Policy, options: TorchEngineOptions, version: int = 0, incarnation: int = 0) -> None:
        self.options = options
        self._device = torch.device(options.device)
        self._model = copy.deepcopy(policy.model).eval().requires_grad_(False).to(self._device)
        dtype = getattr(torch, options.dtype)
        for parameter in self._model.parameters():  # parameters only: the rotary frequencies stay float32
            parameter.data = parameter.data.to(dtype)
        kv.install(self._model)
        self._eos_ids = frozenset(policy.eos_ids)
        self._context = min(policy.context, options.max_context or policy.context)
        self._vocabulary = self._model.config.vocab_size
        self._weights = ServedWeights(self._model, version, incarnation)
        self._cache = kv.SlotCache(self._model, options.slots, dtype, self._device)
        self._rows = Rows(options.slots)
        self._queue: deque[Request] = deque()
        self._prompts: dict[bytes, Tensor] = {}  # keys of queued requests' prompts, under the served weights
        self._waiting: Counter[bytes] = Counter()  # queued requests by prompt
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
        # Prompts that have not started are computed anew under either policy; running rows only under `recompute`.
        self._prompts.clear()
        self._stale = self.options.cache_policy == "recompute"

    def abort(self) -> None:
        self._weights.abort()

    # ---------------------------------------------------------------------------------------------------------- requests

    @property
    def slots(self) -> int:
        return self.options.slots

    @property
    def running(self) -> int:
        return sum(row is not None for row in self._rows.running)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ``TrimtabError`` where it cannot be run: no context, too long, or no distribution."""
        check_sampling(request.sampling, self._vocabulary)
        prompt, new = len(request.prompt), request.max_new_tokens
        if prompt == 0:
            raise TrimtabError.field("prompt", [], "the first token needs a context to be sampled from, prepend a BOS")
        if new < 1:
            raise TrimtabError.field("max_new_tokens", new, "ask for at least one token")
        if prompt + new > self._context:
            raise TrimtabError(
                f"prompt of {prompt} tokens + max_new_tokens = {new} exceed the context of {self._context}; shorten the prompt or the response"
            )
        self._queue.append(request)
        self._waiting[_prompt_key(request)] += 1

    def cancel(self, request_id: int) -> None:
        for request in self._queue:
            if request.id == request_id:
                self._queue.remove(request)
                self._leave_queue(request)
                return
        for row, running in enumerate(self._rows.running):
            if running is not None and running.request.id == request_id:
                self._rows.running[row] = None

    def score(self, segments: Sequence[Segment]) -> list[F32]:
        return score(self._model, segments)

    def close(self) -> None:
        self._queue.clear()
        self._prompts.clear()
        self._waiting.clear()
        self._rows = Rows(self.options.slots)

    # -------------------------------------------------------------------------------------------------------------- step

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        if self._stale:
            self._recompute()
        self._fill()
        rows = self._rows
        if rows.n == 0:
            return []
        tokens, logp = self._decode()
        return [rows.finish(row, self._eos_ids) for row in rows.record(tokens, logp, self.version)]

    def _decode(self) -> tuple[np.ndarray, np.ndarray]:
        """One token a row and its log-prob."""
        rows, n = self._rows, self._rows.n
        width = int(rows.position[:n].max()) + 1
        self._cache.ensure(width)
        position_n = self._tensor(rows.position[:n])
        hidden = self._model.model(
            input_ids=self._tensor(rows.last[:n])[:, None],
            position_ids=position_n[:, None],
            attention_mask=kv.NO_MASK,
            use_cache=False,
            kv=kv.Decode(self._cache, position_n, width),
        ).last_hidden_state[:, 0]
        knobs = self._knobs()
        z_NxV = tempered(self._model.lm_head(hidden), knobs.temperature_N)
        kept_NxV = kept_set(z_NxV, knobs)
        logp_NxV = log_probs(z_NxV, kept_NxV)
        tokens = sample(logp_NxV, self._tensor(keyed.uniform(rows.key[:n], rows.turn[:n], rows.made[:n])))
        if kept_NxV is not None:
            rows.record_kept(kept_NxV.cpu().numpy())
        return tokens.cpu().numpy(), logp_NxV.gather(-1, tokens[:, None])[:, 0].cpu().numpy()

    def _knobs(self) -> Knobs:
        rows, n = self._rows, self._rows.n
        if not rows.cut[:n].any():
            return Knobs(self._tensor(rows.temperature[:n]), None, None, None)
        return Knobs.of(rows.samplings(), self._vocabulary, self._device)

    def _tensor(self, column: np.ndarray) -> Tensor:
        return torch.from_numpy(column).to(self._device)

    # ------------------------------------------------------------------------------------------------------------ places

    def _fill(self) -> None:
        """Start queued requests at free places; close the gaps that remain."""
        rows = self._rows
        holes = [row for row in range(rows.n) if rows.running[row] is None]
        free = holes + list(range(rows.n, self.slots))
        starting = [self._queue.popleft() for _ in range(min(len(free), len(self._queue)))]
        self._prepare(starting)
        for row, request in zip(free, starting, strict=False):
            if len(request.prompt) > 1:
                self._cache.put(row, self._prompts[_prompt_key(request)])
            self._leave_queue(request)
            rows.start(row, request, self.incarnation)
        for row in reversed(holes[len(starting) :]):
            # From the highest gap down, the last row is the gap itself or a running one.
            self._cache.move(rows.n - 1, row, int(rows.position[rows.n - 1]))
            rows.drop_last(into=row)

    def _prepare(self, starting: Sequence[Request]) -> None:
        """Compute the keys of the prompts of ``starting``, and with them those of prompts that will start soon."""
        missing = self._missing(starting)
        if not missing:
            return
        ahead = [self._queue[i] for i in range(min(len(self._queue), self.slots))]
        for key, prompt in self._missing(ahead).items():
            if len(missing) >= len(starting) + self.slots // 4:
                break
            missing.setdefault(key, prompt)
        names = list(missing)
        for chunk in forward.run(self._model, [missing[key] for key in names], keep=True):
            keys = chunk.kv.keys()
            for row, i in enumerate(chunk.index):
                self._prompts[names[i]] = keys[:, :, row, :, : len(missing[names[i]])]

    def _missing(self, requests: Sequence[Request]) -> dict[bytes, I32]:
        """The prompts, without their last token, whose keys are not at hand."""
        wanted = {_prompt_key(r): r.prompt[:-1] for r in requests if len(r.prompt) > 1}
        return {key: prompt for key, prompt in wanted.items() if key not in self._prompts}

    def _leave_queue(self, request: Request) -> None:
        key = _prompt_key(request)
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
            self._prompts.pop(key, None)

    def _recompute(self) -> None:
        """Replace the keys of every running row by those of the served weights."""
        self._stale = False
        self._cache.clear()
        running = [row for row in range(self._rows.n) if self._rows.running[row] is not None and self._rows.position[row] > 0]
        for chunk in forward.run(self._model, [self._rows.sequence(row) for row in running], keep=True):
            keys = chunk.kv.keys()
            for place, i in enumerate(chunk.index):
                row = running[i]
                self._cache.put(row, keys[:, :, place, :, : self._rows.position[row]])


def _prompt_key(request: Request) -> bytes:
    return request.prompt.tobytes()

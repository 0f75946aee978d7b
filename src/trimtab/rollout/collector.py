"""Groups in, groups out: requests to the engine, responses to the verifier, verdicts to whole groups.

    assign ──▶ task.prompt ──▶ renderer.ids ──▶ engine ──(completion)──▶ renderer.text ──▶ verifier ──(verdict)──▶ group
                    │ refused                                                                                       │
                    └───────────────▶ GroupFailed (final)                    GroupDone, or GroupFailed (to be retried)

Single-threaded and passive: things move in ``step``. What a group holds depends on its keys and the weights alone; timing decides
only the order in which groups come out. One collector at a time owns an engine and a verifier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from trimtab import keyed
from trimtab.engines.protocol import Completion, Engine, Request
from trimtab.records import I32, Group, Rollout, Segment, Slot, StoppedByRule, TrimtabError
from trimtab.rollout import assemble
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.screen import rendered
from trimtab.rollout.steps import rewarded
from trimtab.rollout.verdict_counts import VerdictCounts
from trimtab.tasks.protocol import Prompt, Task, Verdict
from trimtab.tasks.shaping import ShapingOptions
from trimtab.tasks.verifier import Verifier

_POLL_S = 0.01  # longest wait for a verdict in one step
_NAMED = 8  # slots that an error names


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDone:
    """A finished group. ``errors``: why members left it, which have no verdict; ``scoring_s``: the scorer's seconds for each verdict."""

    group: Group
    errors: tuple[str, ...] = ()
    scoring_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed:
    """No group: too few members without error (``retry``: another attempt may do better), or a prompt that cannot be run."""

    slot: Slot
    row: int
    attempt: int
    reason: str
    retry: bool


Result = GroupDone | GroupFailed


@dataclass(slots=True)
class _Work:
    """One group under way. ``parts``: segments and completions of members whose verdict is still out."""

    slot: Slot
    prompt: Prompt
    prompt_ids: I32
    attempt: int
    ids: range  # request ids of the members
    parts: dict[int, tuple[Segment, Completion]] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    scoring_s: list[float] = field(default_factory=list)


class Collector:
    """Runs groups of ``task`` on ``engine`` and scores them with ``verifier``; ``max_groups`` at a time (default: of two batches)."""

    def __init__(
        self,
        engine: Engine,
        task: Task,
        verifier: Verifier,
        renderer: Renderer,
        options: RolloutOptions,
        seed: int,
        *,
        tag: int = keyed.ROLLOUT,
        max_groups: int | None = None,
        shaping: ShapingOptions | None = None,
    ) -> None:
        self.engine = engine
        self._task, self._verifier, self._renderer = task, verifier, renderer
        self._options, self._seed, self._tag = options, seed, tag
        self._sampling = options.sampling
        self._shaping = shaping or ShapingOptions()
        self._max_groups = options.held_batches * options.prompts_per_batch if max_groups is None else max_groups
        self._work: dict[int, _Work] = {}  # by request id, until the member's verdict
        self._groups: dict[Slot, _Work] = {}
        self._results: list[Result] = []
        self._generating = 0
        self._next_id = 0
        self._counts = VerdictCounts()

    @property
    def outstanding(self) -> int:
        """Groups assigned whose result ``step`` has not returned."""
        return len(self._groups) + len(self._results)

    @property
    def generating(self) -> int:
        """Requests the engine has not completed, those that wait for a place among them."""
        return self._generating

    def room(self) -> int:
        """How many more groups may be assigned."""
        return max(0, self._max_groups - self.outstanding)

    def assign(self, slot: Slot, row: int, attempt: int) -> None:
        """Start the group of task row ``row``. A prompt that cannot be had or rendered is a ``GroupFailed`` of the next step."""
        if slot in self._groups:
            raise ValueError(f"slot {slot} is under way already")
        try:
            get = self._task.prompt if self._tag != keyed.EVAL else self._task.eval_prompt
            prompt, ids = rendered(get, self._renderer, row)
        except TrimtabError as error:
            self._results.append(GroupFailed(slot=slot, row=row, attempt=attempt, reason=str(error), retry=False))
            return
        o = self._options
        requests = range(self._next_id, self._next_id + o.group_size)
        self._next_id = requests.stop
        work = self._groups[slot] = _Work(slot, prompt, ids, attempt, requests)
        keys = keyed.fold(self._tag, self._seed, slot.epoch, slot.index, attempt, np.arange(o.group_size))  # keyed.stream of each member
        for request, key in zip(requests, keys.tolist(), strict=True):
            self._work[request] = work
            self._generating += 1
            self.engine.submit(
                Request(
                    id=request,
                    prompt=ids,
                    max_new_tokens=o.max_new_tokens,
                    sampling=self._sampling,
                    key=key,
                    stop_ids=self._renderer.stop_ids,
                    stop_rule=None if self._renderer.stops is None else self._renderer.stops.ends,
                )
            )

    def step(self) -> list[Result]:
        """One decode step and what the verifier has found: the groups that ended. Waits a moment where only verdicts are out."""
        if self._generating:
            for completion in self.engine.step():
                self._completed(completion)
        idle = not self._generating and not self._results
        for request, verdict in self._verifier.poll(_POLL_S if idle and self._groups else 0.0):
            self._judged(request, verdict)
        results, self._results = self._results, []
        return results

    def take_counts(self) -> VerdictCounts:
        """What became of the responses since the last call, those of groups that failed or were cancelled included."""
        counts, self._counts = self._counts, VerdictCounts()
        return counts

    def drain(self, deadline_s: float) -> list[Result]:
        """Step until nothing is outstanding; StoppedByRule naming who is waited for where no group ends for ``deadline_s``."""
        since = time.monotonic()
        results: list[Result] = []
        while self.outstanding:
            if ended := self.step():
                results += ended
                since = time.monotonic()
            if self._groups and time.monotonic() - since > deadline_s:
                named = ", ".join(f"({s.epoch}, {s.index})" for s in sorted(self._groups)[:_NAMED])
                more = f" and {len(self._groups) - _NAMED} more" if len(self._groups) > _NAMED else ""
                raise StoppedByRule(f"no group ended for {deadline_s:g} s; slots still out: {named}{more}")
        return results

    def cancel(self, slot: Slot) -> None:
        """Stop a group: no result of it will come. Nothing happens where it has ended already."""
        work = self._groups.pop(slot, None)
        if work is None:
            return
        requests = {request for request in work.ids if request in self._work}
        self._verifier.cancel(requests & work.parts.keys())
        for request in requests - work.parts.keys():
            self.engine.cancel(request)
            self._generating -= 1
        for request in requests:
            del self._work[request]

    def _completed(self, completion: Completion) -> None:
        work = self._work.get(completion.id)
        if work is None:  # an engine may report what it cancelled
            return
        self._generating -= 1
        part = assemble.segment(work.prompt_ids, completion, self._sampling)
        work.parts[completion.id] = part, completion
        verdict = assemble.unseen(completion, self._options.truncated)
        if verdict is None:
            self._verifier.submit(completion.id, work.prompt, self._renderer.text(completion.tokens))
        else:
            self._judged(completion.id, verdict)

    def _judged(self, request: int, verdict: Verdict) -> None:
        work = self._work.pop(request)
        part, completion = work.parts.pop(request)
        (part,), reward = rewarded([part], verdict, self._shaping, self._renderer.completing)
        rollout = assemble.rollout(work.ids.index(request), part, completion, verdict, time.time(), reward)
        work.rollouts.append(rollout)
        work.scoring_s.append(verdict.seconds)
        self._counts.count(verdict.outcome, verdict.detail)
        if not rollout.judged:
            work.errors.append(verdict.detail)
        if len(work.rollouts) == len(work.ids):
            del self._groups[work.slot]
            self._results.append(self._result(work))

    def _result(self, work: _Work) -> Result:
        valid = assemble.members(work.rollouts)
        least = self._options.smallest_group
        self._counts.group(work.rollouts, whole=len(valid) >= least)
        if len(valid) < least:
            reason = f"{len(valid)} of {len(work.ids)} rollouts have a verdict, {least} are needed; the last error: {work.errors[-1]}"
            return GroupFailed(slot=work.slot, row=work.prompt.row, attempt=work.attempt, reason=reason, retry=True)
        group = Group(
            slot=work.slot,
            prompt=work.prompt.row,
            attempt=work.attempt,
            seed=self._seed,
            task=self._task.name,
            source=work.prompt.source,
            rollouts=valid,
        )
        return GroupDone(group=group, errors=tuple(work.errors), scoring_s=tuple(work.scoring_s))

"""What GAC's thresholds are for a run: the cosine of consecutive gradients over a synchronous stretch of it.

    c_low = clamp(mean + 2 sd, 0.02, 0.5)        c_high = clamp(c_low + 0.5, 0.3, 0.95)

A fixed threshold would be wrong somewhere: with a true gradient d and independent noise n, even on-policy cosines average about
SNR / (1 + SNR), SNR = |d|^2 / E|n|^2, which is small only where batches are small for their task.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from trimtab.config.load import validate
from trimtab.config.run import LockstepOptions, RunConfig
from trimtab.control.protocol import SelectMethod, StepResult
from trimtab.control.registry import ChainMember
from trimtab.methods.gac import GAC
from trimtab.records import Json, TrimtabError
from trimtab.runtime.build import build
from trimtab.runtime.lockstep import Lockstep
from trimtab.runtime.session import Nobody, Session
from trimtab.runtime.snapshots import Snapshots
from trimtab.runtime.stopping import Interrupted, Stop
from trimtab.store.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Mean and standard deviation of the cosines, and what follows from them."""

    cosines: int
    mean: float
    sd: float
    c_low: float
    c_high: float

    @property
    def snr(self) -> float:
        """|d|^2 / E|n|^2 of one update, read off the mean cosine."""
        return max(0.0, self.mean) / (1.0 - min(self.mean, 0.999))


def thresholds(cosines: Sequence[float]) -> Thresholds:
    if len(cosines) < 2:
        raise TrimtabError.field("batches", len(cosines), "so few of them gave a cosine; raise --batches")
    mean, sd = statistics.fmean(cosines), statistics.stdev(cosines)
    c_low = min(max(mean + 2 * sd, 0.02), 0.5)
    return Thresholds(len(cosines), mean, sd, c_low, min(max(c_low + 0.5, 0.3), 0.95))


def synchronous(config: RunConfig, batches: int) -> RunConfig:
    """The run's first batches at lag 0, with a GAC that only measures and no method that selects among waiting groups."""
    table: dict[str, Json] = config.model_dump(mode="json")
    options = next((entry.options for entry in config.methods if entry.name == "gac"), {})
    selecting = {m.name for m in config.chain().acting(SelectMethod) if m.min_depth}
    kept = [e.model_dump(mode="json") for e in config.methods if e.name != "gac" and e.name not in selecting]
    methods: list[Json] = [*kept, {"name": "gac", **options, "monitor": True}]
    learner, evaluating = table["learner"], table["eval"]
    assert isinstance(learner, dict)
    assert isinstance(evaluating, dict)
    return validate(
        table
        | {
            "methods": methods,
            "runtime": {"kind": "lockstep", "lag": 0},
            "learner": learner | {"batches": batches + 1},  # the first gradient has none before it
            "eval": evaluating | {"every": 0},
            "store": {"rollouts": False, "every": batches + 2},
            "telemetry": {"timeline": False},
        }
    )


def cosines(config: RunConfig, batches: int) -> list[float]:
    """One a compared update; the run's folder is temporary."""
    config = synchronous(config, batches)
    assert isinstance(config.runtime, LockstepOptions)
    parts = build(config)
    try:
        watching = _watch(parts.learner.chain.members)
        with tempfile.TemporaryDirectory() as above, RunFolder.create(Path(above) / "calibration") as folder:
            stop = Stop()
            session = Session(config, folder, parts.learner, parts.pool, parts.clock, Nobody(), stop)
            session.open()
            with closing(session), stop.listening(), suppress(Interrupted):
                Lockstep(session, parts.sampler, config.runtime, Snapshots(config.runtime)).run(stop)
    finally:
        parts.sampler.close()
    return watching.seen


class _Watching(GAC):
    """Remembers the cosines that it would control."""

    seen: list[float]

    def after(self, result: StepResult) -> None:
        if self.cosine is not None and (self.options.boundary == "update" or result.mini_step == 0):
            self.seen.append(self.cosine)
        super().after(result)


def _watch(members: list[ChainMember]) -> _Watching:
    place, member = next((i, m) for i, m in enumerate(members) if isinstance(m.method, GAC))
    assert isinstance(member.method, GAC)
    watching = _Watching(member.method.options)
    watching.seen = []
    members[place] = ChainMember(watching, member.origin)
    return watching

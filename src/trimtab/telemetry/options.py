"""Options of telemetry: which sinks, and when each detector speaks up."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Action = Literal["off", "warn", "stop"]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WatchOptions(_Options):
    """What every detector has: what it does when it fires, and when it may fire again."""

    action: Action = Field(
        default="warn", description="off; an event in terminal, run.log and report (warn); or that, and the run ends (stop)"
    )
    rearm: int = Field(default=20, ge=1, description="batches without a finding that end an episode; one event an episode")


class EssOptions(WatchOptions):
    """The batch is carried by few rollouts: the mean ESS falls below a share of its best window, or below a floor."""

    window: int = Field(default=10, ge=1, description="batches averaged")
    start: int = Field(default=40, ge=0, description="first batch that counts: before it the policy moves fast and ESS is low by nature")
    fraction: float = Field(default=0.5, gt=0, lt=1, description="alarm below this share of the best window since start")
    floor: float = Field(default=0.1, ge=0, lt=1, description="alarm below this value whatever the best was")


class RatioP99Options(WatchOptions):
    """The tail of the raw importance ratios is heavy."""

    window: int = Field(default=10, ge=1, description="batches whose median is taken")
    limit: float = Field(default=10.0, gt=1, description="alarm where the median is above this raw sequence importance ratio")
    spike: float = Field(default=50.0, gt=1, description="alarm where one batch is above this")


class TruncationWatchOptions(WatchOptions):
    """Many rollouts run into the token limit, or more and more of them do."""

    window: int = Field(default=10, ge=1, description="batches averaged")
    rise: float = Field(default=0.1, gt=0, le=1, description="alarm this much above the lowest window so far")
    limit: float = Field(default=0.5, gt=0, le=1, description="alarm above this share whatever it was before, from the first batches on")


class LengthOptions(WatchOptions):
    """Responses suddenly become much shorter or longer than they just were."""

    window: int = Field(default=10, ge=1, description="batches averaged")
    reference: int = Field(default=64, ge=1, description="batches before the window whose median is the reference")
    shrink: float = Field(default=0.5, gt=0, lt=1, description="alarm below this multiple of the reference")
    grow: float = Field(default=2.0, gt=1, description="alarm above this multiple of the reference")


class EntropyOptions(WatchOptions):
    """Entropy falls fast and reward does not rise."""

    window: int = Field(default=10, ge=1, description="batches averaged")
    span: int = Field(default=64, ge=1, description="batches over which the fall is measured")
    fraction: float = Field(default=0.25, gt=0, lt=1, description="alarm below this share of the entropy one span ago")
    slack: float = Field(default=0.05, ge=0, description="only where reward is this far below its best: learning lowers entropy too")


class KlOptions(WatchOptions):
    """The learner has moved away from the policy that sampled: k3 is above a limit, or far above what it just was."""

    window: int = Field(default=10, ge=1, description="batches averaged")
    limit: float = Field(default=0.15, gt=0, description="alarm above this k3, nats a token")
    reference: int = Field(default=64, ge=1, description="batches before the window whose median is the reference")
    jump: float = Field(default=10.0, gt=1, description="alarm above this multiple of the reference")
    least: float = Field(default=0.03, ge=0, description="a jump below this k3 is no alarm")


class NormSpikeOptions(WatchOptions):
    """A gradient is far larger than usual. Healthy runs have a few: a reason to clip, not to stop."""

    reference: int = Field(default=64, ge=2, description="norms whose median is the reference; norms of 0 do not count")
    start: int = Field(default=20, ge=2, description="norms needed before it may fire")
    factor: float = Field(default=5.0, gt=1, description="alarm above this multiple of the reference")


class StandstillOptions(WatchOptions):
    """Steps are applied and the weights hardly change: the steps are too small for the dtype."""

    window: int = Field(default=10, ge=1, description="applied batches averaged")
    masters: float = Field(default=0.1, ge=0, le=1, description="alarm where a step changes a smaller share of the optimizer's weights")
    published: float = Field(default=1e-4, ge=0, le=1, description="alarm where it changes a smaller share of the published ones")


class VerdictsOptions(WatchOptions):
    """The scorer fails on many responses: what is learned comes from the others alone."""

    window: int = Field(default=10, ge=1, description="batches whose responses are counted together, or as many as there are")
    limit: float = Field(default=0.05, ge=0, lt=1, description="alarm where more than this share of the responses got no verdict")
    least: int = Field(default=20, ge=1, description="responses needed before it may fire")


class NonfiniteOptions(WatchOptions):
    """A metric of the batch is NaN or infinite."""


class DetectorOptions(_Options):
    """One table a detector, by name."""

    ess: EssOptions = EssOptions()
    ratio_p99: RatioP99Options = RatioP99Options()
    truncation: TruncationWatchOptions = TruncationWatchOptions()
    length: LengthOptions = LengthOptions()
    entropy: EntropyOptions = EntropyOptions()
    kl: KlOptions = KlOptions()
    norm_spike: NormSpikeOptions = NormSpikeOptions()
    standstill: StandstillOptions = StandstillOptions()
    verdicts: VerdictsOptions = VerdictsOptions()
    nonfinite: NonfiniteOptions = NonfiniteOptions()


class TelemetryOptions(_Options):
    """What is recorded beside metrics.jsonl, and the detectors."""

    tensorboard: bool = Field(default=False, description="also write TensorBoard event files below the run folder")
    timeline: bool = Field(default=True, description="write timeline.jsonl, what learner and samplers did when")
    detectors: DetectorOptions = DetectorOptions()

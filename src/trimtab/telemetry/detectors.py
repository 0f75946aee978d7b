"""Early warnings, each a state machine that is fed one batch record at a time and is part of the checkpoint.

No single signal is enough: in a run that collapsed into never stopping, ESS stayed near 1 and only truncation and length showed it;
in one that died from a gradient spike, ESS fell last. Where a batch lacks a detector's metric, the detector ignores the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trimtab.records import Json
from trimtab.telemetry import options as opt
from trimtab.telemetry.detector import Detector, Finding
from trimtab.telemetry.events import Event
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.reducers import Rate


class EssCollapse(Detector[opt.EssOptions]):
    """The batch is carried by few rollouts: mean ESS below half of its best window, or below a floor."""

    name = "ess"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, ess = self.options, record.value("ess/ratio")
        if ess is None or record.batch < o.start:
            return None
        self.push("recent", ess, o.window)
        mean = self.mean("recent")
        if mean is None:
            return None
        best = self.highest("best", mean)
        evidence = {"mean": mean, "best": best, "window": o.window}
        if mean < o.floor:
            return Finding(f"ESS averaged {mean:.3f} over {o.window} batches, below the floor of {o.floor:g}", evidence)
        if mean < o.fraction * best:
            return Finding(f"ESS averaged {mean:.2f} over {o.window} batches, below {o.fraction:g} of its best, {best:.2f}", evidence)
        return None


class RatioP99(Detector[opt.RatioP99Options]):
    """The tail of the raw importance ratios is heavy, before any cut hides it."""

    name = "ratio_p99"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, p99 = self.options, record.value("ratio/p99")
        if p99 is None:
            return None
        self.push("recent", p99, o.window)
        median = self.median("recent", o.window)
        if median is not None and median > o.limit:
            found = f"had median {median:.3g} over {o.window} batches, above {o.limit:g}"
        elif p99 > o.spike:
            found = f"is {p99:.3g}, above {o.spike:g}"
        else:
            return None
        evidence = {"now": p99} | ({} if median is None else {"median": median})
        return Finding(f"the 99th percentile of the raw ratios {found}", evidence)


class Truncation(Detector[opt.TruncationWatchOptions]):
    """Many rollouts run into the token limit, or more and more of them do. Many need no history: the first ``START`` batches show it."""

    name = "truncation"
    START: ClassVar[int] = 3

    def examine(self, record: BatchRecord) -> Finding | None:
        o, rate = self.options, record.value("stop/truncated")
        if rate is None:
            return None
        self.push("recent", rate, o.window)
        so_far, mean = self.mean("recent", at_least=min(self.START, o.window)), self.mean("recent")
        lowest = None if mean is None else self.lowest("lowest", mean)
        if so_far is not None and so_far > o.limit:
            remedy = "raise rollout.max_new_tokens, or see whether the policy still ends its responses"
            return Finding(f"{so_far:.0%} of the rollouts ran into the token limit, above {o.limit:.0%}; {remedy}", {"mean": so_far})
        if mean is None or lowest is None or mean <= lowest + o.rise:
            return None
        return Finding(f"{mean:.0%} of the rollouts ran into the token limit, up from {lowest:.0%}", {"mean": mean, "lowest": lowest})


class Length(Detector[opt.LengthOptions]):
    """Responses suddenly became much shorter or longer than they just were."""

    name = "length"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, length = self.options, record.value("length/mean")
        if length is None:
            return None
        gone = self.push("recent", length, o.window)
        if gone is not None:
            self.push("reference", gone, o.reference)
        mean, usual = self.mean("recent"), self.median("reference", o.window)
        if mean is None or usual is None or o.shrink * usual <= mean <= o.grow * usual:
            return None
        verb = "grew" if mean > usual else "shrank"
        return Finding(f"responses {verb} to {mean:.1f} tokens from a median of {usual:.1f}", {"mean": mean, "usual": usual})


class Entropy(Detector[opt.EntropyOptions]):
    """Entropy fell fast without buying reward."""

    name = "entropy"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, entropy, reward = self.options, record.value("entropy/mean"), record.value("reward/mean")
        if entropy is None or reward is None:
            return None
        self.push("recent", entropy, o.window)
        self.push("reward", reward, o.window)
        now, reward_now = self.mean("recent"), self.mean("reward")
        if now is None or reward_now is None:
            return None
        before, best = self.push("past", now, o.span), self.highest("reward", reward_now)
        if before is None or now >= o.fraction * before or reward_now >= best - o.slack:
            return None
        fall = f"entropy fell from {before:.3g} to {now:.3g} within {o.span} batches"
        message = f"{fall} while reward is {reward_now:.2f}, below its best {best:.2f}"
        return Finding(message, {"now": now, "before": before, "reward": reward_now, "best_reward": best})


class Kl(Detector[opt.KlOptions]):
    """The learner has moved away from the policy that sampled: k3 above a limit, or far above what it just was."""

    name = "kl"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, kl = self.options, record.value("kl/k3")
        if kl is None:
            return None
        gone = self.push("recent", kl, o.window)
        if gone is not None:
            self.push("reference", gone, o.reference)
        mean, usual = self.mean("recent"), self.median("reference", o.window)
        if mean is None:
            return None
        evidence = {"mean": mean, "now": kl} | ({} if usual is None else {"usual": usual})
        found = f"k3 averaged {mean:.3g} nats a token over {o.window} batches"
        if mean > o.limit:
            return Finding(f"{found}, above {o.limit:g}", evidence)
        if usual is not None and mean > max(o.least, o.jump * usual):
            return Finding(f"{found}, more than {o.jump:g} times its median {usual:.3g}", evidence)
        return None


class NormSpike(Detector[opt.NormSpikeOptions]):
    """A gradient far larger than usual. Early but unspecific: healthy runs have a few; a reason to clip, not to stop."""

    name = "norm_spike"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, norm = self.options, record.value("grad/raw_norm")
        if not norm:
            return None
        usual = self.median("reference", o.start)
        self.push("reference", norm, o.reference)
        if usual is None or norm <= o.factor * usual:
            return None
        message = f"the raw gradient norm {norm:.3g} is {norm / usual:.1f} times its running median {usual:.3g}"
        return Finding(message, {"norm": norm, "median": usual, "ratio": norm / usual})


class Standstill(Detector[opt.StandstillOptions]):
    """Steps are applied and the weights stay: they are too small for the dtype of what is stepped, or of what is published."""

    name = "standstill"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, published, masters = self.options, record.value("step/moved"), record.value("step/moved_masters")
        if published is None or masters is None:
            return None
        self.push("published", published, o.window)
        self.push("masters", masters, o.window)
        mean, stepped = self.mean("published"), self.mean("masters")
        if mean is None or stepped is None:
            return None
        evidence = {"published": mean, "masters": stepped, "lr": record.value("step/lr") or 0.0}
        if stepped < o.masters:
            return Finding(
                f"a step changes {stepped:.2%} of the optimizer's weights: the learning rate is too small for their dtype", evidence
            )
        if mean < o.published:
            found = f"a step changes {mean:.4%} of the published weights and {stepped:.0%} of the optimizer's"
            return Finding(f"{found}: the learning rate is very small for the dtype that is published", evidence)
        return None


class Verdicts(Detector[opt.VerdictsOptions]):
    """The scorer fails on many responses: what is learned comes from the others alone."""

    name = "verdicts"

    def examine(self, record: BatchRecord) -> Finding | None:
        o, counts = self.options, [record.metrics.get(f"outcome/{name}") for name in ("error", "timeout")]
        rates = [c for c in counts if isinstance(c, Rate)]
        if len(rates) < len(counts):
            return None
        for name, rate in zip(("errors", "timeouts"), rates, strict=True):
            self.push(name, rate.numerator, o.window)
        self.push("asked", rates[0].denominator, o.window)
        errors, timeouts, asked = (self.total(name) for name in ("errors", "timeouts", "asked"))
        if asked < o.least or errors + timeouts <= o.limit * asked:
            return None
        found = f"the verifier failed on {(errors + timeouts) / asked:.0%} of {asked:.0f} responses"
        often = f"; most often: {next(iter(record.faults))}" if record.faults else ""
        message = f"{found}, {errors:.0f} errors and {timeouts:.0f} timeouts{often}"
        return Finding(message, {"errors": errors, "timeouts": timeouts, "asked": asked})


class Nonfinite(Detector[opt.NonfiniteOptions]):
    """A statistic of the batch is NaN or infinite."""

    name = "nonfinite"

    def examine(self, record: BatchRecord) -> Finding | None:
        names = record.nonfinite()
        if not names:
            return None
        what = "the batch was applied" if record.applied else f"the batch was skipped ({record.reason})"
        return Finding(f"{', '.join(names)} not finite; {what}", {"metrics": ", ".join(names), "applied": int(record.applied)})


class Detectors:
    """All detectors that the options leave on, fed together."""

    def __init__(self, options: opt.DetectorOptions) -> None:
        every: list[Detector[opt.WatchOptions]] = [
            Nonfinite(options.nonfinite),
            EssCollapse(options.ess),
            RatioP99(options.ratio_p99),
            Truncation(options.truncation),
            Length(options.length),
            Entropy(options.entropy),
            Kl(options.kl),
            NormSpike(options.norm_spike),
            Standstill(options.standstill),
            Verdicts(options.verdicts),
        ]
        self._detectors = {d.name: d for d in every if d.options.action != "off"}

    def feed(self, record: BatchRecord) -> list[Event]:
        """The events that begin with this batch."""
        found = (detector.feed(record) for detector in self._detectors.values())
        return [event for event in found if event is not None]

    def state_dict(self) -> dict[str, Json]:
        return {name: detector.state_dict() for name, detector in self._detectors.items()}

    def load_state_dict(self, state: Mapping[str, Json]) -> None:
        """Detectors switched on since the checkpoint start afresh."""
        for name, detector in self._detectors.items():
            saved = state.get(name)
            if isinstance(saved, dict):
                detector.load_state_dict(saved)

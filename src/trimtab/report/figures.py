"""What the small multiples show: figures made of axes made of curves, in the page's order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    metric: str
    label: str
    dashed: bool = False
    raw: bool = True  # also draw the single batches, faint
    smooth: bool = True
    alone: bool = False  # left out where several runs are overlaid
    share: bool = False  # of the time of all ``time/*`` shares together


@dataclass(frozen=True, slots=True)
class Axis:
    """One pair of axes: its curves and its vertical range."""

    curves: tuple[Curve, ...]
    log: bool = False
    floor: float = 0.0  # logarithmic: what is smaller is drawn at the floor; without one, zeros are left out
    low: float | None = None
    high: float | None = None
    unit: str = ""
    marks: tuple[str, ...] = ()  # detectors whose events are marked at the top
    heldout: bool = False
    zero: bool = False  # a line at zero
    skipped: bool = False  # skipped batches are marked at the bottom


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    caption: str
    axes: tuple[Axis, ...]


LEARNING = (
    Figure(
        "Reward and held-out score",
        "The number to watch. Reward is that of the rollouts trained on, so it lags; dots are the held-out score, which is accuracy where "
        "scores are 0 and 1, with their 95 % intervals. Hollow: not believed, too many responses failed.",
        (Axis((Curve("reward/mean", "reward"),), heldout=True, low=0.0),),
    ),
    Figure(
        "Groups with signal",
        "Share of groups whose members differ in reward. Where it reaches 0 there is nothing left to learn from.",
        (Axis((Curve("groups/mixed", "mixed"),), low=0.0, high=1.0),),
    ),
    Figure(
        "Baseline: OPOB beside the group mean",
        "Over mixed groups. Near 0, OPOB means: imitate the successes. Above the mean: push the failures down.",
        (Axis((Curve("opob/baseline", "OPOB"), Curve("opob/group_mean", "group mean", dashed=True)), low=0.0),),
    ),
)

STALENESS = (
    Figure(
        "Effective sample size",
        "ESS of the raw sequence importance ratios over rollouts. 1: on-policy. 1/rollouts: one rollout carries the batch.",
        (
            Axis(
                (Curve("ess/ratio", "raw"), Curve("ess/ratio_truncated", "after the cut", dashed=True, raw=False)),
                low=0.0,
                high=1.0,
                marks=("ess",),
            ),
        ),
    ),
    Figure(
        "KL between sampler and learner",
        "k3 estimate per token: how far the learner has moved from the policies that sampled the batch.",
        (Axis((Curve("kl/k3", "k3"),), log=True, floor=1e-6, unit="nats", marks=("kl",)),),
    ),
    Figure(
        "Raw importance ratios",
        "Quantiles over rollouts before any cut. A heavy tail shows here before it shows in the reward.",
        (
            Axis(
                (
                    Curve("ratio/max", "max"),
                    Curve("ratio/p99", "p99", raw=False, dashed=True, alone=True),
                    Curve("ratio/p50", "median", raw=False, alone=True),
                    Curve("ratio/p01", "p01", raw=False, alone=True),
                ),
                log=True,
                floor=1e-4,
                marks=("ratio_p99",),
            ),
        ),
    ),
    Figure(
        "Age of the trained tokens",
        "In versions. Generation: arose while the group was being generated. Waiting: arose in the pool.",
        (
            Axis(
                (
                    Curve("age/mean", "mean", raw=False),
                    Curve("age/max", "max", raw=False, smooth=False, dashed=True),
                    Curve("age/generation", "generation", raw=False, alone=True),
                    Curve("age/waiting", "waiting", raw=False, alone=True),
                ),
                low=0.0,
                unit="versions",
            ),
        ),
    ),
)

STEPS = (
    Figure(
        "Gradient norm",
        "Before and after the methods of the gradient point. Single spikes are normal and a reason to clip.",
        (Axis((Curve("grad/raw_norm", "raw"), Curve("grad/norm", "used", raw=False, dashed=True)), log=True, marks=("norm_spike",)),),
    ),
    Figure(
        "Gradient cosine",
        "Between the raw gradients of consecutive batches.",
        (Axis((Curve("grad/cosine", "cosine"),), zero=True),),
    ),
    Figure(
        "Step multiplier",
        "What the step methods made of the learning rate. Ticks at the bottom: batches whose step was skipped.",
        (Axis((Curve("step/multiplier", "multiplier"),), low=0.0, high=1.0, skipped=True),),
    ),
    Figure(
        "Weights that moved",
        "Share of the weights whose bits a step changed: of those that are published, and of the float32 masters that AdamW steps. "
        "In bfloat16 few are published anew at each step; the masters add up what the others wait for.",
        (
            Axis(
                (Curve("step/moved", "published", raw=False), Curve("step/moved_masters", "masters", raw=False, dashed=True)),
                log=True,
                floor=1e-6,
                marks=("standstill",),
            ),
        ),
    ),
)

RESPONSES = (
    Figure(
        "Outcomes",
        "What the verifier said about every response since the last batch, trained on or not. A timeout or an error is not a wrong answer.",
        (
            Axis(
                (
                    Curve("outcome/correct", "correct", raw=False),
                    Curve("outcome/wrong", "wrong", raw=False, alone=True),
                    Curve("outcome/unparseable", "unparseable", raw=False, dashed=True),
                    Curve("outcome/timeout", "timeout", raw=False, alone=True),
                    Curve("outcome/error", "error", raw=False, alone=True),
                ),
                low=0.0,
                high=1.0,
                marks=("verdicts",),
            ),
        ),
    ),
    Figure(
        "Response length and truncation",
        "Action tokens of a rollout (above) and the share that ran into the token limit (below).",
        (
            Axis(
                (Curve("length/mean", "mean"), Curve("length/max", "longest", raw=False, dashed=True)),
                low=0.0,
                unit="tokens",
                marks=("length",),
            ),
            Axis((Curve("stop/truncated", "truncated"),), low=0.0, marks=("truncation",)),
        ),
    ),
    Figure(
        "Entropy",
        "Of the current policy, per token. It falls as the policy becomes sure; a fall without reward is an alarm.",
        (Axis((Curve("entropy/mean", "entropy"),), log=True, unit="nats", marks=("entropy",)),),
    ),
)

TIME = (
    Figure(
        "Who waits",
        "Learner: share of its time without rollouts to train on. Samplers: share of their time without work.",
        (Axis((Curve("time/wait", "learner", share=True), Curve("sampler/idle", "samplers", dashed=True)), low=0.0),),
    ),
    Figure(
        "Throughput",
        "Action tokens trained on per second of wall time.",
        (Axis((Curve("throughput/tokens_per_s", "tokens/s"),), low=0.0),),
    ),
)

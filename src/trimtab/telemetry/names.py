"""The metrics a run records: name, unit, how observations combine, what it means, which way is better.

The report and TensorBoard take their captions from here. A name that is not here is refused where it is emitted; what methods
emit on their own is recorded as a rate under ``method/``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from trimtab.telemetry.method_names import of_method
from trimtab.telemetry.reducers import Reducer


class Better(StrEnum):
    """Which way a metric improves."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric. ``q`` and ``family`` name the quantile and the samples it is taken from."""

    name: str
    unit: str
    reducer: Reducer
    meaning: str
    better: Better = Better.NEITHER
    family: str = ""
    q: float = 0.0


MEAN, SUM, MAX, LAST = Reducer.MEAN, Reducer.SUM, Reducer.MAX, Reducer.LAST
UP, DOWN = Better.HIGHER, Better.LOWER


def _quantile(name: str, family: str, q: float, meaning: str) -> Metric:
    return Metric(name, "ratio", Reducer.QUANTILE, meaning, Better.NEITHER, family, q)


_ALL = (
    Metric("reward/mean", "reward", MEAN, "shaped reward of the rollouts trained on", UP),
    Metric("accuracy/train", "rate", MEAN, "share of the rollouts trained on that the verifier called correct", UP),
    Metric("ess/ratio", "rate", MEAN, "effective sample size of the raw sequence importance ratios over the number of rollouts", UP),
    Metric("ess/ratio_truncated", "rate", MEAN, "the same with the ratios truncated at 8, the cut of VCPO's recipes", UP),
    Metric("kl/k1", "nats", MEAN, "mean of log behavior - log current per token", DOWN),
    Metric("kl/k3", "nats", MEAN, "mean of r - 1 - log r per token, r the token importance ratio", DOWN),
    Metric("entropy/mean", "nats", MEAN, "entropy of the current policy per token"),
    _quantile("ratio/p01", "ratio", 0.01, "1st percentile of the raw sequence importance ratios"),
    _quantile("ratio/p50", "ratio", 0.50, "median of the raw sequence importance ratios"),
    _quantile("ratio/p99", "ratio", 0.99, "99th percentile of the raw sequence importance ratios"),
    _quantile("ratio/max", "ratio", 1.00, "largest raw sequence importance ratio"),
    _quantile("ratio/token_p99", "ratio_token", 0.99, "99th percentile of the raw token importance ratios"),
    Metric("grad/raw_norm", "norm", MAX, "gradient norm before any method of the gradient point"),
    Metric("grad/norm", "norm", MAX, "gradient norm the optimizer was given"),
    Metric("grad/cosine", "cosine", MEAN, "cosine between this batch's raw gradient and the previous one"),
    Metric("step/multiplier", "factor", MEAN, "factor that the step methods put on the learning rate"),
    Metric("step/applied", "rate", MEAN, "share of the batch's optimizer updates that were applied", UP),
    Metric("step/lr", "rate", LAST, "learning rate of the schedule, before the multiplier"),
    Metric("step/moved", "rate", MEAN, "share of the published weights whose bits an applied update changed; of large models a sample"),
    Metric("step/moved_masters", "rate", MEAN, "the same of the weights that AdamW steps: the float32 masters of narrow ones"),
    Metric("opob/baseline", "reward", MEAN, "off-policy optimal baseline, mean over mixed groups"),
    Metric("opob/group_mean", "reward", MEAN, "plain mean reward of the same groups"),
    Metric("opob/max_share", "rate", MEAN, "largest share of one rollout in its group's baseline weights, mean over mixed groups"),
    Metric("groups/mixed", "rate", MEAN, "share of groups whose members differ in reward: only these carry signal"),
    Metric("length/mean", "tokens", MEAN, "action tokens of a rollout"),
    Metric("length/max", "tokens", MAX, "action tokens of the longest rollout"),
    Metric("stop/truncated", "rate", MEAN, "share of rollouts that ran into the token limit", DOWN),
    Metric(
        "outcome/correct",
        "rate",
        MEAN,
        "share of the responses judged since the last batch, trained on or not, that are correct",
        UP,
    ),
    Metric("outcome/wrong", "rate", MEAN, "share of them that are wrong", DOWN),
    Metric("outcome/unparseable", "rate", MEAN, "share of them without a readable answer", DOWN),
    Metric("outcome/timeout", "rate", MEAN, "share of them whose verdict did not come in time", DOWN),
    Metric("outcome/error", "rate", MEAN, "share of them on which the scorer failed", DOWN),
    Metric("rollouts/lost", "rollouts", SUM, "rollouts without a verdict that left a group, which went on without them", DOWN),
    Metric("rollouts/retried", "rollouts", SUM, "all rollouts of groups with too few verdicts: generated again, or given up", DOWN),
    Metric("groups/given_up", "groups", SUM, "groups that failed rollout.max_attempts times, or whose prompt cannot be run", DOWN),
    Metric("age/mean", "versions", MEAN, "learner version - version that sampled the token, mean over tokens", DOWN),
    Metric("age/max", "versions", MAX, "age of the oldest token", DOWN),
    Metric("age/generation", "versions", MEAN, "part of the age that arose while its rollout was still being generated"),
    Metric("age/waiting", "versions", MEAN, "part of the age that arose after its rollout's newest token was sampled"),
    Metric("rollouts/spanning", "rollouts", SUM, "rollouts whose tokens come from two or more versions"),
    Metric("tokens/trained", "tokens", SUM, "action tokens trained on"),
    Metric("data/invalid_tokens", "tokens", SUM, "tokens whose behavior log-prob was not finite: they left the action mask", DOWN),
    Metric("throughput/tokens_per_s", "tokens/s", MEAN, "action tokens trained on per second of wall time", UP),
    Metric("time/wait", "s", SUM, "the learner waited for rollouts", DOWN),
    Metric("time/pack", "s", SUM, "rollouts were packed into tensors"),
    Metric("time/forward", "s", SUM, "forward passes"),
    Metric("time/backward", "s", SUM, "backward passes"),
    Metric("time/norms", "s", SUM, "per-sequence gradient norms"),
    Metric("time/critic", "s", SUM, "the critic's values and updates"),
    Metric("time/reference", "s", SUM, "reference log-probs"),
    Metric("time/methods", "s", SUM, "weighing, credit and objective, and the columns they work on"),
    Metric("time/step", "s", SUM, "gradient methods and optimizer step"),
    Metric("time/publish", "s", SUM, "publishing the weights"),
    Metric("time/log", "s", SUM, "writing telemetry"),
    Metric("time/checkpoint", "s", SUM, "writing checkpoints"),
    Metric("time/eval", "s", SUM, "evaluating, or saving the model for the evaluator"),
    Metric("time/start", "s", SUM, "starting the workers, until they serve the first version"),
    Metric("time/other", "s", SUM, "everything not named"),
    Metric("sampler/busy", "rate", MEAN, "share of sampler time spent generating", UP),
    Metric("sampler/idle", "rate", MEAN, "share of sampler time spent without work", DOWN),
    Metric("publish/stage", "s", SUM, "copying and digesting the new weights beside the served ones"),
    Metric("publish/pause", "s", SUM, "samplers stood still for the swap", DOWN),
    Metric("publish/commit", "s", SUM, "swap and probe after the digests agreed"),
    Metric("pool/waiting", "groups", LAST, "finished groups waiting to be trained on"),
    Metric("pool/running", "groups", LAST, "groups being generated"),
    Metric("pool/rejected", "rate", MEAN, "share of the finished groups since the last batch that a method rejected on arrival"),
    Metric("pool/let_go", "groups", MEAN, "finished groups that selection let go since the last batch: rejected, requeued, expired"),
    Metric("pool/let_go_length", "tokens", MEAN, "their mean length; beside length/mean"),
    Metric("pool/let_go_score", "reward", MEAN, "their mean verifiable score"),
    Metric("pool/let_go_accuracy", "rate", MEAN, "share of their rollouts that the verifier called correct; beside accuracy/train"),
)

_OF_EVALUATIONS = (
    Metric("eval/score", "reward", MEAN, "mean score on held-out prompts, of the responses with a verdict", UP),
    Metric("eval/score_low", "reward", MEAN, "lower end of its 95 % interval over prompts"),
    Metric("eval/score_high", "reward", MEAN, "upper end of its 95 % interval over prompts"),
    Metric("eval/accuracy", "rate", MEAN, "share of them that the verifier called correct", UP),
    Metric("eval/accuracy_low", "rate", MEAN, "lower end of its 95 % interval over prompts"),
    Metric("eval/accuracy_high", "rate", MEAN, "upper end of its 95 % interval over prompts"),
    Metric("eval/errors", "responses", SUM, "responses without a verdict: they are in no mean", DOWN),
    Metric("eval/timeouts", "responses", SUM, "responses whose verifier ran out of time", DOWN),
    Metric("eval/truncated", "rate", MEAN, "share of the responses cut off at the token limit", DOWN),
    Metric("eval/length", "tokens", MEAN, "action tokens of a response"),
)

# Who measures the metrics of a family, and over what.
FAMILIES: dict[str, str] = {
    "reward": "the learner, over the rollouts of the batch",
    "accuracy": "the learner, over the rollouts of the batch",
    "ess": "the learner, over the rollouts of an update, before any method cuts or masks; 1 is on-policy",
    "kl": "the learner, over the action tokens of the batch: how far it has moved from the policies that sampled them",
    "entropy": "the learner, over the action tokens of the batch (learner.entropy)",
    "ratio": "the learner, current over behavior probability, before any method cuts or masks",
    "grad": "the learner, once an update",
    "step": "the learner, once an update",
    "opob": "the method opob",
    "groups": "the learner and the rollout workers, over whole groups",
    "length": "the learner, over the rollouts of the batch",
    "stop": "the learner, over the rollouts of the batch",
    "outcome": "the rollout workers, over all responses judged since the last batch: also those that filters or selection dropped",
    "rollouts": "the rollout workers and the learner",
    "age": "the learner, over the action tokens of the batch, in versions (one version a published update)",
    "tokens": "the learner",
    "data": "the learner, when a batch is packed",
    "throughput": "the learner",
    "time": "the learner's clock: exclusive, so that the parts add up to the wall time of the batch",
    "sampler": "the rollout workers, since the last batch",
    "publish": "the publisher, at each new version",
    "pool": "the pool, when the batch formed",
    "eval": "the evaluator; these are in evaluations (eval.jsonl) and in TensorBoard, not in metrics.jsonl",
}

KNOWN: dict[str, Metric] = {m.name: m for m in _ALL}
EVALUATED: dict[str, Metric] = {m.name: m for m in _OF_EVALUATIONS}  # of evaluations, which are no batches: in TensorBoard alone
TIME_SHARES = tuple(name for name in KNOWN if name.startswith("time/"))
METHOD_PREFIX = "method/"


def described(name: str) -> tuple[str, str] | None:
    """Unit and meaning; None for what a method of somebody's own records."""
    metric = KNOWN.get(name) or EVALUATED.get(name)
    return of_method(name.removeprefix(METHOD_PREFIX)) if metric is None else (metric.unit, metric.meaning)


def declared(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics an emitter registers, in its order; ValueError for a name that is not declared, with the nearest one."""
    found = []
    for name in names:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"declare it in {__name__}"
            raise ValueError(f"metric {name!r} is not declared; {hint}")
        found.append(KNOWN[name])
    return tuple(found)

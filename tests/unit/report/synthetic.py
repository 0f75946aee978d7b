"""A run folder as a run would leave it: plausible curves written through the real sinks, without a model."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from trimtab.records import Decision, Outcome
from trimtab.report.summary import Summary
from trimtab.store.durable import write_atomic
from trimtab.store.jsonl import JsonLines
from trimtab.telemetry.clock import Interval
from trimtab.telemetry.detectors import Detectors
from trimtab.telemetry.held_out import Answer, HeldOut, summarize
from trimtab.telemetry.metrics import BatchRecord, Metrics
from trimtab.telemetry.options import DetectorOptions, TelemetryOptions
from trimtab.telemetry.sinks import open_sinks

ROLLOUTS, TOKENS = 64, 64 * 21
CONFIG = """\
name = "quickstart"
seed = {seed}
batches = {batches}
methods = {methods}

[local]
max_lag = 12
workers = 2

[learner]
lr = {lr}
weight_decay = 0.1
"""


def held_out(correct: int, rows: int = 512, *, score: float = 1.0, failed: int = 0, version: int = 0) -> HeldOut:
    """``rows`` prompts: ``correct`` of them with ``score`` (below 1 a graded one), the rest with 0, the last ``failed`` with none."""
    outcome = Outcome.CORRECT if score >= 1 else Outcome.WRONG
    answers = [
        Answer(prompt=i, score=score if i < correct else 0.0, outcome=outcome if i < correct else Outcome.WRONG, length=9, truncated=False)
        for i in range(rows - failed)
    ]
    counts = Counter([a.outcome.value for a in answers] + failed * ["error"])
    found = summarize(answers, counts, version=version, rows=rows, samples=1, threshold=1.0, error="KeyError: 'x'" if failed else "")
    return found.judged(0.1)


def write_run(folder: Path, batches: int = 400, seed: int = 0, collapse: bool = False, lr: float = 3e-4) -> Path:
    """Healthy, or (``collapse``) healthy until 55 % of the batches and then as sequence-TIS collapses under lag."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    methods = ("seq_tis", "grpo", "linear", "norm_clip") if collapse else ("seq_tis", "opob", "linear", "norm_clip", "ess")
    listed = str(list(methods)).replace("'", '"')
    (folder / "config.toml").write_text(CONFIG.format(seed=seed, batches=batches, methods=listed, lr=lr))
    sinks = open_sinks(folder, TelemetryOptions(), JsonLines)
    detectors = Detectors(DetectorOptions())
    now, applied, spanning_all, max_age, age_sum = 0.0, 0, 0.0, 0, 0.0
    for batch in range(batches):
        fall = 1 / (1 + math.exp(-(batch - 0.62 * batches) / (0.015 * batches))) if collapse else 0.0
        learned = 1 / (1 + math.exp(-(batch - 0.17 * batches) / (0.05 * batches)))
        accuracy = float(np.clip((0.18 + 0.78 * learned) * (1 - 0.97 * fall), 0, 1))
        correct = float(rng.binomial(ROLLOUTS, accuracy))
        mixed = float(rng.binomial(8, np.clip(4 * accuracy * (1 - accuracy), 0.08, 0.95)))
        drift = float(0.04 + 0.5 * learned * (1 - learned) + 1.2 * fall) * float(rng.lognormal(0, 0.25))
        skipped = mixed == 0
        m = Metrics()
        m.metric("reward/mean", correct, ROLLOUTS)
        m.metric("accuracy/train", correct, ROLLOUTS)
        unparseable = float(rng.binomial(ROLLOUTS, 0.02 + 0.5 * fall))
        timeout = float(rng.binomial(ROLLOUTS, 0.004))
        for name, count in (("correct", correct), ("unparseable", min(unparseable, ROLLOUTS - correct)), ("timeout", min(timeout, 1))):
            m.metric(f"outcome/{name}", count, ROLLOUTS)
        m.metric("outcome/wrong", max(0.0, ROLLOUTS - correct - unparseable - timeout), ROLLOUTS)
        m.metric("outcome/error", 0, ROLLOUTS)
        m.metric("groups/mixed", mixed, 8)
        log_ratio_R = drift * rng.standard_t(4, ROLLOUTS) * 1.4
        w = np.exp(log_ratio_R)
        m.sample("ratio", w)
        m.sample("ratio_token", np.exp(drift * rng.standard_normal(TOKENS) / 4))
        ess, capped = (float(x.sum() ** 2 / (x**2).sum()) for x in (w, np.minimum(w, 8)))
        m.metric("ess/ratio", ess, ROLLOUTS)
        m.metric("ess/ratio_truncated", capped, ROLLOUTS)
        m.metric("kl/k1", drift**2 * 0.02 * TOKENS, TOKENS)
        m.metric("kl/k3", drift**2 * 0.04 * TOKENS * (1 + 4 * fall), TOKENS)
        m.metric("entropy/mean", (0.3 * (1 - learned) + 0.012) * TOKENS * float(rng.lognormal(0, 0.1)), TOKENS)
        norm = (0.35 * (1 - learned) + 0.02) * float(rng.lognormal(0, 0.4)) * (12 if rng.random() < 0.015 else 1) * (1 + 6 * fall)
        m.put("grad/raw_norm", 0.0 if skipped else norm)
        m.put("grad/norm", 0.0 if skipped else min(norm, 1.0))
        m.put("grad/cosine", 0.25 * (1 - fall) * (1 - 0.5 * learned) + 0.1 * float(rng.standard_normal()))
        if not skipped:
            m.put("step/multiplier", 1.0 if collapse else math.sqrt(ess / ROLLOUTS))
            m.put("step/moved", 0.02 * math.sqrt(ess / ROLLOUTS))
            m.put("step/moved_masters", 1.0)
        m.put("step/lr", lr)
        if not collapse and mixed:
            m.metric("opob/group_mean", accuracy * mixed, mixed)
            m.metric("opob/baseline", accuracy * mixed * (0.75 * (1 - learned) + 0.03), mixed)
            m.metric("opob/max_share", 0.6 * mixed, mixed)
        m.metric("length/mean", (21 + 3 * fall + 0.15 * float(rng.standard_normal())) * ROLLOUTS, ROLLOUTS)
        m.put("length/max", 25.0 if rng.random() < 0.6 + 0.4 * fall else 22.0)
        m.metric("stop/truncated", float(rng.binomial(ROLLOUTS, 0.03 * (1 - learned) + 0.6 * fall)), ROLLOUTS)

        versions = np.minimum(rng.poisson(5.2, TOKENS), min(12, batch))
        born = rng.binomial(versions, 0.35)
        ages, at = np.unique(versions, return_inverse=True)
        counts, generation = np.bincount(at), np.bincount(at, weights=born)
        by_age = {
            str(a): {
                "tokens": float(c),
                "kl": drift**2 * 0.01 * (1 + a),
                "ratio_mean": 1.0,
                "log_ratio_abs_mean": drift * 0.05 * (1 + a) ** 0.8,
            }
            for a, c in zip(ages.tolist(), counts.tolist(), strict=True)
        }
        m.metric("age/mean", float(versions.sum()), TOKENS)
        m.metric("age/generation", float(born.sum()), TOKENS)
        m.metric("age/waiting", float((versions - born).sum()), TOKENS)
        m.put("age/max", float(versions.max()))
        spanning = float(rng.binomial(ROLLOUTS, 0.3)) if batch else 0.0
        m.put("rollouts/spanning", spanning)

        spent = {"wait": abs(0.1 + 0.03 * rng.standard_normal()), "pack": 0.004, "forward": 0.05, "backward": 0.09, "norms": 0.03}
        spent |= {"step": 0.012, "publish": 0.008, "log": 0.003, "checkpoint": 0.05 if batch % 50 == 49 else 0.0, "other": 0.004}
        start = now
        rows = []
        for what, seconds in spent.items():
            m.put(f"time/{what}", seconds)
            if what != "other":
                rows.append(Interval("learner", what, now, now + seconds))
            now += seconds
        for worker in range(2):
            swap = start + 0.1 + 0.06 * worker
            rows.append(Interval(f"worker-{worker}", "generate", start, swap))
            rows.append(Interval(f"worker-{worker}", "swap", swap, swap + 0.006))
            rows.append(Interval(f"worker-{worker}", "generate", swap + 0.006, now - 0.03))
            rows.append(Interval(f"worker-{worker}", "idle", now - 0.03, now))
        m.metric("sampler/busy", 0.9 * (now - start), now - start)
        m.metric("sampler/idle", 0.1 * (now - start), now - start)
        m.put("tokens/trained", float(TOKENS))
        m.metric("throughput/tokens_per_s", TOKENS, now - start)

        record = BatchRecord(
            batch=batch,
            version=applied,
            incarnation=0,
            time=now,
            applied=not skipped,
            reason="no_signal" if skipped else "",
            metrics=m.values(),
            ages={str(a): int(c) for a, c in zip(ages, counts, strict=True)},
            ages_generation={str(a): int(g) for a, g in zip(ages, generation, strict=True)},
            by_age=by_age,
        )
        decisions = [Decision(method="seq_tis", point="weigh", what="truncated", amount=float((w > 8).sum()), why="ratio above c = 8")]
        if norm > 1.0:
            decisions.append(Decision(method="norm_clip", point="gradient", what="clipped", amount=norm, why=f"norm {norm:.2f} above 1.0"))
        if not collapse:
            decisions.append(Decision(method="ess", point="step", what="damped", amount=1 - math.sqrt(ess / ROLLOUTS), why="sqrt(ESS/B)"))
        sinks.decisions(batch, decisions)
        sinks.timeline(batch, rows)
        for event in detectors.feed(record):
            sinks.event(event)
        sinks.batch(record)
        if batch % max(1, batches // 8) == 0:
            share = float(np.clip(accuracy + 0.02, 0, 1))
            sinks.evaluated(batch, "during", held_out(round(512 * share), version=applied), 1.0)
        applied += not skipped
        spanning_all += spanning
        max_age, age_sum = max(max_age, int(versions.max())), age_sum + float(versions.mean())
    sinks.close()
    Summary(
        **Summary.evaluations(held_out(97), held_out(round(512 * accuracy), version=applied), None),
        batches=batches,
        applied=applied,
        skipped=batches - applied,
        max_age=max_age,
        mean_age=age_sum / batches,
        spanning_rollouts=int(spanning_all),
        wall_s=now,
        cpu_s=1.8 * now,
        methods=methods,
        seed=seed,
        status="done",
    ).write(folder, write_atomic)
    return folder

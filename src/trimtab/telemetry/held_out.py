"""What an evaluation found, as every reader has it: terminal, eval.jsonl, summary.json, report, TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from trimtab.records import Json, Outcome
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.intervals import Change, Estimate, change, mean_of, of_prompts
from trimtab.telemetry.metrics import finite, number

_SOURCES = 8  # most sources that are told apart
_RUNS_OUT = 0.05  # share of truncated responses from which a line mentions it


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response with a verdict, as an evaluation counts it."""

    prompt: int
    score: float
    outcome: Outcome
    length: int  # action tokens
    truncated: bool  # cut off at max_new_tokens
    source: str = ""  # of the prompt: its file, or what a column says


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """``samples`` responses to each of ``rows`` held-out prompts, all sampled by ``version``.

    score: mean over prompts of the prompt's mean score; accuracy: the same of "correct", which is what the verifier calls so (for a
    reward function, a score of at least ``threshold``). Both over the responses that have a verdict, with the 95 % intervals of
    :mod:`~trimtab.telemetry.intervals`. A response without a verdict (the reward failed, the prompt cannot be run) is in ``errors`` and
    in no mean: it is no wrong answer. One that timed out is in ``timeouts``, and in the means only with ``verifier.timeout = "zero"``.
    """

    version: int
    rows: int  # prompts asked
    samples: int  # responses asked of each
    prompts: int  # prompts with a verdict: the n of the intervals
    scored: int  # responses with a verdict, of rows * samples
    outcomes: Mapping[str, int]  # of all responses asked, by what became of them
    accuracy: Estimate
    score: Estimate
    graded: bool  # a score is not simply 1 where correct and 0 elsewhere: accuracy and score tell different things
    threshold: float | None  # task.threshold; None in a record of before
    pass_at: Mapping[int, float] = field(default_factory=dict)  # k -> chance that one of k responses is correct
    by_source: Mapping[str, float] = field(default_factory=dict)  # score of the prompts of each, where there are a few
    length: float  # mean, action tokens
    truncated: float  # share cut off at max_new_tokens
    error: str = ""  # the most frequent reason of errors and timeouts
    doubtful: bool = False  # more failed than eval.max_error_share: not believed

    @property
    def asked(self) -> int:
        return self.rows * self.samples

    @property
    def errors(self) -> int:
        return self.outcomes.get(Outcome.ERROR.value, 0)

    @property
    def timeouts(self) -> int:
        return self.outcomes.get(Outcome.TIMEOUT.value, 0)

    @property
    def failed(self) -> float:
        """Share of the responses asked whose verdict is an error or a timeout: the verifier's doing rather than the policy's."""
        return (self.errors + self.timeouts) / self.asked

    def judged(self, max_error_share: float) -> Self:
        """The same, doubtful where more than this share failed."""
        return replace(self, doubtful=self.failed > max_error_share)

    @property
    def main(self) -> tuple[str, Estimate]:
        """What to look at: the score, called accuracy where the two are the same."""
        return ("score", self.score) if self.graded else ("accuracy", self.accuracy)

    def notes(self) -> list[str]:
        """What must stand beside the number: what counts as correct, how often one of several is, failures, truncation."""
        out = []
        if self.graded:
            correct = "" if self.threshold is None else f", which counts scores of at least {self.threshold:g}"
            out.append(f"accuracy {self.accuracy.text()}{correct}")
        if self.pass_at:
            out.append(", ".join(f"pass@{k} {share:.3f}" for k, share in self.pass_at.items()))
        if self.by_source:
            out.append("score by source: " + ", ".join(f"{source} {score:.3f}" for source, score in self.by_source.items()))
        if failures := self.failures():
            out.append(failures)
        if self.truncated >= _RUNS_OUT:
            out.append(f"{self.truncated:.0%} cut off at the token limit")
        return out

    def failures(self) -> str:
        """Errors and timeouts of those asked; "" where there are none."""
        parts = [f"{n} {name if n > 1 else name[:-1]}" for n, name in ((self.errors, "errors"), (self.timeouts, "timeouts")) if n]
        return f"{' and '.join(parts)} among {self.asked} responses" if parts else ""

    def asks(self) -> str:
        """``512 prompts``, ``20 of 23 prompts``, ``64 prompts x 4``; a record of before may not know."""
        if not self.rows:
            return "an unknown number of prompts"
        n = f"{self.prompts} of {self.rows}" if self.prompts < self.rows else f"{self.rows}"
        return f"{n} prompt{'s' if self.rows > 1 else ''}{f' x {self.samples}' if self.samples > 1 else ''}"

    def text(self) -> str:
        """One line: the number, its interval, n, and what must stand beside it."""
        name, value = self.main
        return "; ".join([f"{name} {value.text()} on {self.asks()}", *self.notes()])

    def to_json(self) -> dict[str, Json]:
        """One flat object: the columns of ``eval.jsonl``."""
        out: dict[str, Json] = {"version": self.version, "rows": self.rows, "samples": self.samples}
        for name, of in (("accuracy", self.accuracy), ("score", self.score)):
            out |= {name: finite(of.mean), f"{name}_low": _finite(of.low), f"{name}_high": _finite(of.high)}
        out |= {"prompts": self.prompts, "scored": self.scored, "errors": self.errors, "timeouts": self.timeouts}
        out |= {"outcomes": dict(self.outcomes), "graded": self.graded, "threshold": self.threshold}
        out |= {"pass_at": {str(k): finite(share) for k, share in self.pass_at.items()}}
        if self.by_source:
            out |= {"by_source": {source: finite(score) for source, score in self.by_source.items()}}
        out |= {"length": finite(self.length), "truncated": finite(self.truncated), "error": self.error, "doubtful": self.doubtful}
        return out

    @classmethod
    def from_json(cls, row: Mapping[str, Json]) -> Self | None:
        """What :meth:`to_json` wrote. A row of before has no intervals and no counts; None where not even an accuracy can be read."""
        accuracy = _estimate(row, "accuracy")
        if accuracy is None:
            return None
        score = _estimate(row, "score") or accuracy
        outcomes, passes, sources = (x if isinstance(x, dict) else {} for x in (row.get(k) for k in ("outcomes", "pass_at", "by_source")))
        rows = _count(row.get("rows"), 0)
        return cls(
            version=_count(row.get("version"), 0),
            rows=rows,
            samples=_count(row.get("samples"), 1),
            prompts=_count(row.get("prompts"), rows),
            scored=_count(row.get("scored"), rows),
            outcomes={k: _count(v, 0) for k, v in outcomes.items()},
            accuracy=accuracy,
            score=score,
            graded=row.get("graded") is True or score.mean != accuracy.mean,
            threshold=number(row.get("threshold")),
            pass_at={int(k): n for k, v in passes.items() if k.isdigit() and (n := number(v)) is not None},
            by_source={k: n for k, v in sources.items() if (n := number(v)) is not None},
            length=number(row.get("length")) or 0.0,
            truncated=number(row.get("truncated")) or 0.0,
            error=str(row.get("error") or ""),
            doubtful=row.get("doubtful") is True,
        )


def summarize(
    answers: Sequence[Answer], outcomes: Mapping[str, int], *, version: int, rows: int, samples: int, threshold: float, error: str
) -> HeldOut:
    """The result of ``samples`` responses to each of ``rows`` prompts, of which ``answers`` got a verdict (at least one did)."""
    by_prompt: dict[int, list[Answer]] = {}
    for answer in answers:
        by_prompt.setdefault(answer.prompt, []).append(answer)
    groups = list(by_prompt.values())
    n = len(answers)

    def estimate(value: Mapping[int, list[float]]) -> Estimate:
        every = [x for xs in value.values() for x in xs]
        return of_prompts([mean_of(xs) for xs in value.values()], n, binary=all(x in (0.0, 1.0) for x in every))

    correct = {p: [float(a.outcome is Outcome.CORRECT) for a in group] for p, group in by_prompt.items()}
    return HeldOut(
        version=version,
        rows=rows,
        samples=samples,
        prompts=len(groups),
        scored=n,
        outcomes=dict(outcomes),
        accuracy=estimate(correct),
        score=estimate({p: [a.score for a in group] for p, group in by_prompt.items()}),
        graded=any(a.score != float(a.outcome is Outcome.CORRECT) for a in answers),
        threshold=threshold,
        pass_at=pass_at([(len(xs), int(sum(xs))) for xs in correct.values()], samples),
        by_source=_by_source(groups),
        length=sum(a.length for a in answers) / n,
        truncated=sum(a.truncated for a in answers) / n,
        error=error,
    )


def _by_source(groups: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """Mean over the prompts of each source; nothing for one source, or for many."""
    scores: dict[str, list[float]] = {}
    for group in groups:
        scores.setdefault(group[0].source, []).append(mean_of([a.score for a in group]))
    return {source: mean_of(scores[source]) for source in sorted(scores)} if 1 < len(scores) <= _SOURCES else {}


def pass_at(counts: Sequence[tuple[int, int]], samples: int) -> dict[int, float]:
    """Chance that one of k responses is correct, for k = 1, 2, 4 ... and ``samples``; nothing for a single sample.

    ``counts``: responses n and correct ones c of each prompt. Unbiased, 1 - C(n - c, k) / C(n, k) (Chen et al. 2021), mean over the
    prompts with at least k verdicts.
    """
    if samples == 1:
        return {}
    ks = sorted({1 << i for i in range(samples.bit_length()) if 1 << i < samples} | {samples})
    out = {}
    for k in ks:
        known = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts if n >= k]
        if known:
            out[k] = math.fsum(known) / len(known)
    return out


def moved(before: HeldOut, after: HeldOut) -> tuple[Change, str]:
    """Whether the main number changed, and the words for it: ``rose from 0.15 to 0.71 [0.68, 0.74] on 256 prompts``."""
    name, _ = after.main
    x, y = (before.score, after.score) if name == "score" else (before.accuracy, after.accuracy)
    what = change(x, y)
    if what == "noise" or (what == "unknown" and y.mean == x.mean):
        low = "" if y.low is None or y.high is None else f" [{y.low:.2f}, {y.high:.2f}]"
        went = f"stayed at {y.mean:.2f}{low}" if f"{x.mean:.2f}" == f"{y.mean:.2f}" else f"went from {x.mean:.2f} to {y.text(2)}"
        return what, went + (f", within the noise of {after.asks()}" if what == "noise" and x.mean != y.mean else f" on {after.asks()}")
    return what, f"{'went' if what == 'unknown' else what} from {x.mean:.2f} to {y.text(2)} on {after.asks()}"


def doubt(found: HeldOut, batch: int) -> Event:
    """The event of an evaluation after ``batch`` batches that is not believed."""
    message = f"the evaluation after {batch} batches is not believed (eval.max_error_share): {found.failures()}; most often: {found.error}"
    evidence = {"errors": found.errors, "timeouts": found.timeouts, "asked": found.asked}
    return Event(name="eval_errors", severity=Severity.WARN, batch=max(0, batch - 1), message=message, evidence=evidence)


def restored(run: Mapping[str, Json]) -> dict[str, HeldOut]:
    """The evaluations of a checkpoint, by when. One of before holds a bare accuracy of each, and that of the best."""
    rows, bare = run.get("held_out"), run.get("accuracy")
    if not isinstance(rows, dict):
        rows = {when: {"accuracy": accuracy} for when, accuracy in bare.items() if when != "best"} if isinstance(bare, dict) else {}
    read = {when: HeldOut.from_json(row) for when, row in rows.items() if isinstance(row, dict)}
    return {when: found for when, found in read.items() if found is not None}


def _estimate(row: Mapping[str, Json], name: str) -> Estimate | None:
    mean = number(row.get(name))
    return None if mean is None else Estimate(mean, number(row.get(f"{name}_low")), number(row.get(f"{name}_high")))


def _count(value: Json, default: int) -> int:
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) else default


def _finite(value: float | None) -> Json:
    return None if value is None else finite(value)

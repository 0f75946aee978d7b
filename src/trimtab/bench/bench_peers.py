"""``bench peers``: one synchronous step, generation to optimizer, against TRL's ``GRPOTrainer``. Needs the extra ``peers``.

Same model (the quickstart's), task, prompts a step, samples a prompt, longest response, AdamW, one thread, no KL term. CPU-seconds
of this process and its children (our verifier runs in one; TRL calls its reward function in line).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import psutil

from trimtab.bench.rows import BenchRow, spread
from trimtab.config.load import load
from trimtab.config.models import model_folder
from trimtab.config.run import RunConfig
from trimtab.records import TrimtabError
from trimtab.runtime.run import start
from trimtab.tasks.load import load_task, scorer_spec
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord

WARM = 5


class _Times(Protocol):
    user: float
    system: float


class ProcessMeter:
    """CPU and wall seconds between calls, children included."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None

    def tick(self) -> None:
        # The kernel counts a child's time in ticks of 10 ms: only sums over many steps mean something.
        children: list[_Times] = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
        now = (time.process_time() + sum(t.user + t.system for t in children), time.perf_counter())
        if self._last is not None:
            self.steps.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now

    # An observer of a run ticks at every batch.
    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        self.tick()

    def event(self, event: Event) -> None:
        """Events cost nothing here."""

    def evaluated(self, batch: int, found: HeldOut) -> None:
        """Before the first batch and after the last."""


def run(rounds: int = 30) -> list[BenchRow]:
    """Rows ``sync/trimtab`` and ``sync/trl``; the ratio of ``sync/trl`` is our CPU-seconds over TRL's."""
    if find_spec("trl") is None:
        raise TrimtabError("bench peers needs TRL: pip install 'trimtab[peers]'")
    steps = rounds + WARM
    config = load(
        "quickstart",
        [
            'runtime={kind = "lockstep", lag = 0}',
            'methods=["none", "grpo"]',
            f"learner.batches={steps + 1}",
            "eval.prompts=8",
            f"store.every={10 * steps}",
        ],
    )
    ours, theirs = _ours(config), _trl(config, steps)
    n = min(len(ours), len(theirs))
    ratios = [a / b for (a, _), (b, _) in zip(ours[:n], theirs[:n], strict=True)]
    return [_row("sync/trimtab", ours, 1.0, []), _row("sync/trl", theirs, _mean(ours) / _mean(theirs), ratios)]


def _mean(steps: list[tuple[float, float]]) -> float:
    return statistics.fmean(cpu for cpu, _ in steps)


def _row(case: str, steps: list[tuple[float, float]], ratio: float, ratios: list[float]) -> BenchRow:
    return BenchRow(case=case, cpu_s=_mean(steps), wall_s=statistics.fmean(w for _, w in steps), ratio=ratio, spread=spread(ratios))


def _ours(config: RunConfig) -> list[tuple[float, float]]:
    meter = ProcessMeter()
    with tempfile.TemporaryDirectory() as folder:
        start(config, Path(folder) / "run", meter)
    return meter.steps[WARM:]


def _trl(config: RunConfig, steps: int) -> list[tuple[float, float]]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from trimtab.engines.checkpoint import load_policy

    policy = load_policy(model_folder(config.model))
    task = load_task(config.task)
    rows = [task.prompt(i) for i in range(config.rollout.prompts_per_batch * (steps + 1))]
    scorer = scorer_spec(config.task).build()
    by_text = {p.text: p for p in rows}
    meter = ProcessMeter()

    class Tick(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            meter.tick()

    def reward(prompts: list[str], completions: list[str], **kwargs: object) -> list[float | None]:
        return [scorer.score(by_text[p.removeprefix("<bos>")], c).score for p, c in zip(prompts, completions, strict=True)]

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=config.rollout.prompts_per_batch * config.rollout.group_size,
            num_generations=config.rollout.group_size,
            max_completion_length=config.rollout.max_new_tokens,
            steps_per_generation=1,
            num_iterations=1,
            max_steps=steps,
            learning_rate=config.learner.optimizer.lr,
            weight_decay=config.learner.optimizer.weight_decay,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            logging_steps=10 * steps,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=_named(reward),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": f"<bos>{p.text}"} for p in rows]),
            processing_class=policy.tokenizer,
            callbacks=[Tick()],
        )
        trainer.train()
    return meter.steps[WARM:]


def _named(function: Callable[..., list[float | None]]) -> Callable[..., list[float | None]]:
    """TRL logs a reward function under its name."""
    function.__name__ = "verified"
    return function

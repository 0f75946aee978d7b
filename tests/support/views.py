"""Small learner-side views for tests of methods: random columns, and the same numbers as plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trimtab.control.protocol import Notes, Setting, StepResult, StepView, Totals, View


def make_view(
    rewards: Sequence[float],
    groups: Sequence[int],
    lengths: Sequence[int],
    *,
    seed: int = 0,
    spread: float = 1.0,
    norm2: Sequence[float] | None = None,
    totals: Totals | None = None,
) -> View:
    """One rollout each of ``rewards``, ``groups`` and ``lengths``; token log-ratios are normal with ``spread``."""
    rng = np.random.default_rng(seed)
    n, count = sum(lengths), max(groups) + 1
    behavior = -rng.random(n)
    reward_R = torch.tensor(rewards, dtype=torch.float64)
    rollout_N = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
    scale = 1.0 / (len(lengths) * np.repeat(lengths, lengths))
    return View(
        behavior_N=torch.from_numpy(behavior),
        rollout_N=rollout_N,
        turn_N=torch.zeros(n, dtype=torch.int64),
        age_N=torch.ones(n, dtype=torch.int64),
        version_N=torch.zeros(n, dtype=torch.int64),
        scale_N=torch.from_numpy(scale),
        current_N=torch.from_numpy(behavior + spread * rng.normal(size=n)),
        score_R=reward_R,
        reward_R=reward_R,
        length_R=torch.tensor(lengths),
        group_R=torch.tensor(groups),
        terminated_R=torch.ones(len(lengths), dtype=torch.bool),
        norm2_R=None if norm2 is None else torch.tensor(norm2, dtype=torch.float64),
        groups=count,
        totals=totals
        or Totals(rollouts=len(lengths), tokens=n, groups=count, max_length=max(lengths), reward_std=float(np.std(rewards, ddof=1))),
        recorder=Notes(),
    )


def notes(view: View) -> Notes:
    assert isinstance(view.recorder, Notes)
    return view.recorder


def ratios(view: View) -> tuple[np.ndarray, np.ndarray]:
    """(log-ratio of each token, its sum over each rollout)."""
    s_N = (view.current - view.behavior_N).numpy()
    return s_N, np.array([s_N[view.rollout_N.numpy() == i].sum() for i in range(len(view.score_R))])


def step_view(log_ratio: Sequence[float], *, lag_zero: bool = False, mini_step: int = 0, recorder: Notes | None = None) -> StepView:
    return StepView(
        log_ratio_R=torch.tensor(log_ratio, dtype=torch.float64),
        applied=0,
        batch_id=0,
        mini_step=mini_step,
        lag_zero=lag_zero,
        recorder=recorder or Notes(),
        update_norm=lambda: 1.0,
    )


def result(applied: bool) -> StepResult:
    return StepResult(applied=applied, reason="" if applied else "x", multiplier=float(applied), batch_id=0, mini_step=0, raw_norm=1.0)


def setting(**changes: object) -> Setting:
    """An asynchronous run with groups of 4, uncut."""
    return Setting(**({"group_size": 4, "asynchronous": True, "cut": False, "reports_kept": True} | changes))  # type: ignore[arg-type]

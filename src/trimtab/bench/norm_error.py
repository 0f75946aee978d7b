"""How far estimated gradient norms are off, on a batch that a model samples of its own task.

    python -m trimtab.bench.norm_error [FILE] [--model FOLDER]      FILE: a configuration or preset, for its task; default quickstart

An estimate's scale does not matter to a baseline, so errors are those of log(estimate / exact) around its mean over the rollout's
group. ``baseline`` is the mean distance of b* from the one of exact norms, over groups of mixed rewards; the row ``group mean`` has
that of the mean reward, which is what the norms are for. Sketches are shown at several depths; ``sketch`` is the one that a run takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab import functional as F
from trimtab.config.load import load
from trimtab.config.models import model_folder
from trimtab.config.run import RunConfig
from trimtab.control.points import NormEstimator
from trimtab.engines.checkpoint import load_policy
from trimtab.learner.packing import Packed, pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Group, Slot
from trimtab.rollout.collector import GroupDone
from trimtab.rollout.sampler import Sampler

DEPTHS = (1, 3, 7)  # Linears: the last projection, an MLP, a block


@dataclass(frozen=True, slots=True)
class Error:
    """``spread``: standard deviation of log(estimate / exact) within groups; NaN where there is nothing to compare."""

    name: str
    spread: float
    baseline: float


def errors(model: PreTrainedModel, groups: Sequence[Group]) -> list[Error]:
    """One row an estimate, for the unit coefficient 1 on every action token (``weighting = paper``)."""
    rollouts = [r for g in groups for r in g.rollouts]
    group_R = torch.tensor([i for i, g in enumerate(groups) for _ in g.rollouts])
    reward_R = torch.tensor([r.score for r in rollouts], dtype=torch.float64)
    packed = pack(rollouts)
    exact_R = _norms2(model, packed, "exact")
    found = {"length": packed.length_R.double(), "last_layer": _norms2(model, packed, "last_layer")}
    found["sketch"] = _norms2(model, packed, "sketch")
    found |= {f"sketch of {depth}": _norms2(model, packed, "sketch", depth) for depth in DEPTHS}
    mean_G = F.advantages.group_mean(reward_R, group_R, len(groups))
    mixed_G = torch.zeros_like(mean_G).scatter_reduce(0, group_R, (reward_R - mean_G[group_R]).abs(), "amax") > 0

    def baseline(norm2_R: Tensor) -> Tensor:
        return F.baselines.optimal_baseline(reward_R, norm2_R.log(), group_R, len(groups)).baseline_G

    best_G = baseline(exact_R)

    def off(b_G: Tensor) -> float:
        return float((b_G - best_G)[mixed_G].abs().mean())

    def spread(norm2_R: Tensor) -> float:
        ratio_R = (norm2_R / exact_R).log()
        return float((ratio_R - F.advantages.group_mean(ratio_R, group_R, len(groups))[group_R]).square().mean().sqrt())

    rows = [Error(name, spread(norm2_R), off(baseline(norm2_R))) for name, norm2_R in found.items()]
    return [Error("group mean", float("nan"), off(mean_G)), *rows]


def _norms2(model: PreTrainedModel, packed: Packed, estimator: NormEstimator, depth: int | None = None) -> Tensor:
    p = PackedModel(model, route="two_pass", estimator=estimator, depth=depth).forward(packed, norms=True)
    one_N, nothing_R = torch.ones_like(p.current_N), torch.zeros(len(packed.rollouts), dtype=torch.float64)
    return p.norms(one_N, nothing_R, nothing_R, nothing_R.long())


def sample(config: RunConfig, folder: str) -> tuple[PreTrainedModel, list[Group]]:
    """The model and one batch of groups it sampled."""
    torch.manual_seed(0)
    sampler = Sampler.build(
        partial(load_policy, model_folder(folder), torch.float32, "cpu"),
        task=config.task,
        verifier=config.verifier,
        rollout=config.rollout,
        engine=config.engine,
        seed=config.seed,
    )
    try:
        for i in range(config.rollout.prompts_per_batch):
            sampler.collector.assign(Slot(0, i), i, 0)
        groups = []
        while sampler.collector.outstanding:
            groups += [result.group for result in sampler.collector.step() if isinstance(result, GroupDone)]
        return sampler.policy.model, sorted(groups, key=lambda g: g.slot)
    finally:
        sampler.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trimtab.bench.norm_error", description="How far estimated gradient norms are off.")
    parser.add_argument("file", nargs="?", default="quickstart")
    parser.add_argument("--model", help="a model folder other than the configuration's")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config = load(asked.file)
    for row in errors(*sample(config, asked.model or config.model)):
        sys.stdout.write(f"{row.name:14s} spread {row.spread:.3f}   baseline {row.baseline:.4f}\n")


if __name__ == "__main__":
    main()

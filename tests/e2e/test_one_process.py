"""``examples/one_process.py`` and the library are the same algorithm, written twice.

The example samples without a cache, measures gradient norms with one backward a rollout and steps torch's AdamW; the library decodes
continuously, takes all norms from one packed backward and drives pool, chain and store. Over 20 lockstep batches in float64 they agree.
"""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from support import examples, rewards, runs

BATCHES, LAG = 20, 3


def test_the_example_equals_the_library_over_20_lockstep_batches(tmp_path: Path) -> None:
    config = runs.config(
        tmp_path,
        ["vcpo"],
        runtime={"kind": "lockstep", "lag": LAG},
        learner={"batches": BATCHES, "optimizer": {"lr": runs.LR}, "dtype": "float64"},
        engine={"kind": "torch", "dtype": "float64"},
        store={"every": 1, "keep": 100},
    )
    summary = runs.train(config, tmp_path / "run")
    assert summary.max_age == LAG
    assert summary.applied > BATCHES / 2

    one_process = examples.load("one_process")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    model = Qwen2ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    args = one_process.Args(batches=BATCHES, lag=LAG, prompts=runs.GROUPS, group=runs.MEMBERS, new_tokens=runs.NEW_TOKENS, lr=runs.LR)
    steps = one_process.train(model, tokenizer, runs.questions(), rewards.one, args)
    gaps = []
    for n, step in enumerate(steps, 1):
        assert step["age"] == min(n - 1, LAG)
        gaps.append(runs.furthest(dict(model.named_parameters()), runs.weights_after(tmp_path / "run", n)))
    assert len(gaps) == BATCHES
    assert max(gaps) <= 1e-8


def test_the_example_can_be_read_in_one_sitting_and_needs_torch_and_transformers_only() -> None:
    assert examples.lines("one_process") < 300
    assert examples.needs("one_process") == {"torch", "transformers"}

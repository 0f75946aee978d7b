"""A sampler from its options: cheap refusals come first, and evaluation takes what rows there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.tiny import tiny_policy
from trimtab.engines.checkpoint import Policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.records import TrimtabError
from trimtab.rollout.options import EvalOptions, RolloutOptions
from trimtab.rollout.sampler import Sampler, make_renderer
from trimtab.tasks.options import JsonlOptions, VerifierOptions

TASK = JsonlOptions(path="rows.jsonl")


def never() -> Policy:
    raise AssertionError("the model was loaded before the task was read")


def test_a_missing_task_file_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"task\.path"):
        Sampler.build(
            never,
            task=JsonlOptions(path=str(tmp_path / "nothing.jsonl")),
            verifier=VerifierOptions(),
            rollout=RolloutOptions(max_new_tokens=4),
            engine=TorchEngineOptions(),
            seed=0,
        )


@pytest.mark.parametrize(("engine", "limit"), [(TorchEngineOptions(), 256), (TorchEngineOptions(max_context=100), 100)])
def test_a_response_must_leave_room_for_a_prompt(engine: TorchEngineOptions, limit: int) -> None:
    policy = tiny_policy(context=256)
    make_renderer(policy, TASK, RolloutOptions(max_new_tokens=limit - 1), engine)
    with pytest.raises(TrimtabError, match=f"rollout.max_new_tokens = {limit}: the context is {limit} tokens"):
        make_renderer(policy, TASK, RolloutOptions(max_new_tokens=limit), engine)


def test_evaluation_takes_the_rows_there_are(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(8)))
    sampler = Sampler.build(
        lambda: tiny_policy(),
        task=JsonlOptions(path=str(rows), eval_rows=3),
        verifier=VerifierOptions(),
        rollout=RolloutOptions(max_new_tokens=4),
        engine=TorchEngineOptions(slots=4),
        seed=0,
    )
    try:
        assert sampler.evaluate(EvalOptions()).rows == 3
        assert sampler.evaluate(EvalOptions(prompts=2)).rows == 2
    finally:
        sampler.close()

"""``examples/one_file_async.py`` and the library are the same algorithm, written twice.

The example samples without a cache, measures gradient norms with one backward a rollout and steps torch's AdamW; the library decodes
continuously, takes all norms from one packed backward and drives pool, chain and store. Over 20 lockstep batches in float64 they agree.
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from support import rewards, runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_file_async.py"
BATCHES, LAG = 20, 3


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file_async", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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

    one_file = example()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    model = Qwen2ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    args = one_file.Args(batches=BATCHES, lag=LAG, prompts=runs.GROUPS, group=runs.MEMBERS, new_tokens=runs.NEW_TOKENS, lr=runs.LR)
    steps = one_file.train(model, tokenizer, runs.questions(), lambda prompt, response: rewards.digit(prompt, response, "", {}), args)
    gaps = []
    for n, step in enumerate(steps, 1):
        assert step["age"] == min(n - 1, LAG)
        gaps.append(runs.furthest(dict(model.named_parameters()), runs.weights_after(tmp_path / "run", n)))
    assert len(gaps) == BATCHES
    assert max(gaps) <= 1e-8


def test_the_example_can_be_read_in_one_sitting_and_needs_torch_and_transformers_only() -> None:
    source = EXAMPLE.read_text()
    assert len(source.splitlines()) < 300
    imports = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [name for n in imports for name in ([n.module or ""] if isinstance(n, ast.ImportFrom) else [a.name for a in n.names])]
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"torch", "transformers"}

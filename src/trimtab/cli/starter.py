"""``init``: a starter file for somebody's own problem."""

from __future__ import annotations

from pathlib import Path

from trimtab.records import TrimtabError

STARTER = """\
# Your own problem. Check it:   trimtab config check {path}
# What it will need:            trimtab train {path} --dry-run
# Run it:                       trimtab train {path}

name = "{name}"
model = "{model}"        # a local Hugging Face folder (Qwen2 family, tied or untied) with its tokenizer
methods = ["vcpo"]       # see: trimtab methods

[task]
kind = "jsonl"
path = "prompts.jsonl"             # one JSON object a line
columns = {{ prompt = "prompt", answer = "answer" }}
chat = true                        # send the prompt through the model's chat template
reward = "my_reward:score"         # module:function(prompt, response, answer, data) -> number; runs in a process that can be killed
# reward = "exact"                 # or: the response must equal the answer
# kind = "reasoning_gym"           # or a family of reasoning-gym by name, instead of path, columns and reward:
# name = "chain_sum"

[verifier]
deadline_s = 5.0

[rollout]
group_size = 8
prompts_per_batch = 8
max_new_tokens = 512
temperature = 1.0

[learner]
batches = 400
micro_tokens = 16384               # tokens that pass through the model together
# device = "cuda"
# dtype = "bfloat16"

[learner.optimizer]
lr = 1e-6

[engine]
slots = 64
# device = "cuda"
# dtype = "bfloat16"

[runtime]
kind = "local"
max_lag = 4                        # no token older than this many versions is ever trained on
workers = 1

[eval]
every = 50
prompts = 256
"""


def write_starter(path: Path, model: str) -> None:
    """Write it; a file that is there is left alone."""
    if path.exists():
        raise TrimtabError.field("path", str(path), "it exists; choose another name")
    path.write_text(STARTER.format(path=path, name=path.stem, model=model))
    print(f"wrote {path}: set model, path and reward, then: trimtab config check {path}")

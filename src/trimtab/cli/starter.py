"""``init``: a starter file for somebody's own problem."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from trimtab.records import TrimtabError

STARTER = """\
# Your own problem. Check it:   trimtab config check {path}
# What it will need:            trimtab train {path} --dry-run
# Run it:                       trimtab train {path}
# Every option and its default: trimtab config show {path}
# Paths are relative to the directory the command is run in, and so is the module of the reward.

name = "{name}"
model = {model}        # a local Hugging Face folder (Qwen2 family, tied or untied) with its tokenizer
methods = ["vcpo"]       # see: trimtab methods

[task]
kind = "jsonl"
path = "prompts.jsonl"             # one JSON object a line
columns = {{ prompt = "prompt", answer = "answer" }}   # answer = "none" where the rows have none
chat = true                        # send the prompt through the model's chat template; false: plain text
reward = "my_reward:score"         # module:function(prompt, response, answer, data) -> number; runs in a process that can be killed
threshold = 1.0                    # a reward of at least this counts as correct in what is reported as accuracy
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
kind = "torch"
slots = 64                         # rows decoded together; two batches of them (128) never idle, if the memory allows
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
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "run"
    quoted = shlex.quote(str(path))
    text = STARTER.format(path=quoted, name=name, model=json.dumps(model, ensure_ascii=False))  # a JSON string is a TOML one, too
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise TrimtabError.field("path", str(path), "it exists; choose another name") from None
    except OSError as error:
        raise TrimtabError.field("path", str(path), f"cannot be written ({error.strerror}); choose another place") from None
    print(f"wrote {path}: set model, path and reward, then: trimtab config check {quoted}")

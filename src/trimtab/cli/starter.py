"""``init``: a starter file for somebody's own problem."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from trimtab.config.models import model_folder
from trimtab.engines.folder import check_folder
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
path = {prompts}             # one JSON object a line
columns = {{ prompt = "prompt", answer = "answer" }}   # answer = "none" where the rows have none
chat = true                        # send the prompt through the model's chat template; false: plain text
reward = {reward}         # module:function(prompt, response, answer, data) -> number; runs in a process that can be killed
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
lr = {lr}                         # {why}

[engine]
kind = "torch"
slots = 64                         # rows decoded together; two batches of them (128) never idle, if the memory allows
# device = "cuda"
# dtype = "bfloat16"

[runtime]
kind = "local"
max_lag = 8                        # no token older than this many versions is ever trained on
depth = 3                          # samplers run at most so many batches ahead; at the bound itself they would idle half of the time
workers = 1

[eval]
every = 50
prompts = 256
"""


def learning_rate(parameters: int) -> float:
    """A first rate for AdamW by size, two digits: 1e-4 (3e6 / n)^0.55, between 1e-6 and 5e-4.

    Our rule of thumb: through what was measured here (5e-4 at 0.1 M parameters, 1e-4 at 3 M: docs/regime.md, docs/lab.md) and what is
    customary at 7 B (1e-6). It says where to begin, not where to stay.
    """
    return float(f"{min(5e-4, max(1e-6, 1e-4 * (3e6 / parameters) ** 0.55)):.1e}")


def _rate(model: str) -> tuple[float, str]:
    """The rate, and what it was chosen by."""
    try:
        n = check_folder(model_folder(model))
    except TrimtabError:  # to be written, or not yet there: what it is trained with is said by its size
        known = (("135 M", 135 * 10**6), ("0.5 B", 5 * 10**8), ("7 B", 7 * 10**9))
        sizes = ", ".join(f"{learning_rate(n):g} for {name}" for name, n in known)
        return learning_rate(500_000_000), f"by size, to begin with: {sizes}"
    return learning_rate(n), f"to begin with, for {n / 1e6:,.1f} M parameters"


def write_starter(path: Path, model: str, prompts: str = "prompts.jsonl", reward: str = "my_reward:score") -> None:
    """Write it; a file that is there is left alone. ``prompts`` and ``reward``: what is known already."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "run"
    quoted = shlex.quote(str(path))
    lr, why = _rate(model)
    strings = {"model": model, "prompts": prompts, "reward": reward}
    toml = {key: json.dumps(value, ensure_ascii=False) for key, value in strings.items()}  # a JSON string is a TOML one, too
    text = STARTER.format(path=quoted, name=name, lr=f"{lr:g}", why=why, **toml)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise TrimtabError.field("path", str(path), "it exists; choose another name") from None
    except OSError as error:
        raise TrimtabError.field("path", str(path), f"cannot be written ({error.strerror}); choose another place") from None
    print(f"wrote {path}: set model, path and reward, then: trimtab config check {quoted}")

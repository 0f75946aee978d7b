"""A reward that fails in every way there is, on command. Loaded in the verifier's process, so this module imports next to nothing.

``switched(...)`` sets what the processes that are started from then on do; ``Faults.committed`` says what they have done so far.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REWARD = "support.faulty_reward:score"
VARIABLE = "TRIMTAB_TESTS_FAULTY_REWARD"

# what the reward does -> the outcome, and how the reason of the response without a verdict begins
OUTCOMES = {
    "raise": ("error", "ValueError: raised on purpose"),
    "none": ("error", "the reward function returned None, not a number"),
    "nan": ("error", "the score is nan"),
    "inf": ("error", "the score is inf"),
    "huge": ("error", "the score is 1e+308"),
    "text": ("error", "the reward function returned 'much', not a number"),
    "exit": ("error", "SystemExit: 3"),
    "kill": ("error", "the scorer's process ended with code -9"),
    "hang": ("timeout", "no verdict within"),
    "judge is out": ("timeout", ""),
}
_RETURNED: dict[str, object] = {
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "huge": 1e308,
    "text": "much",
    "judge is out": (0.0, "timeout"),
}


@dataclass(frozen=True, slots=True)
class Faults:
    folder: Path

    @property
    def committed(self) -> Counter[str]:
        """How often each was committed, in all processes."""
        log = self.folder / "committed"
        return Counter(log.read_text().splitlines()) if log.exists() else Counter()

    @property
    def outcomes(self) -> Counter[str]:
        """What the responses must have got, by outcome."""
        found: Counter[str] = Counter()
        for fault, n in self.committed.items():
            found[OUTCOMES[fault][0]] += n
        return found

    @property
    def calls(self) -> int:
        """Responses that the reward was asked about."""
        log = self.folder / "calls"
        return log.stat().st_size if log.exists() else 0


@contextmanager
def switched(folder: Path, faults: Sequence[str], every: int, *, only: str = "", spared: str = "\0") -> Iterator[Faults]:
    """Every ``every``-th call commits the next of ``faults``, in turn; of prompts with ``only`` in them and without ``spared``."""
    folder.mkdir(exist_ok=True)
    plan = {"folder": str(folder), "faults": list(faults), "every": every, "only": only, "spared": spared}
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = json.dumps(plan)
    try:
        yield Faults(folder)
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def score(prompt: str, response: str, answer: str, data: dict[str, object]) -> object:
    """1 for a response with the digit 1 in it, where no fault is due."""
    plan = json.loads(os.environ.get(VARIABLE, "null"))
    if plan is None or plan["only"] not in prompt or plan["spared"] in prompt:
        return float("1" in response)
    call = _add(plan, "calls", ".")
    turn, due = divmod(call, plan["every"])
    if due != plan["every"] - 1:
        return float("1" in response)
    fault = plan["faults"][turn % len(plan["faults"])]
    _add(plan, "committed", f"{fault}\n")
    if fault == "raise":
        raise ValueError("raised on purpose")
    if fault == "hang":
        time.sleep(3600)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        raise SystemExit(3)
    return _RETURNED[fault]


def _add(plan: dict[str, object], name: str, text: str) -> int:
    """Append to a log that outlives this process; how long it was."""
    fd = os.open(f"{plan['folder']}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, text.encode())
        return os.lseek(fd, 0, os.SEEK_CUR) - len(text)
    finally:
        os.close(fd)

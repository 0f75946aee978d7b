"""What ``import trimtab`` offers: typed, documented, and free of torch until it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import trimtab
from support import runs
from trimtab import Observer, Step, TrimtabError, Verdict, load, resume, train
from trimtab.telemetry.metrics import BatchRecord


def test_the_package_loads_without_torch_and_lists_what_it_exports() -> None:
    script = "import sys, trimtab; assert set(trimtab.__all__) <= set(dir(trimtab)); trimtab.load; trimtab.Verdict; trimtab.Step; "
    subprocess.run([sys.executable, "-c", script + "sys.exit('torch' in sys.modules)"], check=True)
    for name in trimtab.__all__:
        assert inspect.getdoc(getattr(trimtab, name)), name


class Counting(Observer):
    """Overrides what it cares about."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        self.batches.append(record.batch)


def test_a_run_from_python_and_its_continuation(tmp_path: Path) -> None:
    config = runs.config(
        tmp_path,
        ["vcpo"],
        runtime={"kind": "lockstep", "lag": 1},
        learner={"batches": 2},
        rollout={"max_new_tokens": 6, "prompts_per_batch": 4, "group_size": 4},
    )
    watching = Counting()
    assert train(config, tmp_path / "r", observer=watching, report=False).status == "done"
    assert resume(tmp_path / "r", ["learner.batches=3"], observer=watching, report=False).batches == 3
    assert watching.batches == [0, 1, 2]


def test_the_types_of_a_reward() -> None:
    assert issubclass(TrimtabError, Exception)
    assert load("quickstart", ["learner.batches=7"]).learner.batches == 7
    assert inspect.isclass(Verdict)
    assert inspect.isclass(Step)

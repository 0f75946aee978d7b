"""A run in a process of its own that stops and waits to be killed: ``python -m support.held_run CONFIG.json FOLDER BATCH``.

After batch BATCH is trained, and before the checkpoint that may be due, it says so on stdout and reads stdin.
"""

import sys
from pathlib import Path

import torch

from support.runs import Quiet
from trimtab.config.run import RunConfig
from trimtab.runtime.run import start
from trimtab.telemetry.metrics import BatchRecord


class Held(Quiet):
    def __init__(self, at: int) -> None:
        self._at = at

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch == self._at:
            sys.stdout.write("held\n")
            sys.stdout.flush()
            sys.stdin.readline()


if __name__ == "__main__":
    torch.set_num_threads(1)
    start(RunConfig.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), Held(int(sys.argv[3])))

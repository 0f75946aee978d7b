"""A process that runs cells, one after another, so that imports are paid once. Started by ``schedule`` as a :class:`Child`."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from trimtab.config.load import validate
from trimtab.lab.runners import Work, runner
from trimtab.lab.schedule import OUTPUT, CellTask, Ended
from trimtab.records import StoppedByDetector, TrimtabError
from trimtab.telemetry.clock import cpu_used


def main(connection: Connection) -> None:
    """Serve until the other side hangs up: a :class:`CellTask` in; batches done, then an :class:`Ended` out."""
    import torch

    torch.set_num_threads(1)
    connection.recv()  # what every child is greeted with
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        assert isinstance(task, CellTask)
        with (Path(task.folder) / OUTPUT).open("wb") as output:
            os.dup2(output.fileno(), 2)
        connection.send(_run(task, connection))


def _run(task: CellTask, connection: Connection) -> Ended:
    """Run it. A run that a detector stopped is a result; one that anything else stopped is not."""
    begun, used = time.perf_counter(), cpu_used()
    error = ""
    try:
        work = Work(validate(task.config), task.options, Path(task.folder))
        runner(task.runner)(work, connection.send)
    except StoppedByDetector:
        pass
    except TrimtabError as failure:
        error = str(failure)
    except Exception as failure:  # noqa: BLE001
        # The laboratory goes on with other cells; this one is named at the end, with what broke it.
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    logging.getLogger("trimtab").handlers.clear()  # of the folder that is about to move
    return Ended(error, time.perf_counter() - begun, cpu_used() - used)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))

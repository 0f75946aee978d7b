"""One torch thread a process, and the package's logger as it was, in every test."""

import logging
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _plain_logger() -> None:
    """A run in this process sends the package's log to its folder; each test begins with the log where pytest looks for it."""
    logger = logging.getLogger("trimtab")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True

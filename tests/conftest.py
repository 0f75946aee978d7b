"""One torch thread a process, and the package's logger as it was, in every test."""

import logging
import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _logger_left_alone() -> Iterator[None]:
    """A run in this process sends the package's log to its folder; the next test must see it where pytest looks."""
    logger = logging.getLogger("trimtab")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate

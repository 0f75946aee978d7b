"""These tests import the peers: only ``make parity``, which installs them, collects this folder."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.option.markexpr == "parity" else True

"""Run folders that the tests of the room share: they only read them."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).parent / "synthetic.py")
assert _spec
assert _spec.loader
_synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_synthetic)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """``healthy`` and ``collapsed``: 150 batches each."""
    root = tmp_path_factory.mktemp("runs")
    _synthetic.write_run(root / "healthy", batches=150)
    _synthetic.write_run(root / "collapsed", batches=150, seed=1, collapse=True, lr=5e-4)
    return root


@pytest.fixture
def write_run():
    return _synthetic.write_run


@pytest.fixture(scope="session")
def synthetic():
    return _synthetic

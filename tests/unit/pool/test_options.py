import subprocess
import sys

import pytest

from trimtab.pool.options import PoolOptions
from trimtab.records import TrimtabError


def test_depth_defaults_to_max_lag():
    assert PoolOptions(max_lag=3).batches_ahead == 3
    assert PoolOptions(max_lag=3, depth=1).batches_ahead == 1
    assert PoolOptions(max_lag="none", depth=2).max_lag is None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"max_lag": -1}, ["runtime.max_lag = -1", "0 or more"]),
        ({"depth": -2}, ["runtime.depth = -2", "give 0"]),
        ({"max_lag": "none"}, ["runtime.depth = None", "give depth"]),
        ({"max_lag": 2, "depth": 3}, ["runtime.depth = 3", "max_lag = 2", "lower depth or raise max_lag"]),
        ({"min_group": 0}, ["rollout.min_group = 0"]),
        ({"max_attempts": 0}, ["rollout.max_attempts = 0"]),
        ({"max_fruitless": 0}, ["runtime.max_fruitless = 0"]),
        ({"straggler_deadline_s": 0.0}, ["runtime.straggler_deadline_s = 0.0"]),
        ({"straggler_deadline_s": float("inf")}, ["runtime.straggler_deadline_s = inf", "nothing waits forever"]),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(given, names):
    with pytest.raises(TrimtabError) as refusal:
        PoolOptions(**given)
    message = str(refusal.value)
    assert all(name in message for name in names)
    assert "\n" not in message


def test_depth_below_what_a_policy_needs_is_refused():
    PoolOptions(max_lag=4, depth=2).require_depth(2, "pace")
    with pytest.raises(TrimtabError, match=r"runtime.depth = 1: pace needs 2"):
        PoolOptions(max_lag=4, depth=1).require_depth(2, "pace")


def test_unknown_key_is_refused():
    with pytest.raises(ValueError, match="max_leg"):
        PoolOptions(max_leg=1)


def test_options_import_no_torch():
    code = "import sys, trimtab.pool.options, trimtab.pool.pool; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

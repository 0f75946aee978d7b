"""Lockstep is deterministic to the bit: it does not matter how long a verdict takes."""

from pathlib import Path

from support import runs
from trimtab.records import Json

BATCHES, LAG = 5, 4  # the first round generates all five batches: more than a worker would hold at once


def test_a_slow_verifier_changes_no_bit(tmp_path: Path) -> None:
    learner: dict[str, Json] = {"batches": BATCHES, "optimizer": {"lr": runs.LR}}
    for reward in ("digit", "slow_digit"):
        config = runs.config(
            tmp_path, ["vcpo"], runtime={"kind": "lockstep", "lag": LAG}, learner=learner, task={"reward": f"support.rewards:{reward}"}
        )
        assert runs.train(config, tmp_path / reward).applied == BATCHES

    fast, slow = (runs.trained(tmp_path / reward) for reward in ("digit", "slow_digit"))
    assert fast.keys() == slow.keys()
    for key, rollout in fast.items():
        assert rollout.segments[0].tokens.tolist() == slow[key].segments[0].tokens.tolist()
        assert rollout.segments[0].behavior_logp.tolist() == slow[key].segments[0].behavior_logp.tolist()
    assert runs.digest_after(tmp_path / "digit", BATCHES) == runs.digest_after(tmp_path / "slow_digit", BATCHES)

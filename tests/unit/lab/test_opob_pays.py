"""Where OPOB pays: every cell is a configuration that loads, and the table says what was found."""

from trimtab.config.load import load
from trimtab.lab import opob_pays
from trimtab.lab.arms import LEAN, Found
from trimtab.tasks.options import ShapingOptions


def test_every_cell_is_a_run_of_the_same_regime() -> None:
    grid = opob_pays.cells(opob_pays.REWARDS, list(opob_pays.ARMS), range(2))
    assert len({c.name for c in grid}) == len(grid) == 3 * 5 * 2
    for cell in grid:
        config = load("quickstart", [f"seed={cell.seed}", *cell.overrides, *LEAN])
        assert (config.runtime.kind, config.runtime.lag) == ("lockstep", 12)  # type: ignore[union-attr]
        assert (config.learner.batches, config.learner.schedule.kind, config.learner.optimizer.lr) == (200, "constant", 5e-4)
        reward = cell.arm.split("-")[0]
        wrong, right = {"local": (0, 1), "signed": (-1, 1), "shifted": (1, 2)}[reward]
        assert (config.task.shaping.offset, config.task.shaping.offset + config.task.shaping.scale) == (wrong, right)
        assert (config.task.shaping.kind == "local") == (reward == "local")
        assert next(m.name for m in config.chain().methods) == "seq_tis"
        assert ("ess" in [m.name for m in config.chain().methods]) == cell.arm.endswith("vcpo")
    assert ShapingOptions() == load("quickstart").task.shaping


def test_table() -> None:
    found = [
        Found("local-mean", seed, (), "done", dict(zip(opob_pays.COLUMNS, (held_out, 0.25, 0.5, 1.0, float("nan")), strict=True)))
        for seed, held_out in ((1, 0.0), (0, 0.4996))
    ]
    assert opob_pays.table(found).splitlines() == [
        "| reward | credit | held-out | last 20 | best 20 | whole run | lowest ESS/B | prototype |",
        "|---|---|---|---|---|---|---|---|",
        "| local | mean | .500 .000 | .250 .250 | .500 .500 | 1.000 1.000 | nan nan | .00 .00 |",
    ]

"""Experiment files: what they say, how cells come of them, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.laboratory import EXPERIMENT, experiment
from trimtab.lab import laboratory
from trimtab.lab.load import FOLDER, load, shipped
from trimtab.lab.spec import merge
from trimtab.records import TrimtabError


def test_cells_and_their_configurations(tmp_path: Path) -> None:
    text = EXPERIMENT + '[[exceptions]]\narm = "tis"\nat = { lag = 2 }\nseeds = 1\nset = { learner.optimizer.lr = 0.25 }\n'
    loaded = load(str(experiment(tmp_path, text)))
    jobs = laboratory.plan(loaded)
    assert [job.name for job in jobs] == [
        "tis/lag=0 seed 0",
        "tis/lag=2 seed 0",
        "vcpo/lag=2 seed 0",
        "tis/lag=0 seed 1",
        "vcpo/lag=2 seed 1",
    ]
    by_name = {job.name: job.config for job in jobs}
    assert by_name["vcpo/lag=2 seed 1"].runtime.lag == 2  # type: ignore[union-attr]
    assert by_name["vcpo/lag=2 seed 1"].chain().methods[0].name == "seq_tis"
    assert by_name["vcpo/lag=2 seed 1"].seed == 1
    assert by_name["tis/lag=2 seed 0"].learner.optimizer.lr == 0.25
    assert by_name["tis/lag=0 seed 0"].learner.batches == 3
    assert {job.cell.label for job in jobs} == {"sequence-TIS", "vcpo"}
    assert [job.name for job in laboratory.plan(loaded, seeds=1)][-1] == "vcpo/lag=2 seed 0"


def test_smoke_takes_the_last_cell_of_every_arm(tmp_path: Path) -> None:
    jobs = laboratory.plan(load(str(experiment(tmp_path, EXPERIMENT.replace("only = { lag = [2] }", "only = { lag = [0] }")))), smoke=True)
    assert sorted(job.name for job in jobs) == ["tis/lag=2 seed 0", "vcpo/lag=0 seed 0"]
    assert {job.config.eval.prompts for job in jobs} == {8}


def test_merge() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "runtime": {"kind": "local", "max_lag": 12}, "methods": ["vcpo", {"name": "gac", "c_low": 0.1}]}
    assert merge(old, {"a": {"c": [3]}})["a"] == {"b": 1, "c": [3]}
    assert merge(old, {"runtime": {"kind": "lockstep"}})["runtime"] == {"kind": "lockstep"}
    assert merge(old, {"runtime": {"kind": "local", "depth": 4}})["runtime"] == {"kind": "local", "max_lag": 12, "depth": 4}
    changed = merge(old, {"methods": {"gac": {"c_high": 0.9}, "ess": {"floor": 0.1}}})["methods"]
    assert changed == [{"name": "vcpo"}, {"name": "gac", "c_low": 0.1, "c_high": 0.9}, {"name": "ess", "floor": 0.1}]
    assert merge(old, {"methods": ["grpo"]})["methods"] == ["grpo"]
    assert old["methods"][0] == "vcpo"  # type: ignore[index]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('source = "nobody"\n', "", "source is missing"),
        ("seeds = 2", "seeds = 0", "seeds = 0: Input should be greater"),
        ("seeds = 2", "sedes = 2", "sedes = 2: no such key here; did you mean seeds?"),
        ('metric = "accuracy/train", la', 'metric = "acuracy/train", la', "'acuracy/train': no such metric; did you mean accuracy/train?"),
        ('kind = "mean", metric', 'kind = "meen", metric', "measures.mean.kind = 'meen': use one of"),
        ('kind = "mean", metric', "metric", "measures.mean.kind is missing"),
        ('label = "mean', 'windw = 3, label = "mean', "measures.mean.windw = 3: no such key here; did you mean window?"),
        ('measure = "mean"\nat_least', 'measure = "meen"\nat_least', "checks.0.measure = 'meen': did you mean mean?"),
        ("at_least = 0.0", "at_least = { arm = 'tos' }", "checks.0.arm = 'tos': no arm is called so"),
        ("at_least = 0.0", "at_least = { arm = 'tis', fctor = 2 }", "checks.0.at_least.fctor = 2: no such key here; did you mean factor?"),
        ("at_least = 0.0", "", "checks.0: give one of at_least and at_most"),
        ("only = { lag = [2] }", "only = { lag = [3] }", "arms.vcpo.only.at.lag = 3: no value of this axis"),
        ('methods = ["vcpo"]', 'method = ["vcpo"]', "arms.vcpo = 'method': did you mean methods?"),
        ('axis = "lag"', 'axis = "leg"', "figures.1.axis = 'leg': did you mean lag?"),
        ('"tis/lag=2" = 0.5', '"tis/lag=3" = 0.5', "references.0.values.mean = 'tis/lag=3': did you mean"),
        ('title = "Bars"', "", "figures.2.title is missing"),
        ('measure = "mean"\nat_least', 'arm = ["tis", "tas"]\nmeasure = "mean"\nat_least', "checks.0.arm = 'tas': no arm is called so"),
        ('measure = "mean"\nat_least', 'arm = []\nmeasure = "mean"\nat_least', "checks.0.arm = '': no arm is called so"),
        ("learner.batches = 3", "seed = 3", "base.seed = 3: the laboratory gives seeds; say at the top how many: `seeds`"),
        ('key = "runtime.lag"', 'key = "seed"', "grid.lag.seed = 0: the laboratory gives seeds"),
        ('methods = ["vcpo"]', 'methods = ["vcpo"]\nseed = 1', "arms.vcpo.seed = 1: the laboratory gives seeds"),
        ("values = [0, 2]", "values = [0, 2, 2]", "grid.lag: a value is there twice"),
        ("values = [0, 2]", 'values = [0, 2, "2"]', "grid.lag: a value is there twice"),
        ("only = { lag = [2] }", "only = { lag = [] }", "arms.vcpo.only.at.lag = []: it names no value; name one, or leave the axis out"),
        ("[measures]", "[[exceptions]]\nskip = true\n[measures]", "exceptions = 'skip = true': every cell is skipped; leave at least one"),
        ("claim = ", "claim", "not valid TOML"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in EXPERIMENT
    with pytest.raises(TrimtabError) as error:
        load(str(experiment(tmp_path, EXPERIMENT.replace(old, new, 1))))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value).rstrip()


HEAT = """
[[figures]]
kind = "heat"
name = "table"
title = "T"
measure = "mean"
rows = "arm"
columns = "lag"
"""


def test_a_square_of_a_table_is_one_cell(tmp_path: Path) -> None:
    axis = '[grid.lr]\nkey = "learner.optimizer.lr"\nvalues = [1e-3, 2e-3]\n'
    text = EXPERIMENT.replace("[arms.tis]", axis + "[arms.tis]").partition("[[figures]]")[0]
    for more in ("at = { lr = 1e-3 }", 'by = "lr"'):
        load(str(experiment(tmp_path, text + HEAT + more)))
    load(str(experiment(tmp_path, text.replace("[1e-3, 2e-3]", "[1e-3]") + HEAT)))
    load(str(experiment(tmp_path, text + HEAT.replace('"arm"', '"lr"') + 'arm = "tis"')))
    with pytest.raises(TrimtabError, match=r"figures\.0\.name = 'table': a square .* differ in lr; choose by at = { lr = \.\.\. }"):
        load(str(experiment(tmp_path, text + HEAT)))
    with pytest.raises(TrimtabError, match=r"'table': a square would be several cells, which differ in arm; choose by arm or"):
        load(str(experiment(tmp_path, text + HEAT.replace('"arm"', '"lr"'))))


def test_a_bad_configuration_names_the_cell(tmp_path: Path) -> None:
    loaded = load(str(experiment(tmp_path, EXPERIMENT.replace('methods = ["vcpo"]', 'methods = ["vcpu"]'))))
    with pytest.raises(TrimtabError, match=r"mine\.toml, cell vcpo/lag=2: methods = 'vcpu': unknown method"):
        laboratory.plan(loaded)


def test_names(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="did you mean collapse"):
        load("colapse")
    with pytest.raises(TrimtabError, match="ships with Trimtab"):
        load(str(experiment(tmp_path, name="collapse")))
    for name in ("cells", "smoke", "models"):
        with pytest.raises(TrimtabError, match=f"{name} is a folder of the laboratory itself; rename the file"):
            load(str(experiment(tmp_path, name=name)))
    with pytest.raises(TrimtabError, match="cannot be read"):
        load(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("name", shipped())
def test_shipped_experiments_are_sound(name: str) -> None:
    loaded = load(name)
    assert laboratory.plan(loaded)
    assert laboratory.plan(loaded, smoke=True)
    assert (FOLDER / f"{name}.toml").read_text().startswith("claim = ")
    assert any(not check.control for check in loaded.experiment.checks)
    assert loaded.experiment.figures


def test_the_example_of_the_documentation_is_sound(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()
    path = tmp_path / "ess-rules.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0])
    jobs = laboratory.plan(load(str(path)))
    rules = {job.cell.arm: job.config.chain().methods[-1].options.model_dump()["rule"] for job in jobs}
    assert rules == {"sqrt": "sqrt", "linear": "linear"}

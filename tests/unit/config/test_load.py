"""From a file to a configuration: overrides, the way back, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trimtab.config.load import differences, load, override, presets, read_resolved, read_table, to_toml, validate
from trimtab.config.models import model_folder
from trimtab.config.run import LocalOptions, LockstepOptions, RunConfig
from trimtab.control.registry import method_class, names
from trimtab.lab.spec import Experiment
from trimtab.records import TrimtabError

TABLE: dict[str, Any] = {
    "model": "m",
    "methods": ["vcpo"],
    "task": {"kind": "reasoning_gym", "name": "chain_sum"},
    "rollout": {"max_new_tokens": 8},
}


def config(*overrides: str, **tables: Any) -> RunConfig:
    return validate(override({**TABLE, **tables}, overrides))


def refused(*overrides: str, **tables: Any) -> str:
    with pytest.raises(TrimtabError) as error:
        config(*overrides, **tables)
    message = str(error.value)
    assert "\n" not in message
    return message


# -------------------------------------------------------------------------------------------------------------------- reading


def test_a_preset_is_a_name_and_a_file_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "quickstart" in presets()
    assert load("quickstart").learner.batches == 400
    (tmp_path / "mine.toml").write_text(to_toml(config()))
    assert load(str(tmp_path / "mine.toml")).model == "m"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()  # a run folder of the preset's name is in nobody's way
    assert load("quickstart").learner.batches == 400


@pytest.mark.parametrize("preset", presets())
def test_every_preset_is_sound(preset: str) -> None:
    assert load(preset).chain().methods


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for name, content, said in (
        ("nowhere.toml", None, r"config = '.*nowhere.toml': no such file, and no preset of that name \(presets: .*quickstart"),
        ("broken.toml", b"lr = = 3", "config = '.*broken.toml': not valid TOML"),
        ("latin.toml", "name = 'é'".encode("latin-1"), "config = '.*latin.toml': cannot be read"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(TrimtabError, match=said):
            load(str(tmp_path / name))
    with pytest.raises(TrimtabError, match="no such file"):
        load(str(tmp_path))


# ------------------------------------------------------------------------------------------------------------------ overrides


def test_overrides_are_toml_values_and_bare_words_are_strings() -> None:
    c = config(
        "learner.optimizer.lr=1e-5",
        "learner.optimizer.betas=[0.8, 0.9]",
        "seed = 7",
        "name=my-run",
        'task.name="gcd"',
        "task.compact=true",
        'methods=["seq_tis", {name = "grpo", std = "none"}]',
        'runtime={kind = "lockstep", lag = 3}',
        "verifier.memory_gib=none",
    )
    assert c.learner.optimizer.lr == 1e-5
    assert c.learner.optimizer.betas == (0.8, 0.9)
    assert (c.seed, c.name, c.task.name) == (7, "my-run", "gcd")  # type: ignore[union-attr]
    assert c.task.compact
    assert [m.name for m in c.chain().methods] == ["seq_tis", "grpo", "linear", "norm_clip"]
    assert isinstance(c.runtime, LockstepOptions)
    assert c.verifier.memory_gib is None


def test_an_override_does_not_touch_the_table_it_is_laid_over() -> None:
    before = json.dumps(TABLE)
    config("task.name=gcd", "rollout.top_p=0.9")
    assert json.dumps(TABLE) == before


def test_the_last_override_of_a_key_holds() -> None:
    assert config("seed=1", "seed=2").seed == 2


def test_another_kind_starts_its_table_anew_wherever_it_is_written() -> None:
    local = {"kind": "local", "max_lag": 3, "workers": 2}
    for overrides in (["runtime.kind=lockstep", "runtime.lag=4"], ["runtime.lag=4", "runtime.kind=lockstep"]):
        assert config(*overrides, runtime=local).runtime == LockstepOptions(kind="lockstep", lag=4)
    kept = config("runtime.kind=local", "runtime.depth=1", runtime=local).runtime
    assert isinstance(kept, LocalOptions)
    assert (kept.max_lag, kept.workers, kept.depth) == (3, 2, 1)


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("seed", "override = 'seed': write key=value"),
        ("=3", "override = '=3': write key=value"),
        ("seed.deeper=3", "override = 'seed.deeper=3': seed is a value, not a table"),
        ("methods=[vcpo]", "override = 'methods=[vcpo]': [vcpo] is no TOML value"),
        ('runtime={kind: "local"}', 'override = \'runtime={kind: "local"}\': {kind: "local"} is no TOML value'),
    ],
)
def test_an_override_that_is_none(assignment: str, said: str) -> None:
    assert refused(assignment, seed=0).startswith(said)


# ----------------------------------------------------------------------------------------------- one sentence, the user's own path


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["lerner.batches=3"], "lerner = {'batches': 3}: unknown key; did you mean learner?"),
        (["learner.optimizer.lrr=3"], "learner.optimizer.lrr = 3: unknown key; did you mean lr?"),
        (["runtime.kind=local", "runtime.maxlag=3"], "runtime.maxlag = 3: unknown key; did you mean max_lag?"),
        (
            ["runtime.kind=local", "runtime.zzz=3"],
            "runtime.zzz = 3: unknown key; known keys here: admission, depth, kind, max_fruitless, max_lag, order, ",
        ),
        (["engine.kind=torch", "engine.torch=1"], "engine.torch = 1: unknown key; known keys here: cache_policy, device, dtype, kind, "),
        (["learner.schedule.kind=wsd", "learner.schedule.wsd=1"], "learner.schedule.stable is missing"),
        (["learner.schedule.constant=1"], "learner.schedule.constant = 1: unknown key; known keys here: kind, warmup"),
        (["task.temlate=x"], "task.temlate = 'x': unknown key; did you mean template?"),
        (["telemetry.detectors.ess.flor=0.1"], "telemetry.detectors.ess.flor = 0.1: unknown key; did you mean floor?"),
        (["runtime.kind=local", "runtime.min_group=3"], "runtime.min_group = 3: unknown key; "),
        (["runtime.kind=ray"], "runtime.kind = 'ray': unknown kind; use one of 'lockstep', 'local'"),
        (["task.kind=html"], "task.kind = 'html': unknown kind; use one of 'reasoning_gym', 'jsonl'"),
        (["task.kind=jsonl"], "task.path is missing: it has no default, set it in the file or as task.path=VALUE"),
        (["learner.batches=0"], "learner.batches = 0: Input should be greater than 0"),
        (["learner.batches=many"], "learner.batches = 'many': Input should be a valid integer"),
        (["learner.device=tpu"], 'learner.device = \'tpu\': Trimtab computes on "cpu" and on NVIDIA GPUs ("cuda", or "cuda:1" for one'),
        (["engine.device=mps"], "engine.device = 'mps': Trimtab computes on \"cpu\" and on NVIDIA GPUs"),
        (["engine.kind=latency", "engine.device=gpu"], "engine.device = 'gpu': Trimtab computes on \"cpu\" and on NVIDIA GPUs"),
        (['engine.device="cuda:0\\n"'], "engine.device = 'cuda:0\\n': Trimtab computes on"),
        (["learner.dtype=float64"], "engine.dtype = 'float32': weights are published as they are and learner.dtype is float64"),
        (["rollout.top_p=1.5"], "rollout.top_p = 1.5: Input should be less than or equal to 1"),
        (["rollout.group_size=4", "rollout.min_group=5"], "rollout.min_group = 5: a group has rollout.group_size = 4 rollouts; lower it"),
        (["task.system=hi"], "task.system needs task.chat = true"),
        (["learner.reduction=mean"], "learner.reduction = 'mean': Input should be 'seq_mean_token_mean', "),
        (["name=a/b"], "name = 'a/b': it becomes a folder: use letters, digits, dots, hyphens and underscores, no dot or hyphen first"),
        (["name=.."], "name = '..': it becomes a folder"),
        (['name="run\\n"'], "name = 'run\\n': it becomes a folder"),
        (["methods=vcpo"], "methods = 'vcpo': methods is a list; write [\"vcpo\"]"),
        (["methods=[3]"], "methods.0 = 3: "),
        (["methods=[{c = 2}]"], "methods.0.name is missing"),
        (["methods=[]"], "methods = []: an asynchronous run needs a correction"),
        (['methods=["vcpoo"]'], "methods = 'vcpoo': unknown method; use one of "),
        (['methods=["seq_tis", "grpo", "rloo"]'], "methods = ['grpo', 'rloo']: both own the credit point"),
        (['methods=["vcpo", "ppo_clip"]'], "methods = ['opob', 'ppo_clip']: opob needs an objective linear in the advantage"),
        (["rollout.group_size=1"], "rollout.group_size = 1: opob compares the members of a group"),
        (["learner.updates_per_batch=9"], "learner.updates_per_batch = 9: a batch has 8 groups and every update needs one"),
        (["runtime.kind=local", "runtime.max_lag=-1"], "runtime.max_lag = -1: an age is at least 0"),
        (
            ["runtime.kind=local", "runtime.max_lag=none"],
            "runtime.depth = None: with max_lag = none only depth bounds the pool; give depth",
        ),
        (["runtime.kind=local", "runtime.max_lag=2", "runtime.depth=3"], "runtime.depth = 3: max_lag = 2 leaves no use for more"),
    ],
)
def test_whatever_is_wrong_is_named_with_its_value_and_the_remedy(overrides: Sequence[str], said: str) -> None:
    assert refused(*overrides).startswith(said)


def test_no_option_is_refused_by_showing_a_regular_expression() -> None:
    """Pydantic's message of a pattern is the pattern."""
    models: list[type[BaseModel]] = [RunConfig, Experiment, *(method_class(name).Options for name in names())]
    assert [model.__name__ for model in models if '"pattern"' in json.dumps(model.model_json_schema())] == []


def test_a_task_must_say_its_kind() -> None:
    assert refused(task={"name": "x"}).startswith('task.kind is missing: say which kind it is, as in task.kind = "..."')


def test_other_tables_have_a_default_kind() -> None:
    c = config("runtime.max_lag=3", "engine.slots=4", "learner.schedule.warmup=5")
    assert (c.runtime.kind, c.engine.kind, c.learner.schedule.kind) == ("local", "torch", "constant")
    assert refused("engine.slot=3").startswith("engine.slot = 3: unknown key; did you mean slots?")


@pytest.mark.parametrize("key", ["model", "task", "rollout"])
def test_what_has_no_default_is_asked_for(key: str) -> None:
    table = {k: v for k, v in TABLE.items() if k != key}
    with pytest.raises(TrimtabError, match=rf"{key} is missing: it has no default, set it in the file or as {key}=VALUE"):
        validate(table)


def test_a_model_that_does_not_come_with_trimtab() -> None:
    with pytest.raises(TrimtabError, match=r"model = 'package:nothing': no such model comes with Trimtab \(there are: "):
        model_folder("package:nothing")
    assert model_folder("some/where") == Path("some/where")


# ----------------------------------------------------------------------------------------------------------------- the way back

VARIANTS: dict[str, list[str]] = {
    "plain": [],
    "lockstep": ["runtime.kind=lockstep", "runtime.lag=2", "runtime.swap_every=4"],
    "no bound": ["runtime.kind=local", "runtime.max_lag=none", "runtime.depth=3"],
    "wsd": ['learner.schedule={kind = "wsd", warmup = 1, stable = 2, decay = 3}', "learner.micro_tokens=100"],
    "cosine": ['learner.schedule={kind = "cosine", decay = 3, floor = 0.1}'],
    "ppo": ['methods=["grpo", {name = "ppo_clip", dual = 3.0}]'],
    "ppo without dual": ['methods=["grpo", "ppo_clip"]'],
    "replaced": ['methods=["vcpo", {name = "opob", weighting = "exact"}, {name = "ess", reference = "calibrate"}]'],
    "synchronous": ["runtime.kind=lockstep", "methods=[]"],
    "memory": ["verifier.memory_gib=none", "rollout.min_group=2", "engine.max_context=64"],
    "jsonl": ["task.kind=jsonl", "task.path=a.jsonl", "task.eval_path=b.jsonl", "task.columns.answer=none", "task.reward=m:f"],
    "held out": ["task.kind=jsonl", "task.path=a.jsonl", "task.eval_rows=3"],
    "conversations": ["task.kind=jsonl", "task.path=a.jsonl", "task.columns.messages=talk"],
    "family": ['task.config={min_terms = 2, names = ["a", "b"]}', "task.chat=true", "task.system=be brief"],
    "latency": ["engine.kind=latency", "engine.step_s=0.01"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resolved_configuration_is_the_same_configuration(variant: str) -> None:
    """Written as TOML with bundles expanded, and dumped as JSON: both come back, and come back the same a second time."""
    first = config(*VARIANTS[variant])
    written = to_toml(first)
    again = validate(tomllib.loads(written))
    assert to_toml(again) == written
    assert again.chain().describe() == first.chain().describe()
    assert again.model_copy(update={"methods": first.methods}) == first

    dumped = json.loads(json.dumps(first.model_dump(mode="json")))
    assert validate(dumped) == first
    assert differences(dumped, validate(dumped).model_dump(mode="json")) == {}


def test_nothing_is_left_to_a_default() -> None:
    """Every key of the configuration that has a value stands in the file."""
    written = tomllib.loads(to_toml(config()))
    dumped = config().model_dump(mode="json", exclude_none=True)

    def keys(table: dict[str, Any], prefix: str = "") -> set[str]:
        return {f"{prefix}{k}" for k in table} | {x for k, v in table.items() if isinstance(v, dict) for x in keys(v, f"{prefix}{k}.")}

    assert keys(dumped) - {"methods"} <= keys(written)


def test_differences_are_dotted_and_complete() -> None:
    old, new = (
        config("seed=1").model_dump(mode="json"),
        config("seed=2", "learner.optimizer.lr=1", 'methods=["none"]').model_dump(mode="json"),
    )
    assert differences(old, new) == {
        "seed": (1, 2),
        "learner.optimizer.lr": (3e-4, 1.0),
        "methods": ([{"name": "vcpo"}], [{"name": "none"}]),
    }
    assert differences({"a": {"b": 1}}, {"a": None, "c": 3}) == {"a": ({"b": 1}, None), "c": (None, 3)}


def test_a_run_folders_configuration_that_is_broken_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content in ("{", "[]"):
        path.write_text(content)
        with pytest.raises(TrimtabError, match=rf"{path} (cannot be read|is not a JSON object).*restore it from a copy"):
            read_resolved(path)


def test_read_table_gives_what_stands_in_the_file() -> None:
    assert read_table("quickstart")["methods"] == ["vcpo"]


# ------------------------------------------------------------------------------------------------------------------ light weight


def test_a_configuration_is_checked_without_torch() -> None:
    program = (
        "import sys\n"
        "from trimtab.config.load import load, to_toml\n"
        "to_toml(load('quickstart'))\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'transformers', 'pyarrow', 'reasoning_gym', 'matplotlib'}))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"

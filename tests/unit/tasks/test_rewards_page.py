"""docs/rewards.md: its function is a reward, and the options and metrics it names exist."""

import re
from pathlib import Path

from trimtab.config.run import RunConfig
from trimtab.records import Outcome
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import LARGEST, Prompt
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier_process import judge
from trimtab.telemetry.names import KNOWN

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "rewards.md").read_text()


def test_its_function_is_a_reward(tmp_path: Path, monkeypatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "page_reward.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    scorer = FunctionScorer("page_reward:score").build()
    prompt = Prompt(row=0, text="2+2=", answer="4", source="", data={})
    assert [judge(scorer, prompt, r).outcome for r in (" 4\n", "5")] == [Outcome.CORRECT, Outcome.WRONG]


def test_what_it_names_exists() -> None:
    metrics = set(re.findall(r"`((?:outcome|rollouts|groups)/\w+)`", PAGE))
    assert metrics <= KNOWN.keys()
    assert len(metrics) == 5
    options = set(re.findall(r"`((?:verifier|rollout|telemetry|task)\.[\w.]+)[`\s]", PAGE))
    assert len(options) > 8
    for option in options:
        where: object = RunConfig
        for part in option.split("."):
            fields = JsonlOptions.model_fields if where is not RunConfig and part in ("reward", "threshold") else where.model_fields  # type: ignore[attr-defined]
            assert part in fields, option
            where = fields[part].annotation
    assert float(re.search(r"at most (\S+) in size", PAGE)[1]) == LARGEST
    assert "(default 5 %)" in PAGE

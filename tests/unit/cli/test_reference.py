"""The generated pages are those of the code, and leave nothing out."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import cli
from trimtab.cli import glossary, reference
from trimtab.config.load import presets, read_table
from trimtab.telemetry.names import EVALUATED, FAMILIES, KNOWN, METHOD_PREFIX, described
from unit.cli.conftest import Finished

ROOT = Path(__file__).parents[3]
PAGES = {"configuration.md": ("config", "reference"), "metrics.md": ("metrics",)}


@pytest.mark.parametrize("page", PAGES)
def test_the_committed_page_is_the_generated_one(page: str) -> None:
    made = reference.page() if page == "configuration.md" else glossary.page()
    assert (ROOT / "docs" / page).read_text() == made, f"make docs writes {page} anew"


@pytest.mark.parametrize("page", PAGES)
def test_the_command_prints_it(page: str) -> None:
    ran = cli(*PAGES[page])
    assert ran.code == 0
    assert ran.out == (ROOT / "docs" / page).read_text()


def test_the_pages_need_no_torch() -> None:
    code = "import sys; from trimtab.cli import glossary, reference; reference.page(); glossary.page(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_option_and_every_table_says_what_it_is() -> None:
    assert reference.undescribed() == []


@pytest.mark.parametrize("preset", presets())
def test_every_option_of_the_presets_has_its_row(preset: str) -> None:
    """Independent of how the reference finds its options: tables and keys as they stand in the files."""
    parts = {part.partition("\n")[0]: part for part in re.split(r"^## ", reference.page(), flags=re.M)}
    parts[""] = parts.pop("# Configuration reference")

    def look(path: str, table: dict[str, object]) -> None:
        for key, value in table.items():
            inner = f"{path}.{key}".lstrip(".")
            if isinstance(value, dict) and inner in parts:
                look(inner, value)
            elif key != "kind":
                assert f"| `{key}` |" in parts[path], inner

    look("", dict(read_table(preset)))


def test_options_that_default_to_none_are_there() -> None:
    rows = [line for line in reference.page().splitlines() if line.startswith("| `")]
    unset = {line.split("`")[1] for line in rows if "| *unset* |" in line}
    assert {"reference", "micro_tokens", "max_context", "depth", "min_group", "eval_path", "value_clip"} <= unset


def test_each_kind_of_a_plug_in_point_has_its_part() -> None:
    page = reference.page()
    for kind in ("torch", "scripted", "latency", "jsonl", "reasoning_gym", "tabular", "local", "lockstep", "constant", "wsd", "cosine"):
        assert re.search(rf'^### [\w.]+\.kind = .*"{kind}"', page, re.M), kind


def test_every_metric_has_a_family_and_a_row() -> None:
    page = glossary.page()
    for name, metric in {**KNOWN, **EVALUATED}.items():
        assert name.partition("/")[0] in FAMILIES
        assert metric.meaning
        assert f"| `{name}` | {metric.unit} |" in page
    assert set(FAMILIES) == {name.partition("/")[0] for name in (*KNOWN, *EVALUATED)}


def test_every_metric_that_a_run_writes_is_in_the_glossary(finished: Finished) -> None:
    written = {name for line in (finished.run / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)["metrics"]}
    assert {"method/seq_tis/truncated", "method/opob/variance_ratio", "age/mean"} <= written
    assert [name for name in sorted(written) if described(name) is None] == []


def recorded() -> dict[str, str]:
    """Pattern -> file:line of every name that the package records as ``x.metric(name, ...)``; what is filled in may be anything."""
    found = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "metric" and node.args):
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant):
                pattern = re.escape(name.value)
            elif isinstance(name, ast.JoinedStr):
                pattern = "".join(re.escape(str(v.value)) if isinstance(v, ast.Constant) else r"[\w*/]*" for v in name.values)
            else:  # handed on under a name that is one of these
                continue
            found[pattern] = f"{file.relative_to(ROOT)}:{node.lineno}"
    return found


def test_every_metric_that_the_code_records_is_in_the_glossary() -> None:
    listed = [*KNOWN, *(line.split("`")[1].removeprefix(METHOD_PREFIX) for line in glossary.page().splitlines() if line.startswith("| `m"))]
    patterns = recorded()
    assert len(patterns) > 50
    lacking = {p: where for p, where in patterns.items() if not any(re.fullmatch(p, name) for name in (*listed, *starred(p, listed)))}
    assert lacking == {}


def starred(pattern: str, listed: list[str]) -> list[str]:
    """The entries for methods of any name, under this pattern's."""
    head = pattern.partition("/")[0].replace("\\", "")
    return [head + name[1:] for name in listed if name.startswith("*/")]


def test_the_age_of_a_metric_is_said() -> None:
    told = described("method/copc/k3/age_3")
    assert told is not None
    assert told[1].endswith("of tokens of age 3")
    assert described("method/somebody/own") is None

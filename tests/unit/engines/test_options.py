"""Options are told apart by kind, refuse what they do not know, and load without torch."""

import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from trimtab.config.run import EngineChoice
from trimtab.engines.options import EngineOptions, ScriptedEngineOptions, TorchEngineOptions

ADAPTER: TypeAdapter[EngineOptions] = TypeAdapter(EngineChoice)


def test_kind_decides() -> None:
    assert ADAPTER.validate_python({"kind": "torch", "slots": 8}) == TorchEngineOptions(slots=8)
    assert ADAPTER.validate_python({"kind": "scripted"}) == ScriptedEngineOptions()
    assert TorchEngineOptions().cache_policy == "recompute"


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "torch", "slot": 8},
        {"kind": "torch", "slots": 0},
        {"kind": "torch", "dtype": "float16"},
        {"kind": "torch", "device": "gpu"},
        {"kind": "torch", "cache_policy": "reset"},
        {"kind": "scripted", "device": "cpu"},
        {"kind": "vllm"},
    ],
)
def test_what_does_not_exist_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(bad)


def test_options_import_no_torch() -> None:
    code = "import sys, trimtab.engines.options, trimtab.engines.protocol; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

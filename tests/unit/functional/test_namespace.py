"""`functional` is importable by method files, which may not load torch."""

import subprocess
import sys

import pytest

from trimtab import functional as F


def test_importing_the_namespace_loads_no_torch_and_first_use_does():
    code = (
        "import sys; from trimtab import functional as F; assert 'torch' not in sys.modules;"
        "F.ess.ess_multiplier(0.5); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error_and_loads_no_torch():
    code = "import sys; from trimtab import functional as F; assert not hasattr(F, 'gripo'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", F.__all__)
def test_every_announced_module_resolves(name):
    assert getattr(F, name).__name__ == f"trimtab.functional.{name}"

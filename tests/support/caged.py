"""What this machine allows cages to do."""

import os
import subprocess
import sys
from functools import cache

_TRY = "import sys; from trimtab.tasks.isolation import isolate; sys.exit(int(isolate()))"


@cache
def isolation() -> int:
    """The :class:`~trimtab.tasks.isolation.Isolation` that a cage gets here."""
    return subprocess.run([sys.executable, "-c", _TRY], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False).returncode


def namespaces() -> bool:
    from trimtab.tasks.isolation import Isolation

    return isolation() == Isolation.NAMESPACE

"""``bench`` and ``doctor``."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence

from trimtab.records import TrimtabError

BENCHES = ("norms", "methods", "rollout", "publish", "async", "peers")


def bench(name: str, as_json: bool, rounds: int | None) -> None:
    """One benchmark; CPU threads pinned to one."""
    if name not in BENCHES:
        raise TrimtabError.field("bench", name, f"there are {', '.join(BENCHES)}")
    import torch

    torch.set_num_threads(1)
    from importlib import import_module

    from trimtab.bench.rows import BenchRow, report

    module = import_module(f"trimtab.bench.bench_{name}")
    if not as_json:
        print(inspect.getdoc(module), "\n")
    rows = module.run() if rounds is None else module.run(rounds=rounds)
    if as_json:
        print(json.dumps(report(name, rows), indent=1))
        return
    wide = max(len(row.case) for row in rows)
    more = [field.name for field in dataclasses.fields(rows[0])][len(dataclasses.fields(BenchRow)) :]
    print(f"{'case':<{wide}} {'cpu s':>9} {'wall s':>9} {'ratio':>8} {'spread':>8}", *(f"{name.replace('_', ' '):>12}" for name in more))
    for row in rows:
        print(
            f"{row.case:<{wide}} {row.cpu_s:>9.5f} {row.wall_s:>9.5f} {row.ratio:>8.4f} {row.spread:>8.4f}",
            *(f"{getattr(row, name):>12}" for name in more),
        )


def doctor(source: str | None, overrides: Sequence[str]) -> int:
    """Print the findings; 0 where all are fine, else 2."""
    from trimtab.runtime import doctor as checks

    findings = list(checks.machine())
    if source is not None:
        from trimtab.config.load import load

        findings += checks.configuration(load(source, overrides))
    for f in findings:
        print(f"{'ok  ' if f.fine else 'FAIL'} {f.name:<14} {f.says}")
    return 0 if all(f.fine for f in findings) else 2

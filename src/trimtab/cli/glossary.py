"""The metrics glossary, made of the registry of names. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.telemetry.method_names import OF_METHODS
from trimtab.telemetry.names import EVALUATED, FAMILIES, KNOWN, METHOD_PREFIX, Better
from trimtab.telemetry.reducers import Reducer

HEAD = """\
# Metrics glossary

*Generated from the code by `trimtab metrics`; a test compares. Do not edit.*

A run writes one line a batch into `metrics.jsonl`; report and TensorBoard show the same names. A mean is stored as
`[numerator, denominator]`, so that means of parts add up to the mean of the whole. A metric that was not observed in a batch is not in
its line; one that is not a finite number is `null`. *better*: the way it goes in a run that goes well, where that can be said.
"""
OF_METHOD = """\
## method

What methods, the critic and the rejections record, under `method/NAME/...`, as means over the updates of the batch; `*` is the name of the
method. A name that ends in `/age_A` is the same for tokens of age A (in versions; ages share a bucket as they grow). Methods of your own
may record anything there.
"""
ROWS = ("| metric | unit | of a batch | better | meaning |", "|---|---|---|---|---|")
COMBINED = {
    Reducer.MEAN: "mean",
    Reducer.SUM: "sum",
    Reducer.MAX: "largest",
    Reducer.MIN: "smallest",
    Reducer.LAST: "last",
    Reducer.QUANTILE: "quantile",
}


def page() -> str:
    """The whole glossary, in Markdown."""
    return "\n".join([HEAD, *_families(), OF_METHOD, *_methods()]).rstrip("\n") + "\n"


def _families() -> Iterator[str]:
    for family, where in FAMILIES.items():
        yield f"## {family}\n"
        yield f"From {where}.\n"
        yield from ROWS
        for metric in (*KNOWN.values(), *EVALUATED.values()):
            if metric.name.partition("/")[0] == family:
                better = "" if metric.better is Better.NEITHER else metric.better.value
                yield f"| `{metric.name}` | {metric.unit} | {COMBINED[metric.reducer]} | {better} | {_cell(metric.meaning)} |"
        yield ""


def _methods() -> Iterator[str]:
    yield "| metric | unit | meaning |"
    yield "|---|---|---|"
    for name, (unit, meaning) in sorted(OF_METHODS.items()):
        yield f"| `{METHOD_PREFIX}{name}` | {unit} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")

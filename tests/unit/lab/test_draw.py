"""Figures: aligned curves, missing data, more arms than colors. What they look like is for eyes; that they say what they show is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from support.laboratory import run
from trimtab.lab import figures
from trimtab.lab.drawing import draw
from trimtab.lab.drawing.material import Material
from trimtab.lab.measures import CellRun, Crosses, HeldOut
from trimtab.lab.results import CellName, Results
from trimtab.report import style

A = "accuracy/train"


def material(runs: Mapping[str, Sequence[CellRun]], cells: Sequence[CellName], value: float = 0.5) -> Material:
    fell = Crosses(kind="crosses", metric=A, below=0.5, times="best", label="fall")
    measures = {"final": HeldOut(kind="held_out", label="held-out"), "fell": fell}
    values = {(c.name, s): {"final": value + s / 10, "fell": math.nan} for c in cells for s in range(len(runs.get(c.name, ())))}
    return Material(
        Results(cells, list(measures), values), measures, runs, list(dict.fromkeys(c.arm for c in cells)), {"lag": "policy lag"}
    )


def texts(figure: Figure | None) -> str:
    assert figure is not None
    return " | ".join(t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text")))  # type: ignore[attr-defined]


def drawn(figure: figures.Figure, m: Material) -> Figure | None:
    with rc_context(style.RC):  # type: ignore[arg-type]
        return draw.draw(figure, m)


def curves(**more: object) -> figures.Curves:
    panels = [{"metric": A}, {"metric": "grad/raw_norm", "log": True}]
    return figures.Curves.model_validate({"kind": "curves", "name": "f", "title": "T", "panels": panels, "smooth": 1, **more})


def test_aligned_curves_are_laid_at_the_moment_and_leave_out_who_lacks_it() -> None:
    runs = {
        "tis": [run({A: [0.9] * n + [0.1] * 5, "grad/raw_norm": [0.1] * (n + 5)}) for n in (10, 20)],
        "vcpo": [run({A: [0.9] * 30, "grad/raw_norm": [0.1] * 30})],
    }
    figure = drawn(curves(align="fell", before=4, after=2), material(runs, [CellName("tis", {}, "TIS"), CellName("vcpo", {}, "VCPO")]))
    said = texts(figure)
    assert "batches from the fall" in said
    assert "VCPO" not in said
    assert "2 seeds: median and range" in said
    assert figure is not None
    line = next(line for line in figure.axes[0].lines if len(np.atleast_1d(line.get_xdata())) > 2)
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(x, pytest.approx(0.9 if x < 0 else 0.1)) for x in range(-4, 3)]


def test_curves_begin_with_the_run_and_bear_gaps() -> None:
    runs = {"tis": [run({A: [0.0, None, 1.0, 1.0], "grad/raw_norm": [0.0] * 4})]}
    figure = drawn(curves(smooth=2), material(runs, [CellName("tis", {}, "TIS")]))
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.0, 0.0, 1.0, 1.0]
    assert "TIS 0" in texts(figure)  # a norm of 0 has no logarithm, and is shown as 0


def test_nothing_to_show_is_no_figure() -> None:
    cells = [CellName("tis", {"lag": 1}, "TIS")]
    empty = material({}, cells)
    assert drawn(curves(), empty) is None
    assert drawn(curves(align="fell"), material({"tis/lag=1": [run({A: [0.5]})]}, cells)) is None
    for kind, more in (("sweep", {"axis": "lag"}), ("bars", {}), ("heat", {"rows": "arm", "columns": "lag"})):
        model = {"sweep": figures.Sweep, "bars": figures.Bars, "heat": figures.Heat}[kind]
        assert drawn(model.model_validate({"kind": kind, "name": "f", "title": "T", "measure": "final", **more}), empty) is None


def test_looks() -> None:
    many = [CellName(f"a{i}", {}, f"a{i}") for i in range(9)]
    looks = material({}, many).looks(many)
    assert len({(look.color, look.dashes) for look in looks.values()}) == 9
    assert material({}, many).looks(many[2:4])["a2"] == looks["a2"]  # the same in every figure
    same = [CellName("a", {"lag": lag}, "A") for lag in (0, 4)]
    assert len(set(material({}, same).looks(same).values())) == 2
    assert material({}, same).labels(same) == ["policy lag 0", "policy lag 4"]


def test_a_sweep_names_a_line_that_ends_early() -> None:
    cells = [CellName("tis", {"lag": lag}, "TIS") for lag in (0, 4)] + [CellName("sync", {"lag": 0}, "synchronous")]
    runs = {c.name: [run({A: [0.5]})] * 2 for c in cells}
    figure = drawn(figures.Sweep(kind="sweep", name="f", title="T", axis="lag", measure="final"), material(runs, cells))
    said = texts(figure)
    assert "synchronous" in said
    assert "TIS 0.55" in said
    assert "policy lag" in said

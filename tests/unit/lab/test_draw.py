"""Figures: aligned curves, missing data, more arms than colors. What they look like is for eyes; that they say what they show is not."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from support.contrast import contrast
from support.laboratory import run
from trimtab.lab import figures
from trimtab.lab.drawing import draw
from trimtab.lab.drawing.material import Material
from trimtab.lab.measures import CellRun, Crosses, HeldOutMeasure
from trimtab.lab.results import CellName, Results
from trimtab.report import palette, style

A = "accuracy/train"


def material(runs: Mapping[str, Sequence[CellRun]], cells: Sequence[CellName], never: Collection[tuple[str, int]] = ()) -> Material:
    """``never``: cells and seeds without the measure ``final``; the others have 0.5, 0.6, ..."""
    fell = Crosses(kind="crosses", metric=A, below=0.5, times="best", label="fall")
    measures = {"final": HeldOutMeasure(kind="held_out", label="held-out"), "fell": fell}
    found = [(c.name, s) for c in cells for s in range(len(runs.get(c.name, ())))]
    values = {at: {"final": math.nan if at in never else 0.5 + at[1] / 10, "fell": math.nan} for at in found}
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
    assert "2 seeds: median while all run, and range." in said
    assert figure is not None
    line = next(line for line in figure.axes[0].lines if len(np.atleast_1d(line.get_xdata())) > 2)
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(x, pytest.approx(0.9 if x < 0 else 0.1)) for x in range(-4, 3)]


def test_curves_begin_with_the_run_and_bear_gaps() -> None:
    runs = {"tis": [run({A: [0.0, None, 1.0, 1.0], "grad/raw_norm": [0.0] * 4})]}
    figure = drawn(curves(smooth=2), material(runs, [CellName("tis", {}, "TIS")]))
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.0, 0.0, 1.0, 1.0]
    assert "TIS 0" in texts(figure)  # a norm of 0 has no logarithm, and is shown as 0


@pytest.mark.parametrize(
    ("logs", "smooth", "note"),
    [
        ((False,), 1, "3 seeds: mean and range."),
        ((False,), 5, "3 seeds: mean and range. Means of 5 batches."),
        ((True,), 5, "3 seeds: median and range. Geometric means of 5 batches."),
        ((False, True), 5, "3 seeds: mean and range. Means of 5 batches. Logarithmic panels: median, geometric means."),
    ],
)
def test_the_note_says_what_the_lines_are(logs: Sequence[bool], smooth: int, note: str) -> None:
    runs = {"tis": [run({A: [x] * 6}) for x in (0.1, 0.1, 0.7)]}
    panels = [{"metric": A, "log": log} for log in logs]
    figure = drawn(curves(panels=panels, smooth=smooth), material(runs, [CellName("tis", {}, "TIS")]))
    assert figure is not None
    assert figure.texts[-1].get_text().replace("\n", " ") == note
    for log, ax in zip(logs, figure.axes, strict=True):
        assert list(ax.lines[0].get_ydata()) == pytest.approx([0.1 if log else 0.3] * 6)


def test_a_mean_ends_with_the_first_of_its_seeds() -> None:
    """Where the second goes on alone, a mean would jump to it; the range shows that it goes on."""
    runs = {"tis": [run({A: [0.2] * 5, "grad/raw_norm": [1.0] * 5}), run({A: [0.8] * 9, "grad/raw_norm": [1.0] * 9})]}
    for over, first, last in (("batches", 4, 8), ("seconds", 3.0, 4.5)):
        figure = drawn(curves(over=over), material(runs, [CellName("tis", {}, "TIS")]))
        assert figure is not None
        (line,), (band,) = figure.axes[0].lines, figure.axes[0].collections
        assert set(line.get_ydata()) == {0.5}
        assert line.get_xdata()[-1] == pytest.approx(first, abs=0.02)
        assert max(x for x, _ in band.get_paths()[0].vertices) == last
        assert "2 seeds: mean while all run, and range." in texts(figure)


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


def sweep(m: Material) -> Figure:
    figure = drawn(figures.Sweep(kind="sweep", name="f", title="T", axis="lag", measure="final"), m)
    assert figure is not None
    return figure


def test_a_sweep_has_a_line_for_every_arm_and_other_axis_value_whatever_they_are_called() -> None:
    cells = [CellName(arm, {"lag": lag, "lr": lr}, "same") for arm in ("a", "b") for lag in (0, 4) for lr in (1, 2)]
    m = material({c.name: [run({A: [0.5]})] for c in cells}, cells)
    figure = sweep(dataclasses.replace(m, axes={"lag": "policy lag", "lr": "rate"}))
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
    assert [len(line.get_xdata()) for line in lines] == [2] * 4
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4


def test_seeds_without_a_number_are_told() -> None:
    cells = [CellName("tis", {"lag": lag}, "TIS") for lag in (0, 4, 8, 12)]
    runs = {c.name: [run({A: [0.5]})] * 3 for c in cells}
    m = material(runs, cells, {("tis/lag=0", 1), ("tis/lag=12", 0), *(("tis/lag=4", s) for s in range(3))})
    figure = sweep(m)
    assert [t.get_text() for t in figure.axes[0].texts] == ["2 of 3 seeds", "0 of 3 seeds", "TIS 0.65 2 of 3 seeds"]
    means = figure.axes[0].lines[0].get_ydata()
    assert list(means) == pytest.approx([0.6, math.nan, 0.6, 0.65], nan_ok=True)
    bars = drawn(figures.Bars(kind="bars", name="f", title="T", measure="final"), m)
    assert bars is not None
    labels = [t.get_text() for t in bars.axes[0].get_yticklabels()]
    assert labels == ["policy lag 0, 2 of 3 seeds", "policy lag 4, 0 of 3 seeds", "policy lag 8", "policy lag 12, 2 of 3 seeds"]
    assert len(bars.axes[0].patches) == 3
    heat = drawn(figures.Heat(kind="heat", name="f", title="T", measure="final", rows="arm", columns="lag"), m)
    assert heat is not None
    assert [t.get_text() for t in heat.axes[0].texts] == ["0.60\n2 of 3 seeds", "0 of 3 seeds", "0.60", "0.65\n2 of 3 seeds"]
    assert [t.get_text() for t in heat.axes[0].get_xticklabels()] == ["0", "4", "8", "12"]


def test_a_table_has_a_row_for_every_arm_whatever_they_are_called() -> None:
    cells = [CellName(arm, {"lag": lag}, "same") for arm in ("a", "b") for lag in (0, 4)]
    m = material({c.name: [run({A: [0.5]})] for c in cells}, cells)
    heat = drawn(figures.Heat(kind="heat", name="f", title="T", measure="final", rows="arm", columns="lag"), m)
    assert heat is not None
    assert [t.get_text() for t in heat.axes[0].get_yticklabels()] == ["same", "same"]
    assert len(heat.axes[0].texts) == 4


def test_numbers_on_a_heat_map_can_be_read_in_both_modes() -> None:
    """Its fills are the same in light and dark; where there is no fill, the text is that of the page."""
    cells = [CellName(arm, {"lag": lag}, arm) for arm in ("a", "b") for lag in (0, 4)]
    runs = {c.name: [run({A: [0.5]})] * (3 if c.at["lag"] else 1) for c in cells}
    m = material(runs, cells, never=[("a/lag=0", 0)])
    figure = drawn(figures.Heat(kind="heat", name="f", title="T", measure="final", rows="arm", columns="lag"), m)
    assert figure is not None
    page = style.svg(figure, "T")
    fills = set(re.findall(r"<path[^>]*fill: (#[0-9a-f]{6})", page))
    assert len(fills) >= 2
    assert min(contrast(fill, palette.ON_COLOR) for fill in fills) >= 4.5
    by_text = {text: tone for tone, text in re.findall(r"<text[^>]*fill: ([^;\"]+)[^>]*>([^<]+)<", page)}
    assert palette.ON_COLOR in by_text.values()
    assert by_text["0 of 1 seeds"] == "var(--ink-text)"

"""Colors: text can be read in both modes, and no figure has a color that does not follow them."""

import re
from importlib.resources import files

import pytest

from support.contrast import contrast
from trimtab.report import palette, shares, style
from trimtab.report.build import build_report, css


def variables(mode):
    """What the pages' CSS says in a mode, as a browser reads it: the later rule wins."""
    light, dark = css().split("@media (prefers-color-scheme: dark)")
    dark = dark[: dark.index("} }")]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found | (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark)) if mode == "dark" else {})


def test_the_contrast_is_that_of_the_standard():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_all_text_has_a_contrast_of_at_least_four_and_a_half(mode):
    found = variables(mode)
    texts = [name for name in found if name.endswith("-text")] + [name for name, _, _ in palette.WORDS]
    assert len(texts) >= 15
    low = {(name, ground): contrast(found[name], found[ground]) for name in texts for ground in ("page", "wash")}
    assert {pair: round(c, 2) for pair, c in low.items() if c < 4.5} == {}


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_lines_are_seen(mode):
    found = variables(mode)
    for color in style.COLORS:
        name = palette.variable(color)[6:-1]
        assert contrast(found[name], found["page"]) >= (3 if mode == "dark" else 2), name  # light: Okabe & Ito's own tones


def test_every_color_of_the_pages_is_a_variable_that_is_defined():
    for room, name in (("report", "page.css"), ("report", "page.html.jinja"), ("lab", "page.html.jinja")):
        text = files(f"trimtab.{room}").joinpath(name).read_text()
        assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!\w)", re.sub(r"\{#.*?#\}|&#\d+;", "", text)), (room, name)
        assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(variables("light"))
    assert variables("light").keys() == variables("dark").keys()
    assert all(variables("light")[name] != variables("dark")[name] for name in variables("light"))


def test_no_figure_keeps_a_color_of_one_mode(runs, tmp_path):
    build_report([runs / "healthy", runs / "collapsed"], tmp_path / "two.html")
    build_report([runs / "healthy"], tmp_path / "one.html")
    for name in ("one.html", "two.html"):
        page = (tmp_path / name).read_text()
        drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
        assert drawings
        for drawing in drawings:
            assert re.findall(r"(?:fill|stroke)[:=]\s*\"?#[0-9a-f]{3,6}", drawing) == []
            for tag in re.findall(r"<text\b[^>]*>", drawing):
                assert "fill: var(--" not in tag or re.search(r"fill: var\(--[\w]+-text\)", tag), tag


def test_every_activity_has_a_color_of_the_palette():
    for color in (*shares.ACTIVITY.values(), shares.activity_color("something new")):
        assert palette.variable(color).startswith("var(--")

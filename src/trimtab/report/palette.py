"""Every color of the pages, in light and in dark: figures are drawn in the light ones and turned into CSS variables, so that one
drawing serves both.

Text has tones of its own, at least 4.5 : 1 against page and wash in both modes (WCAG 2.1, contrast AA); lines keep the tones that
color-blind readers tell apart (Okabe & Ito's, without their yellow, which is too light on white).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Color:
    """A color of figures: as a line or an area, and as text, in light and in dark."""

    name: str
    light: str
    dark: str
    text: str = ""  # "": never text
    dark_text: str = ""


PAGE, INK = "#ffffff", "#1f2933"
BLUE, ORANGE, GREEN, PINK, SKY, AMBER = "#0072b2", "#d55e00", "#009e73", "#b5578f", "#56b4e9", "#e69f00"
GRAY, GRID, AXIS = "#7b8794", "#e4e7eb", "#cbd2d9"
VIOLET, LEAF, BROWN, SAND, PEACH, MINT, MIST, SLATE, PALE, OTHER = (
    "#8a6fb3", "#7fb069", "#8c6d62", "#d9c8a9", "#f2b48c", "#9ad0c2", "#9fb3c8", "#5f6c7b", "#eef1f4", "#a3adb8",
)  # fmt: skip
ON_COLOR = "#1f2934"  # text on light fills that stay as they are in both modes; not INK, and so no variable

FIGURES = (
    Color("page", PAGE, "#14181d"),
    Color("ink", INK, "#e4e7eb", INK, "#e4e7eb"),
    Color("blue", BLUE, "#4aa8e0", "#00689f", "#6bbcf0"),
    Color("orange", ORANGE, "#f08336", "#b04a00", "#f79a5a"),
    Color("green", GREEN, "#2fbf93", "#00744f", "#4fd0a8"),
    Color("pink", PINK, "#d682b4", "#9c3d77", "#e39cc5"),
    Color("sky", SKY, "#86cdf5", "#1f6f9f", "#9ad6f7"),
    Color("amber", AMBER, "#f0b429", "#845b00", "#f5c451"),
    Color("gray", GRAY, "#8a96a3", "#5b6773", "#a3aebb"),
    Color("grid", GRID, "#2b333c"),
    Color("axis", AXIS, "#46515c"),
    Color("violet", VIOLET, "#a58fd0"),
    Color("leaf", LEAF, "#8fc47a"),
    Color("brown", BROWN, "#b08f83"),
    Color("sand", SAND, "#8f8064"),
    Color("peach", PEACH, "#c98d66"),
    Color("mint", MINT, "#6fa698"),
    Color("mist", MIST, "#70859c"),
    Color("slate", SLATE, "#93a1b1"),
    Color("pale", PALE, "#262d35"),
    Color("other", OTHER, "#6c7783"),
)

# Of the page itself: name, light, dark. The first two are what text stands on.
GROUNDS = (("page", PAGE, "#14181d"), ("wash", "#f5f7f9", "#1c2229"))
WORDS = (
    ("ink", INK, "#e4e7eb"),
    ("soft", "#52606d", "#b3bec9"),
    ("faint", "#5b6773", "#a3aebb"),
    ("link", "#0b69a3", "#6bbcf0"),
    ("warn", "#a34a06", "#f5b04d"),
    ("stop", "#b91c1c", "#ff9a9a"),
    ("good", "#047857", "#4fd0a8"),
)
LINES = (("line", GRID, "#2b333c"),)


def css() -> str:
    """The variables in both modes."""
    pairs = {name: (light, dark) for name, light, dark in (*GROUNDS, *WORDS, *LINES)}
    for color in FIGURES:
        pairs.setdefault(color.name, (color.light, color.dark))
        if color.text:
            pairs[f"{color.name}-text"] = (color.text, color.dark_text)
    light, dark = (" ".join(f"--{name}: {pair[mode]};" for name, pair in pairs.items()) for mode in (0, 1))
    return f":root {{ color-scheme: light dark; {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


_LINE = {color.light: f"var(--{color.name})" for color in FIGURES}
_TEXT = {color.light: f"var(--{color.name}-text)" for color in FIGURES if color.text}


def variable(color: str) -> str:
    """The CSS variable of a color of figures."""
    return _LINE[color]


def themed(svg: str) -> str:
    """An SVG drawn in the light colors, with variables in their place; a color that is not of the palette stays as it is."""

    def tag(found: re.Match[str]) -> str:
        tones = _TEXT if found[1] == "text" else _LINE
        return re.sub(r": (#[0-9a-f]{6})\b", lambda c: f": {tones.get(c[1], c[1])}", found[0])

    return re.sub(r"<(\w+)\b[^>]*>", tag, svg)

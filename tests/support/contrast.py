"""How well a text can be read: WCAG 2.1."""

from __future__ import annotations


def luminance(color: str) -> float:
    """Relative, of sRGB ``#rrggbb``."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """From 1 (the same) to 21 (black on white)."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)

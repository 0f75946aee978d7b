"""Text that must have a shape, refused in words: nobody reads a regular expression."""

from __future__ import annotations

import re

from pydantic import AfterValidator


def shaped(pattern: str, remedy: str) -> AfterValidator:
    """The whole text must match ``pattern``; where it does not, ``remedy`` says in words what it should be."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(remedy)
        return text

    return AfterValidator(check)

"""Snippets of the documentation: what is in a page, and the conventions by which a test runs it.

A fenced block names its language, and a file's name after it where the block *is* that file::

    python            is run, all blocks of a page in order, in one folder with the page's files
    python my.py      is written there, and run
    toml my.toml      is written there, and loaded as a configuration
    toml              whole or in part a configuration: laid over a small one, and validated; with a claim, an experiment
    jsonl rows.jsonl  is written there
    bash              commands: they exist, and take these arguments
    text              nobody's input: output, drawings. Nothing is done with it

A block that says none of these is refused. Commands are also taken from indented blocks and from code within sentences, and so are
lists of methods.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("python", "toml", "jsonl", "bash", "text")
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    language: str
    file: str  # "" where it is none
    text: str


def pages() -> list[str]:
    """README and everything below docs/."""
    return ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, _, file = match[2].strip().partition(" ")
        found.append(Block(text.count("\n", 0, match.start()) + 1, language, file, textwrap.dedent(match[3])))
    return found


def unfenced(page: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", (ROOT / page).read_text())


def said(page: str, start: str) -> Iterator[str]:
    """What begins with ``start`` in the code of sentences and in indented blocks."""
    text = unfenced(page)
    for span in re.findall(r"`([^`]+)`", text):
        one = " ".join(span.split())
        if one.startswith(start):
            yield one
    for line in re.findall(r"^    (\S.*)$", text, re.M):
        if line.startswith(start):
            yield line


def commands(page: str) -> Iterator[str]:
    """Lines of bash blocks without their comments; ``trimtab`` also from the rest of the page."""
    for block in blocks(page):
        if block.language == "bash":
            yield from (line for raw in block.text.splitlines() if (line := raw.partition("  #")[0].strip()) and not line.startswith("#"))
    yield from (re.split(r" {2,}", line)[0] for line in said(page, "trimtab "))

"""The page: one self-contained HTML file from run folders, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from trimtab.extras import require
from trimtab.foreign import printable_lines
from trimtab.records import TrimtabError
from trimtab.report import figures, palette, panels, shares, style, timeline, words
from trimtab.report.panels import Panel
from trimtab.report.runfiles import Run, labels, load

LISTED = 25  # events shown before the rest is folded


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    lead: str
    panels: list[Panel]


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run as the page's head and foot show it."""

    label: str
    color: str
    verdict: list[str]
    config: str


def build_report(run_folders: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or of several overlaid, to ``out``; the path.

    Raises:
        MissingExtra: the extra ``report`` is not installed.
        TrimtabError: no folder given, a folder does not exist, or the page cannot be written.
    """
    require("report", "report.html")
    if not run_folders:
        raise TrimtabError("report needs at least one run folder: give one or more folders that `trimtab train` wrote to")
    runs = [load(folder, label) for folder, label in zip(run_folders, labels(run_folders), strict=True)]
    try:
        out.write_text(render(runs), encoding="utf-8")
    except OSError as error:
        raise TrimtabError(f"the report cannot be written to {out}: {error.strerror or error}; give another path") from error
    return out


def css() -> str:
    """The style of the project's pages, colors first."""
    return palette.css() + files("trimtab.report").joinpath("page.css").read_text(encoding="utf-8")


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    from jinja2 import Environment, StrictUndefined

    room = files("trimtab.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_page_text, trim_blocks=True, lstrip_blocks=True)
    several = len(runs) > 1
    facts = [words.facts(run) for run in runs]
    return environment.from_string(room.joinpath("page.html.jinja").read_text(encoding="utf-8")).render(
        title=" · ".join(run.label for run in runs),
        css=css(),
        several=several,
        runs=[
            ShownRun(run.label, palette.variable(style.COLORS[i % len(style.COLORS)]), words.verdict(run, brief=several), run.config)
            for i, run in enumerate(runs)
        ],
        comparison=[(row[0].name, [fact.value for fact in row]) for row in zip(*facts, strict=True)],
        differing=words.differing(runs) if several else [],
        smooth=panels.SMOOTH,
        sections=_sections(runs),
        events=words.events(runs),
        listed=LISTED,
        decisions=words.decisions(runs),
    )


def _page_text(value: object) -> object:
    """Every text that a run's files bring to the page; what is markup is ours."""
    return printable_lines(value) if type(value) is str else value


def _sections(runs: Sequence[Run]) -> list[Section]:
    def curves(wanted: Sequence[figures.Figure]) -> list[Panel]:
        return [panels.draw(figure, runs) for figure in wanted]

    charts = [timeline.draw(run, run.label if len(runs) > 1 else "") for run in runs]
    return [
        Section("Learning", "Does the policy get better, and is there still signal to learn from?", curves(figures.LEARNING)),
        Section(
            "Staleness",
            "How old is what the learner trains on, and how far has the policy moved since it was sampled?",
            [*curves(figures.STALENESS), shares.ages(runs), shares.drift(runs)],
        ),
        Section("Steps", "How large and how steady are the updates, and what did the methods make of them?", curves(figures.STEPS)),
        Section("Responses", "Collapse into never stopping, or into silence, shows here first.", curves(figures.RESPONSES)),
        Section(
            "Time",
            "Who works, who waits for whom?",
            [shares.time_shares(runs), *curves(figures.TIME), *charts],
        ),
    ]

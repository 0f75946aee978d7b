"""What an experiment leaves: results.json, results.parquet, table.md, figures and one self-contained index.html."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote

from trimtab.lab.checks import CheckResult
from trimtab.lab.drawing import draw
from trimtab.lab.drawing.material import Material
from trimtab.lab.laboratory import ROOT, Found
from trimtab.records import Json, TrimtabError
from trimtab.report import style
from trimtab.report.build import css
from trimtab.store.durable import write_atomic
from trimtab.telemetry.metrics import finite

RESULTS, PARQUET, TABLE, PAGE, FIGURES = "results.json", "results.parquet", "table.md", "index.html", "figures"


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of the table: as text, and what stands beside it."""

    text: str  # mean, range, seeds
    reference: str = ""
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A cell of the experiment in the table."""

    name: str
    label: str
    at: list[str]
    seeds: int
    wall_s: float
    cells: list[Cell]


def write(found: Found, folder: Path, seeds: int | None) -> Path:
    """Write everything; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RESULTS, (json.dumps(as_json(found, seeds), indent=1) + "\n").encode())
    write_atomic(folder / TABLE, table(found, seeds).encode())
    _parquet(found, folder / PARQUET)
    drawn = _figures(found, folder / FIGURES)
    write_atomic(folder / PAGE, _page(found, seeds, drawn).encode())
    return folder / PAGE


# ------------------------------------------------------------------------------------------------------------------ numbers
def command(found: Found, seeds: int | None, cells: str | None = None, at_once: int = 1) -> str:
    """What makes the numbers again, of all cells or those."""
    parts = []
    if found.smoke:
        parts.append("--smoke")
    elif seeds is not None:
        parts.append(f"--seeds {seeds}")
    if cells is not None and len(found.results.cells) > 1:
        parts.append(f"--cells {quote(cells)}")
    if at_once > 1:
        parts.append(f"--jobs {at_once}")
    return lab_run(found.loaded.source, found.root, *parts)


def lab_run(source: str, root: Path, *options: str) -> str:
    """``trimtab lab run``, as a shell takes it."""
    lab = [] if root == ROOT else [f"--lab {quote(str(root))}"]
    return " ".join(["trimtab lab run", quote(source), *options, *lab])


def as_json(found: Found, seeds: int | None) -> dict[str, Json]:
    """``results.json``: the object of ``lab show --json``, and what the tables need besides."""
    e = found.loaded.experiment
    rows: list[Json] = [{name: finite(x) if isinstance(x, float) else x for name, x in asdict(row).items()} for row in found.results.rows()]
    findings: list[Json] = [
        {"says": f.says, "state": "smoke" if found.smoke else f.state, "role": f.role, "compared": list(f.compared)} for f in found.findings
    ]
    return {
        "name": found.loaded.name,
        "claim": e.claim,
        "verdict": found.verdict,
        "rows": rows,
        "commit": " ".join(found.commits),
        "wall_s": round(found.wall_s, 1),
        "cpu_s": round(found.cpu_s, 1),
        "checks": findings,
        "provisional": provisional(found),
        "missing": [job.name for job in found.missing],
        "command": command(found, seeds),
    }


def provisional(found: Found) -> str:
    """Why the verdict may not stand yet: fewer seeds than the experiment asks for, or cells without a run; "" where it may."""
    e = found.loaded.experiment
    if found.smoke:
        return "a smoke run: a few batches, numbers mean nothing"
    short = [c for c in found.results.cells if found.results.seeds(c.name) < e.seeds_of(c, None)]
    if not short:
        return ""
    fewest = min(found.results.seeds(c.name) for c in short)
    return f"{len(short)} of {len(found.results.cells)} cells have fewer seeds than the experiment asks for (fewest: {fewest})"


def judged(found: Found) -> str:
    """The verdict, and what keeps it from being more."""
    fails = any(f.control and f.state == "fails" for f in found.findings)
    why = [part for part in ("a control fails" if fails and not found.smoke else "", provisional(found)) if part]
    return f"{found.verdict} ({'; '.join(why)})" if why else found.verdict


def lines(found: Found) -> list[Line]:
    """The table."""
    out = []
    for c in found.results.cells:
        wall = sum(m.wall_s for (name, _), m in found.metas.items() if name == c.name)
        cells = [_cell(found, c.name, measure) for measure in found.results.measures]
        out.append(Line(c.name, c.label, [str(v) for v in c.at.values()], found.results.seeds(c.name), wall, cells))
    return out


def _cell(found: Found, cell: str, measure: str) -> Cell:
    m = found.loaded.experiment.measures[measure]
    x = list(found.results.by_seed(cell, measure).values())
    run = found.results.seeds(cell)
    text = "–"
    if x:
        mean, low, high = (f"{value:.{m.digits}f}" for value in (sum(x) / len(x), min(x), max(x)))
        text = mean + (f" ({low}–{high})" if len(x) > 1 else "") + (f", {len(x)} of {run} seeds" if len(x) < run else "")
    elif run:
        text = "never" if m.kind in ("crosses", "alarm") else "–"
    theirs = [r.values[measure][cell] for r in found.loaded.experiment.references if cell in r.values.get(measure, {})]
    if not theirs:
        return Cell(text)
    numbers = [y for one in theirs for y in (one if isinstance(one, tuple) else (one,))]
    reference = " ".join(f"{y:.{m.digits}f}" for y in numbers)
    return Cell(text, reference, f"{sum(x) / len(x) - sum(numbers) / len(numbers):+.{m.digits}f}" if x else "")


def headings(found: Found) -> list[tuple[str, bool]]:
    """Measures as columns: heading, and whether a reference stands beside it."""
    e = found.loaded.experiment
    return [(m.label or name, any(r.values.get(name) for r in e.references)) for name, m in e.measures.items()]


def table(found: Found, seeds: int | None) -> str:
    """Markdown."""
    e = found.loaded.experiment
    head = ["cell", "arm", *e.grid, "seeds"]
    for title, beside in headings(found):
        head += [title, "reference", "difference"] if beside else [title]
    out = [f"# {found.loaded.name}", "", e.claim, "", f"**{judged(found)}**", ""]
    out += [f"* {mark(f, found.smoke)} {f.says} ({'; '.join(f.compared)}){f' – {f.role}' if f.role else ''}" for f in found.findings]
    out += ["", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for line in lines(found):
        row = [f"`{line.name}`", line.label, *line.at, str(line.seeds)]
        for cell, (_, beside) in zip(line.cells, headings(found), strict=True):
            row += [cell.text, cell.reference, cell.difference] if beside else [cell.text]
        out.append("| " + " | ".join(row) + " |")
    again = f"All of it again: `{command(found, seeds)}`; one line: the same with `--cells CELL`."
    out += ["", f"Mean over seeds (lowest–highest). {again}"]
    out += [f"References: {r.source}." for r in e.references]
    out += ["", f"{found.wall_s:.0f} s of runs ({found.cpu_s:.0f} CPU-seconds), code {' '.join(found.commits) or '–'}.", ""]
    return "\n".join(out)


def mark(finding: CheckResult, smoke: bool = False) -> str:
    """Whether the check holds; of a smoke run, whose numbers mean nothing, only that it is one."""
    if smoke:
        return "smoke:"
    return {"holds": "yes:", "fails": "no:", "not run": "?", "no case": "no case:"}[finding.state]


def _parquet(found: Found, path: Path) -> None:
    """One row a cell, seed and measure."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    e = found.loaded.experiment
    axes = {axis: f"axis_{axis}" for axis in e.grid}
    number = dict.fromkeys(("value", "wall_s", "cpu_s"), pa.float64()) | {"seed": pa.int64()}
    rows = []
    for (name, seed), meta in found.metas.items():
        c = next(c for c in found.results.cells if c.name == name)
        cell: dict[str, object] = {"experiment": found.loaded.name, "cell": c.name, "arm": c.arm}
        cell |= {axes[axis]: str(value) for axis, value in c.at.items()} | {"seed": seed}
        cost = {
            "key": meta.key,
            "wall_s": meta.wall_s,
            "cpu_s": meta.cpu_s,
            "commit": meta.commit,
            "command": command(found, seed + 1, name),
        }
        for measure, value in found.results.values[name, seed].items():
            rows.append({**cell, "measure": measure, "value": None if math.isnan(value) else value, **cost})
    named = rows[0] if rows else {"cell": None}
    schema = pa.schema([(column, number.get(column, pa.string())) for column in named])
    temp = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), temp)
    temp.replace(path)


# ------------------------------------------------------------------------------------------------------------------ the page
@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure as the page shows it; ``svg`` is "" where no run has what it shows."""

    name: str
    title: str
    svg: str


def _figures(found: Found, folder: Path) -> list[Drawn]:
    from matplotlib import rc_context

    e = found.loaded.experiment
    material = Material(found.results, e.measures, found.runs, list(e.arms), {name: a.label or name for name, a in e.grid.items()})
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.svg"), *folder.glob("*.png")):
        old.unlink()
    out = []
    for figure in e.figures:
        with rc_context(style.RC):  # type: ignore[arg-type]
            drawn = draw.draw(figure, material)
            if drawn is not None:
                try:
                    drawn.savefig(folder / f"{figure.name}.png", format="png", dpi=180, facecolor="white")
                    drawn.savefig(folder / f"{figure.name}.svg", format="svg", metadata={"Date": None, "Creator": None})
                except OSError as error:
                    raise TrimtabError(f"the figure {figure.name} cannot be written to {folder}: {error.strerror or error}") from error
        out.append(Drawn(figure.name, figure.title, "" if drawn is None else style.svg(drawn, figure.title)))
    return out


def _page(found: Found, seeds: int | None, drawn: list[Drawn]) -> str:
    from jinja2 import Environment, StrictUndefined

    e = found.loaded.experiment
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("trimtab.lab").joinpath("page.html.jinja").read_text(encoding="utf-8")).render(
        name=found.loaded.name,
        css=css(),
        e=e,
        verdict=judged(found),
        smoke=found.smoke,
        findings=[(mark(f, found.smoke), f) for f in found.findings],
        axes=list(e.grid),
        headings=headings(found),
        lines=lines(found),
        drawn=drawn,
        command=command(found, seeds),
        runs=[(name, seed, meta, command(found, seed + 1, name)) for (name, seed), meta in found.metas.items()],
        missing=[job.name for job in found.missing],
        wall_s=found.wall_s,
        cpu_s=found.cpu_s,
        commits=found.commits,
    )


# ------------------------------------------------------------------------------------------------------------------ reading again
@dataclass(frozen=True, slots=True)
class ShownResults:
    """``results.json``, read."""

    table: Mapping[str, Json]

    @classmethod
    def read(cls, folder: Path) -> ShownResults | None:
        path = folder / RESULTS
        try:
            table = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            table = None
        if not isinstance(table, dict):
            raise TrimtabError(f"{path} is not a JSON object: run the experiment again, finished runs are not repeated")
        return cls(table)

    def brief(self) -> dict[str, Json]:
        """The object of ``lab show --json``."""
        return {name: self.table[name] for name in ("name", "claim", "verdict", "rows", "commit", "wall_s")}

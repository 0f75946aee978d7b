"""``trimtab``: asynchronous RL post-training from the command line. Each command is a thin call that imports what it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.streams import forgive
from trimtab.foreign import printable
from trimtab.records import TrimtabError

app = typer.Typer(
    help="Asynchronous RL post-training of language models that stays stable when rollouts are stale.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at a configuration without running it.", no_args_is_help=True)
app.add_typer(config_app, name="config")
lab_app = typer.Typer(help="The laboratory: claims of the field as experiments, with verdicts from data.", no_args_is_help=True)
app.add_typer(lab_app, name="lab")


def _version(asked: bool) -> None:
    if asked:
        from trimtab import __version__

        print(f"trimtab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)] = False,
) -> None:
    """Asynchronous RL post-training of language models that stays stable when rollouts are stale."""


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress: only what went wrong, and the closing lines")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value overrides, such as learner.batches=100", metavar="KEY=VALUE")]
Run = Annotated[Path, typer.Argument(help="a run folder, such as runs/quickstart", metavar="RUN")]
Experiment = Annotated[str, typer.Argument(help="an experiment's name, or your own .toml file", metavar="NAME|FILE")]
LabFolder = Annotated[Path, typer.Option("--lab", help="folder of the laboratory's runs and results")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


@app.command()
def train(
    source: Annotated[str, typer.Argument(help="a TOML file, or a preset such as quickstart", metavar="FILE|PRESET")],
    overrides: Overrides = None,
    sync: Annotated[bool, typer.Option("--sync", help="the synchronous run: lockstep with lag 0")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print plan, memory and predicted ceiling, train nothing")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="folder that run folders go into")] = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Train from a configuration; prints the run folder and the report's path at the end."""
    from trimtab.cli.training import dry_run as show_plan
    from trimtab.cli.training import train as run

    if dry_run:
        show_plan(source, overrides or [], sync)
    else:
        raise typer.Exit(run(source, overrides or [], sync, runs, quiet))


@app.command()
def resume(
    run: Run,
    overrides: Overrides = None,
    quiet: Quiet = False,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="also where prompt files are not what they were; as many rows they must have")
    ] = False,
) -> None:
    """Go on with a run from its newest checkpoint; batches=800 trains longer."""
    from trimtab.cli.training import resume as go_on

    raise typer.Exit(go_on(run, overrides or [], quiet, accept_changed_data))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="file to write", metavar="FILE")] = Path("trimtab.toml"),
    model: Annotated[str, typer.Option(help="your model folder; the learning rate is chosen by its size")] = "path/to/model",
    prompts: Annotated[str, typer.Option(help="your prompts, one JSON object a line")] = "prompts.jsonl",
    reward: Annotated[str, typer.Option(help="your reward, module:function")] = "my_reward:score",
) -> None:
    """Write a commented starter file for your own model, prompts and reward."""
    from trimtab.cli.starter import write_starter

    write_starter(path, model, prompts, reward)


@app.command()
def warmstart(
    out: Annotated[Path, typer.Argument(help="model folder to write", metavar="FOLDER")],
    seed: Annotated[int, typer.Option(help="seed of initialization, demonstrations and order")] = 0,
    overrides: Overrides = None,
) -> None:
    """Make the quickstart's initial policy again: supervised on competent but sloppy demonstrations."""
    from trimtab.cli.models import warmstart as make

    make(out, seed, overrides or [])


@app.command("eval")
def evaluate(
    source: Annotated[str, typer.Argument(help="a run folder, or a configuration whose model is evaluated", metavar="RUN|FILE|PRESET")],
    overrides: Overrides = None,
    model: Annotated[Path | None, typer.Option(help="model folder (default: the run's result)")] = None,
    as_json: AsJson = False,
) -> None:
    """Held-out score and accuracy of a model on a configuration's task, with 95 % intervals."""
    from trimtab.cli.models import evaluate as run

    run(source, overrides or [], model, as_json)


@app.command()
def export(
    run: Run,
    checkpoint: Annotated[int | None, typer.Option(help="batches it was made after (default: the newest that verifies)")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder to write (default: exported/NNNNNN in the run folder)")] = None,
) -> None:
    """Make a Hugging Face folder of a run's checkpoint, also of one that is going on or was interrupted."""
    from trimtab.cli.models import export as make

    make(run, checkpoint, out)


@app.command()
def show(
    run: Run,
    batch: Annotated[int | None, typer.Option(help="batch number (default: the last one)")] = None,
    limit: Annotated[int, typer.Option(min=1, help="rollouts to print")] = 8,
    outcome: Annotated[str | None, typer.Option(help="only this outcome: correct, wrong, unparseable, timeout")] = None,
) -> None:
    """Print rollouts with score, outcome and the age of every token."""
    from trimtab.cli.looking import show as run_show

    run_show(run, batch, limit, outcome)


@app.command()
def report(
    run: Annotated[list[Path], typer.Argument(help="one run folder, or several to compare", metavar="RUN")],
    out: Annotated[
        Path | None, typer.Option("--out", help="where to write (default: report.html, or comparison.html, in the first run)")
    ] = None,
) -> None:
    """Make report.html from run files; several runs are compared on one page."""
    from trimtab.cli.looking import report as make

    make(run, out)


@app.command()
def replay(
    run: Run,
    batches: Annotated[int | None, typer.Option(min=1, help="how many batches from the start (default: all logged)")] = None,
) -> None:
    """Feed recorded groups through the learner again and check that the updates are identical."""
    from trimtab.cli.looking import replay as again

    raise typer.Exit(again(run, batches))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="one method or bundle", metavar="NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods and bundles, or explain one."""
    from trimtab.cli.catalog import methods as catalog

    catalog(name, as_json)


@app.command()
def metrics() -> None:
    """Print every metric that a run may record, with unit and meaning, as Markdown (docs/metrics.md)."""
    from trimtab.cli.glossary import page

    print(page(), end="")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="norms, methods, rollout, publish, async or peers", metavar="NAME")],
    as_json: AsJson = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds (default: the benchmark's own)")] = None,
) -> None:
    """Measure: ratios within one run, CPU seconds beside wall time."""
    from trimtab.cli.measuring import bench as run

    run(name, as_json, rounds)


@app.command()
def calibrate(
    method: Annotated[str, typer.Argument(help="gac", metavar="METHOD")],
    source: Annotated[str, typer.Argument(metavar="FILE|PRESET")],
    overrides: Overrides = None,
    batches: Annotated[int, typer.Option(min=2, help="synchronous batches to measure on")] = 30,
) -> None:
    """Measure a method's thresholds on a synchronous stretch of a configuration; prints a line for its methods."""
    from trimtab.cli.calibrating import calibrate as run

    run(method, source, overrides or [], batches)


@app.command()
def doctor(
    source: Annotated[str | None, typer.Argument(help="a configuration to check against this machine", metavar="FILE|PRESET")] = None,
    overrides: Overrides = None,
) -> None:
    """Check this machine, and what a configuration needs of it."""
    from trimtab.cli.measuring import doctor as check

    raise typer.Exit(check(source, overrides or []))


@config_app.command("show")
def config_show(source: Annotated[str, typer.Argument(metavar="FILE|PRESET")], overrides: Overrides = None) -> None:
    """Print the resolved configuration: defaults written out, bundles expanded."""
    from trimtab.config.load import load, to_toml

    config = load(source, overrides or [])
    for said in config.chain().said:
        print(f"# {said}")
    print(to_toml(config), end="")


@config_app.command("check")
def config_check(
    source: Annotated[str, typer.Argument(metavar="FILE|PRESET")],
    overrides: Overrides = None,
    deep: Annotated[bool, typer.Option("--deep", help="also load model, rows and reward, as a run would")] = False,
) -> None:
    """Say whether a configuration is sound, and whether model, rows and reward that it names are there; loads no model."""
    from trimtab.cli.checking import check

    check(source, overrides or [], deep)


@config_app.command("reference")
def config_reference() -> None:
    """Print every option there is, with its default and meaning, as Markdown (docs/configuration.md)."""
    from trimtab.cli.reference import page

    print(page(), end="")


@lab_app.command("list")
def lab_list(
    markdown: Annotated[bool, typer.Option("--markdown", help="as a table for documents")] = False, lab: LabFolder = Path("runs/lab")
) -> None:
    """The experiments that ship: claim, verdict where it has been run, minutes on one core."""
    from trimtab.cli.lab import list_experiments

    list_experiments(lab, markdown)


@lab_app.command("run")
def lab_run(
    name: Experiment,
    seeds: Annotated[int | None, typer.Option(min=1, help="seeds a cell (default: what the experiment asks for)")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time, one process of one thread each")] = 1,
    budget: Annotated[float, typer.Option(min=0, help="minutes after which no run is started", metavar="MINUTES")] = 90.0,
    smoke: Annotated[bool, typer.Option("--smoke", help="a few batches of one seed, to see that it works; no verdict")] = False,
    cells: Annotated[str, typer.Option(help="run only cells whose name matches, such as 'vcpo/lag=*'", metavar="PATTERN")] = "*",
    again: Annotated[bool, typer.Option("--again", help="run also what has a result (after a change of the code)")] = False,
    lab: LabFolder = Path("runs/lab"),
) -> None:
    """Run what is missing of an experiment; table, figures and verdict. Interrupted, the same command goes on."""
    from trimtab.cli.lab import run_experiment

    code = run_experiment(name, lab, seeds=seeds, jobs=jobs, budget_minutes=budget, smoke=smoke, cells=cells, again=again)
    raise typer.Exit(code)


@lab_app.command("show")
def lab_show(name: Experiment, as_json: AsJson = False, lab: LabFolder = Path("runs/lab")) -> None:
    """Claim, verdict and numbers of an experiment that has been run."""
    from trimtab.cli.lab import show

    show(name, lab, as_json)


@lab_app.command("copy")
def lab_copy(name: Experiment, file: Annotated[Path, typer.Argument(help="where to write it", metavar="FILE.toml")]) -> None:
    """Copy an experiment's file, to change it and run it as your own."""
    from trimtab.cli.lab import copy

    copy(name, file)


def main() -> None:
    """Entry point: an error the user can act on is one sentence and its exit code."""
    forgive()
    try:
        app()
    except TrimtabError as error:
        print(f"trimtab: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:  # of a file that no room expected to be refused
        from trimtab.store.durable import refused

        if (said := refused(error, Path("a file"))) is None:
            raise
        print(f"trimtab: {printable(str(said))}", file=sys.stderr)
        raise SystemExit(said.exit_code) from None


if __name__ == "__main__":
    main()

"""The page: complete, self-contained, and unbreakable by what a killed run leaves behind."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from trimtab.records import TrimtabError
from trimtab.report.build import build_report
from trimtab.report.runfiles import labels
from trimtab.report.summary import Summary

TITLES = (
    "Reward and held-out score",
    "Groups with signal",
    "Baseline: OPOB beside the group mean",
    "Effective sample size",
    "KL between sampler and learner",
    "Raw importance ratios",
    "Age of the trained tokens",
    "How old the trained tokens were",
    "Drift by age",
    "Gradient norm",
    "Gradient cosine",
    "Step multiplier",
    "Weights that moved",
    "Outcomes",
    "Response length and truncation",
    "Entropy",
    "Where the learner&#39;s time went",
    "Who waits",
    "Throughput",
    "Who did what, when",
)


def build(folders, out):
    return build_report(folders, out / "report.html").read_text(encoding="utf-8")


def drawn(page):
    return re.findall(r'<svg role="img" aria-label="([^"]*)"', page)


def text(page):
    """What a reader sees, without tags and figures."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|style).*?</\1>", "", page, flags=re.DOTALL)))


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return build([runs / "healthy"], tmp_path_factory.mktemp("page"))


def test_every_figure_is_there(page):
    headings = re.findall(r"<h3>(.*?)</h3>", page)
    assert headings == list(TITLES)
    assert len(drawn(page)) == len(TITLES)


def test_the_numbers_of_the_run_are_in_the_page(page, runs):
    summary = json.loads((runs / "healthy" / "summary.json").read_text())
    seen = text(page)
    low, high = summary["after"]["accuracy_low"], summary["after"]["accuracy_high"]
    assert f"Held-out accuracy rose from 0.19 to {summary['accuracy_after']:.2f} [{low:.2f}, {high:.2f}] on 512 prompts." in seen
    assert f"150 batches consumed: {summary['applied']} applied, {summary['skipped']} skipped" in seen
    assert f"{summary['mean_age']:.1f} versions old on average and at most {summary['max_age']}" in seen
    assert f"{summary['spanning_rollouts']:,} rollouts had tokens of two or more versions" in seen
    assert "The learner waited" in seen
    assert "Sampling was the bottleneck." in seen
    assert "seq_tis, opob, linear, norm_clip, ess" in seen
    for row in (runs / "healthy" / "events.jsonl").read_text().splitlines():
        assert json.loads(row)["message"] in seen
    assert re.search(r"seq_tis weigh truncated 150 150 0 \d+ ratio above c = 8", seen)
    assert "max_lag = 12" in seen


def test_the_page_loads_nothing(page):
    assert "http" not in page
    assert not re.search(r"<(script|link|img|iframe|object|embed|base)\b", page)
    assert not re.search(r"@import|@font-face|\bsrc\s*=", page)
    assert set(re.findall(r"(?:href|url)\s*[=(]\s*[\"']?(.)", page)) <= {"#"}


def test_the_page_is_small_and_the_same_every_time(page, runs, tmp_path):
    assert len(page) < 600_000
    assert build([runs / "healthy"], tmp_path) == page


@pytest.mark.slow
def test_two_thousand_batches_stay_below_a_megabyte_and_a_half(write_run, tmp_path):
    build([write_run(tmp_path / "long", batches=2000)], tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


def test_missing_files_leave_sentences(runs, tmp_path):
    shutil.copytree(runs / "healthy", tmp_path / "healthy")
    for file in ("summary.json", "timeline.jsonl", "events.jsonl", "decisions.jsonl", "config.toml", "eval.jsonl"):
        (tmp_path / "healthy" / file).unlink()
    page = build([tmp_path / "healthy"], tmp_path)
    for sentence in (
        "Reward went from 0.",
        "There is no summary.json: the run was killed before it could write one, or it is still going.",
        "Not recorded: timeline.jsonl has no rows.",
        "No event: no detector found anything.",
        "No decision was recorded",
        "healthy has no config.toml.",
    ):
        assert sentence in text(page)
    assert len(drawn(page)) == len(TITLES) - 1


def test_without_batches_each_panel_says_what_it_lacks(runs, tmp_path):
    shutil.copytree(runs / "healthy", tmp_path / "healthy")
    (tmp_path / "healthy" / "metrics.jsonl").unlink()
    page = build([tmp_path / "healthy"], tmp_path)
    assert "Not recorded: no batch has ess/ratio or ess/ratio_truncated." in text(page)
    assert "Held-out accuracy rose from 0.19" in text(page)
    assert drawn(page) == ["Reward and held-out score", "Who did what, when"]


def test_a_run_killed_after_three_batches_has_a_page_that_nothing_can_inject_markup_into(write_run, tmp_path):
    folder = write_run(tmp_path / "killed", batches=3)
    (folder / "summary.json").unlink()
    evil = {"batch": 1, "name": "<script>x</script>", "severity": "warn", "message": "<img src=x>", "evidence": {"<i>": "<u>"}}
    (folder / "events.jsonl").write_text(json.dumps(evil) + "\n")
    for name in ("metrics.jsonl", "events.jsonl", "decisions.jsonl", "timeline.jsonl", "eval.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'{"batch": 3, "metrics": {"rew\xff')
    page = build([folder], tmp_path)
    assert "3 batches consumed" in text(page)
    assert "left out: 1 in metrics.jsonl, 1 in events.jsonl" in text(page)
    assert len(drawn(page)) == len(TITLES)
    for tag in ("<script", "<img", "<i>", "<u>"):
        assert tag not in page


def test_an_empty_folder_has_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    page = build([tmp_path / "empty"], tmp_path)
    assert "No batch was recorded." in text(page)
    assert drawn(page) == []


def test_junk_in_the_files_is_passed_over(runs, tmp_path):
    shutil.copytree(runs / "healthy", tmp_path / "healthy")
    junk = [
        '{"batch": 150, "metrics": {"reward/mean": null, "kl/k3": [null, 3], "ess/ratio": "high", "age/mean": [1, 0]}, "ages": 3}',
        '{"batch": 151, "metrics": [], "by_age": {"old": 1, "3": null, "4": {"tokens": 0}}, "applied": null}',
        '{"metrics": {"reward/mean": 1}}',
        "[]",
        "12",
        "",
    ]
    for name in ("metrics.jsonl", "events.jsonl", "decisions.jsonl", "timeline.jsonl", "eval.jsonl"):
        path = tmp_path / "healthy" / name
        path.write_text("\n".join(junk) + "\n" + path.read_text())
    (tmp_path / "healthy" / "summary.json").write_text('{"batches": "many"}')
    (tmp_path / "healthy" / "config.toml").write_bytes(b"seed = = \xff")
    page = build([tmp_path / "healthy"], tmp_path)
    assert "left out: 2 in metrics.jsonl" in text(page)
    assert len(drawn(page)) == len(TITLES)


def test_several_runs_are_overlaid_and_compared(runs, tmp_path):
    page = build([runs / "healthy", runs / "collapsed"], tmp_path)
    seen = text(page)
    healthy, collapsed = (json.loads((runs / name / "summary.json").read_text()) for name in ("healthy", "collapsed"))
    for name in ("accuracy", "score"):
        told = [f"{s['after'][name]:.3f} [{s['after'][f'{name}_low']:.3f}, {s['after'][f'{name}_high']:.3f}]" for s in (healthy, collapsed)]
        assert f"{name} after {' '.join(told)}" in seen
    assert "Options that differ learner.lr 0.0003 0.0005" in seen
    assert "local.max_lag" not in seen.split("Options that differ")[1].split("Learning")[0]
    assert re.search(r"Held-out accuracy fell from 0.19 to 0.0\d \[0.0\d, 0.0\d\] on 512 prompts, after 0.9\d at batch", seen)
    assert drawn(page).count("Who did what, when: collapsed") == 1
    reward = page[page.index('aria-label="Reward and held-out score"') :]
    reward = reward[: reward.index("</svg>")]
    for color in ("var(--blue)", "var(--orange)"):
        assert f"stroke: {color}" in reward
        assert f"background:{color}" in page
    assert "ess" in re.findall(r'class="severity warn">(\w+)<', page)


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    assert labels([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert labels([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == ["x", "y"]
    assert len(set(labels([tmp_path, tmp_path]))) == 2


def test_a_folder_that_does_not_exist_is_one_clear_sentence(tmp_path):
    with pytest.raises(TrimtabError, match="does not exist: give the folder"):
        build_report([tmp_path / "nothing"], tmp_path / "report.html")
    with pytest.raises(TrimtabError, match="at least one run folder"):
        build_report([], tmp_path / "report.html")
    (tmp_path / "run").mkdir()
    with pytest.raises(TrimtabError, match="cannot be written to"):
        build_report([tmp_path / "run"], tmp_path / "no" / "such" / "report.html")


def test_nothing_heavy_is_imported_before_a_figure_is_made():
    code = (
        "import sys, trimtab.report.build, trimtab.report.summary;"
        "print([m for m in ('torch', 'matplotlib', 'jinja2', 'pyarrow') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def rewritten(runs, tmp_path, rows, best=None):
    """The healthy run with other evaluations: (batch, evaluation), the first and last of them before and after."""
    folder = tmp_path / "run"
    shutil.copytree(runs / "healthy", folder)
    (folder / "eval.jsonl").write_text("".join(json.dumps({"batch": b, "when": "during"} | found.to_json()) + "\n" for b, found in rows))
    summary = json.loads((folder / "summary.json").read_text())
    summary |= Summary.evaluations(rows[0][1], rows[-1][1], best)
    (folder / "summary.json").write_text(json.dumps(summary))
    page = build([folder], tmp_path)
    figure = page[page.index('aria-label="Reward and held-out score"') :]
    return text(page), figure[: figure.index("</svg>")]


def test_a_score_that_rises_below_what_counts_as_correct_is_a_rise(runs, synthetic, tmp_path):
    """Issue 9.6: the page said accuracy and "stayed at 0.00"."""
    before, after = synthetic.held_out(86, score=0.9), synthetic.held_out(404, score=0.9)
    seen, _ = rewritten(runs, tmp_path, [(0, before), (150, after)], best=(100, after))
    assert "Held-out score rose from 0.15 to 0.71 [0.68, 0.74] on 512 prompts." in seen
    assert "Accuracy 0.000 [0.000, 0.007], which counts scores of at least 1." in seen
    assert "best/ holds the model after batch 100, with score 0.71 [0.68, 0.74]." in seen
    assert "score before 0.151" in seen
    assert "stayed" not in seen


def test_a_change_within_the_noise_is_no_rise(runs, synthetic, tmp_path):
    seen, _ = rewritten(runs, tmp_path, [(0, synthetic.held_out(10, 20)), (150, synthetic.held_out(12, 20))])
    assert "Held-out accuracy went from 0.50 to 0.60 [0.39, 0.78], within the noise of 20 prompts." in seen


def test_an_evaluation_whose_reward_failed_is_not_the_headline(runs, synthetic, tmp_path):
    """Issue 9.9: accuracy 1.0 of 11 of 100."""
    rows = [(0, synthetic.held_out(20, 100)), (50, synthetic.held_out(40, 100)), (150, synthetic.held_out(11, 100, failed=89))]
    seen, _ = rewritten(runs, tmp_path, rows)
    assert "Held-out accuracy rose from 0.20 to 0.40 [0.31, 0.50] on 100 prompts." in seen
    assert "Not believed, because too many of their responses failed: the evaluations after batch 150 (89 errors among 100" in seen
    assert "accuracy after 1.000 [0.741, 1.000] (not believed)" in seen
    assert "held-out n, failed 11 of 100 prompts, 89 of 100" in seen


@pytest.mark.parametrize(("n", "lines"), [(2, 0), (3, 1)])
def test_two_evaluations_are_points_and_three_a_line(runs, synthetic, tmp_path, n, lines):
    rows = [(150 * i // (n - 1), synthetic.held_out(100 + 50 * i)) for i in range(n)]
    _, figure = rewritten(runs, tmp_path, rows)
    assert figure.count("stroke-dasharray") == lines


def test_evaluations_of_before_are_shown_without_intervals(runs, tmp_path):
    shutil.copytree(runs / "healthy", tmp_path / "healthy")
    summary = json.loads((tmp_path / "healthy" / "summary.json").read_text())
    for name in ("before", "after", "best", "score_before", "score_after"):
        summary.pop(name)
    summary |= {"accuracy_before": 0.25, "accuracy_after": 0.75}
    (tmp_path / "healthy" / "summary.json").write_text(json.dumps(summary))
    rows = [{"batch": 75, "version": 70, "accuracy": [256, 512]}, {"batch": 100, "version": 90, "accuracy": 0.6, "score": 0.6, "rows": 512}]
    (tmp_path / "healthy" / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen = text(build([tmp_path / "healthy"], tmp_path))
    assert "Held-out accuracy went from 0.25 to 0.75 on an unknown number of prompts." in seen

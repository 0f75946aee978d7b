"""Back to the newest checkpoint: the logs are cut to it, what lies beyond moves to ``orphans/``, nothing is deleted.

A crash in the middle is harmless: orphans are durable before a log is cut, and the next resume does the rest.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from trimtab.store import jsonl, rollout_log
from trimtab.store.checkpoint import load_latest, numbers
from trimtab.store.durable import disk_error
from trimtab.store.run_folder import RunFolder
from trimtab.store.tree import StateTree

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where the run goes on: batch ``number`` is the next one, counted from 0."""

    number: int
    parts: Mapping[str, StateTree]
    passed_over: Mapping[int, str]  # newer checkpoints that did not verify -> the file and the reason; moved to orphans
    moved: Mapping[str, int]  # log -> records moved to orphans
    orphans: Path  # where to; made only if something was moved


def prepare_resume(folder: RunFolder) -> ResumePoint | None:
    """Load the newest checkpoint that verifies and make the run folder look as it did then.

    None for a run that ended before its first checkpoint, when nothing was trained yet: it begins again, its logs are empty.

    Raises:
        TrimtabError: no checkpoint verifies, and nothing has been moved; or the disk is full, and nothing is lost.
    """
    if not folder.locked:
        raise RuntimeError("prepare_resume needs the run folder's lock: call it inside `with folder:`")
    if not numbers(folder.checkpoints) and next(jsonl.read_jsonl(folder.metrics), None) is None:
        log.info("the run ended before its first checkpoint: it begins again")
        orphans = _free(folder, 0)
        for path in folder.logs:
            jsonl.truncate_to(path, 0, orphans)
        return None
    point = load_latest(folder.checkpoints)
    orphans = _free(folder, point.number)
    try:
        # an evaluation names how many batches its weights have seen: that of the checkpoint's own weights stays
        moved = {path.name: jsonl.truncate_to(path, point.number + (path == folder.eval), orphans) for path in folder.logs}
        moved["rollouts"] = rollout_log.truncate_to(folder.rollouts, point.number, orphans / "rollouts")
        if int(str((folder.evaluation_of_best() or {}).get("batch", 0))) > point.number:  # of weights that this lineage will not see
            orphans.mkdir(parents=True, exist_ok=True)
            folder.best.rename(orphans / "best")
            moved["best"] = 1
        for number in point.passed_over:
            (orphans / "checkpoints").mkdir(parents=True, exist_ok=True)
            (folder.checkpoints / f"{number:06d}").rename(orphans / "checkpoints" / f"{number:06d}")
    except OSError as error:
        raise disk_error(orphans, error, "nothing is lost") from error
    moved = {name: n for name, n in moved.items() if n}
    listed = ", ".join(f"{n} of {name}" for name, n in moved.items())
    log.info("resuming after %d batches%s", point.number, f"; records moved to {orphans}: {listed}" if moved else "")
    return ResumePoint(number=point.number, parts=point.parts, passed_over=point.passed_over, moved=moved, orphans=orphans)


def _free(folder: RunFolder, number: int) -> Path:
    """Where this resume's orphans go."""
    return next(p for i in count(1) if not (p := folder.orphans / f"{number:06d}-{i}").exists())

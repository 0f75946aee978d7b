"""Groups as a flat table and back, bit for bit: one row a segment, the columns of its rollout and group repeated.

Almost always a rollout is one segment, so a row is a rollout and reads as such in pandas, DuckDB or pyarrow:
``SELECT epoch, index, member, score, outcome, tokens FROM 'runs/NAME/rollouts/*.parquet' WHERE segment = 0``.
``rollout`` and ``segment`` are positions (in the group, in the rollout); ``segment`` is null in the row of a rollout without
segments, ``rollout`` in that of a group without rollouts. Per-token columns are lists of the segment's length;
``kept_indptr`` and ``kept_ids`` are those of :class:`~trimtab.records.Kept`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.records import Group, Kept, Outcome, Rollout, Sampling, Segment, Slot, StopReason, Timing

# Scalars of the row, in the order in which _row lists them.
_SCALARS = {
    "epoch": pa.int64(),
    "index": pa.int64(),
    "prompt": pa.int64(),
    "attempt": pa.int64(),
    "seed": pa.int64(),
    "task": pa.string(),
    "source": pa.string(),
    "rollout": pa.int32(),
    "member": pa.int64(),
    "score": pa.float64(),
    "reward": pa.float64(),
    "outcome": pa.string(),
    "stop": pa.string(),
    "started": pa.float64(),
    "finished": pa.float64(),
    "verified": pa.float64(),
    "forgetting": pa.float64(),
    "forgetting_source": pa.string(),
    "segment": pa.int32(),
    "incarnation": pa.int64(),
    "temperature": pa.float64(),
    "top_p": pa.float64(),
    "top_k": pa.int64(),
}
# Lists of the row, in the order in which _arrays lists them.
_LISTS = {
    "tokens": np.dtype(np.int32),
    "action_mask": np.dtype(np.bool_),
    "behavior_logp": np.dtype(np.float32),
    "versions": np.dtype(np.int32),
    "turn": np.dtype(np.int16),
    "step_reward": np.dtype(np.float32),
    "allowed": np.dtype(np.int64),
    "kept_indptr": np.dtype(np.int64),
    "kept_ids": np.dtype(np.int32),
}
COLUMNS = (*_SCALARS, *_LISTS)

Array = npt.NDArray[np.generic]
RowColumns = Mapping[str, Sequence[Any]]  # as read: a Python value or an array a row


def groups_to_table(groups: Sequence[Group], extra: Mapping[str, Sequence[object] | Array] | None = None) -> pa.Table:
    """Groups as a table. ``extra``: further columns, one entry a group, placed first.

    Raises:
        ValueError: a column of a segment has another dtype than the record declares (a cast would not be bit-exact).
    """
    rows: list[tuple[object, ...]] = []
    arrays: list[tuple[Array | None, ...]] = []
    owner: list[int] = []
    for i, group in enumerate(groups):
        for rollout_at, rollout, segment_at, segment in _walk(group):
            rows.append(_row(group, rollout_at, rollout, segment_at, segment))
            arrays.append(_arrays(segment))
            owner.append(i)
    columns: dict[str, pa.Array] = {}
    for name, values in (extra or {}).items():
        if len(values) != len(groups):
            raise ValueError(f"extra column {name} has {len(values)} entries for {len(groups)} groups")
        columns[name] = pa.array(values).take(pa.array(owner, pa.int64()))
    for i, (name, kind) in enumerate(_SCALARS.items()):
        columns[name] = pa.array([row[i] for row in rows], kind)
    for i, (name, dtype) in enumerate(_LISTS.items()):
        columns[name] = _ragged(name, [row[i] for row in arrays], dtype)
    return pa.table(columns)


def table_to_groups(table: pa.Table) -> list[Group]:
    """The groups of a table of :func:`groups_to_table`, or of a slice of it that holds whole groups. Extra columns are ignored."""
    columns = {name: table[name].to_pylist() for name in _SCALARS} | {name: _unragged(table[name]) for name in _LISTS}
    starts = _starts(table)
    return [_group(columns, a, b) for a, b in pairwise([*starts, len(table)])]


def group_column(table: pa.Table, name: str) -> list[object]:
    """An extra column of :func:`groups_to_table`: one entry a group."""
    column: list[object] = table[name].take(pa.array(_starts(table), pa.int64())).to_pylist()
    return column


def to_parquet(table: pa.Table) -> memoryview:
    """The bytes of a parquet file. Plain pages: NaN payloads pass untouched, and zstd finds the repetition by itself."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_page_checksum=True)
    return memoryview(sink.getvalue())


def _walk(group: Group) -> Iterator[tuple[int | None, Rollout | None, int | None, Segment | None]]:
    if not group.rollouts:
        yield None, None, None, None
    for i, rollout in enumerate(group.rollouts):
        if not rollout.segments:
            yield i, rollout, None, None
        for j, segment in enumerate(rollout.segments):
            yield i, rollout, j, segment


def _row(g: Group, at: int | None, r: Rollout | None, segment_at: int | None, s: Segment | None) -> tuple[object, ...]:
    of_group = (g.slot.epoch, g.slot.index, g.prompt, g.attempt, g.seed, g.task, g.source, at)
    of_rollout: tuple[object, ...] = (None,) * 10
    if r is not None:
        t = r.timing
        of_rollout = (
            *(r.member, r.score, r.reward, r.outcome.value, r.stop.value),
            *(t.started, t.finished, t.verified, r.forgetting, r.forgetting_source),
        )
    of_segment: tuple[object, ...] = (None,) * 4
    if s is not None:
        of_segment = (s.incarnation, s.sampling.temperature, s.sampling.top_p, s.sampling.top_k)
    return *of_group, *of_rollout, segment_at, *of_segment


def _arrays(s: Segment | None) -> tuple[Array | None, ...]:
    if s is None:
        return (None,) * len(_LISTS)
    allowed = None if s.sampling.allowed is None else np.array(s.sampling.allowed, np.int64)
    kept = (None, None) if s.kept is None else (s.kept.indptr, s.kept.ids)
    return s.tokens, s.action_mask, s.behavior_logp, s.versions, s.turn, s.reward, allowed, *kept


def _group(c: RowColumns, a: int, b: int) -> Group:
    """The group in rows a to b."""
    rollouts = [i for i in range(a, b) if c["rollout"][i] is not None and c["segment"][i] in (0, None)]
    return Group(
        slot=Slot(c["epoch"][a], c["index"][a]),
        prompt=c["prompt"][a],
        attempt=c["attempt"][a],
        seed=c["seed"][a],
        task=c["task"][a],
        source=c["source"][a],
        rollouts=tuple(_rollout(c, i, j) for i, j in pairwise([*rollouts, b])),
    )


def _rollout(c: RowColumns, a: int, b: int) -> Rollout:
    return Rollout(
        member=c["member"][a],
        segments=tuple(_segment(c, i) for i in range(a, b) if c["segment"][i] is not None),
        score=c["score"][a],
        outcome=Outcome(c["outcome"][a]),
        stop=StopReason(c["stop"][a]),
        reward=c["reward"][a],
        timing=Timing(started=c["started"][a], finished=c["finished"][a], verified=c["verified"][a]),
        forgetting=c["forgetting"][a],
        forgetting_source=c["forgetting_source"][a],
    )


def _segment(c: RowColumns, i: int) -> Segment:
    allowed = c["allowed"][i]
    return Segment(
        tokens=c["tokens"][i],
        action_mask=c["action_mask"][i],
        behavior_logp=c["behavior_logp"][i],
        versions=c["versions"][i],
        turn=c["turn"][i],
        sampling=Sampling(
            temperature=c["temperature"][i],
            top_p=c["top_p"][i],
            top_k=c["top_k"][i],
            allowed=None if allowed is None else tuple(allowed.tolist()),
        ),
        incarnation=c["incarnation"][i],
        reward=c["step_reward"][i],
        kept=None if c["kept_indptr"][i] is None else Kept(indptr=c["kept_indptr"][i], ids=c["kept_ids"][i]),
    )


def _starts(table: pa.Table) -> list[int]:
    """Rows at which a group begins."""
    positions = zip(table["rollout"].to_pylist(), table["segment"].to_pylist(), strict=True)
    return [i for i, (rollout, segment) in enumerate(positions) if rollout is None or (rollout == 0 and segment in (0, None))]


def _ragged(name: str, parts: Sequence[Array | None], dtype: np.dtype) -> pa.LargeListArray:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([0 if p is None else len(p) for p in parts], out=offsets[1:])
    present = [p for p in parts if p is not None]
    for part in present:
        if part.dtype != dtype:
            raise ValueError(f"Segment column {name} is {part.dtype}, the record declares {dtype}")
    values = np.concatenate(present) if present else np.zeros(0, dtype)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array([p is None for p in parts], pa.bool_()))


def _unragged(column: pa.ChunkedArray) -> list[Array | None]:
    out: list[Array | None] = []
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=False)
        offsets = chunk.offsets.to_numpy()
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        out += [values[offsets[i] : offsets[i + 1]].copy() if valid[i] else None for i in range(len(chunk))]
    return out

"""Groups survive parquet to the bit, and a reader without Trimtab sees what it expects."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trimtab.records import Group, Kept, Outcome, Rollout, Sampling, Segment, Slot, StopReason, Timing
from trimtab.store.codec import group_column, groups_to_table, table_to_groups, to_parquet

i64 = st.integers(-(2**63), 2**63 - 1)
anyfloat = st.floats(width=64, allow_nan=True)
words = st.text(max_size=4)


def bits32(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Any float32 whatever: denormals, infinities, NaNs with payloads."""
    return hnp.arrays(np.uint32, shape).map(lambda a: a.view(np.float32))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    length = draw(st.integers(0, 5))
    mask = draw(hnp.arrays(np.bool_, length))
    mask[:1] = False
    actions = int(mask.sum())
    kept = None
    if draw(st.booleans()):
        indptr = np.concatenate([[0], np.cumsum(draw(hnp.arrays(np.int64, actions, elements=st.integers(0, 3))))]).astype(np.int64)
        kept = Kept(indptr=indptr, ids=draw(hnp.arrays(np.int32, int(indptr[-1]))))
    return Segment(
        tokens=draw(hnp.arrays(np.int32, length)),
        action_mask=mask,
        behavior_logp=draw(bits32((length,))),
        versions=draw(hnp.arrays(np.int32, length)),
        turn=draw(hnp.arrays(np.int16, length)),
        sampling=draw(
            st.builds(
                Sampling,
                temperature=anyfloat,
                top_p=anyfloat,
                top_k=st.integers(0, 100),
                allowed=st.none() | st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
            )
        ),
        incarnation=draw(st.integers(0, 5)),
        reward=draw(st.none() | bits32((length,))),
        kept=kept,
    )


rollouts = st.builds(
    Rollout,
    member=st.integers(0, 100),
    segments=st.lists(segments(), max_size=3).map(tuple),
    score=anyfloat,
    outcome=st.sampled_from(Outcome),
    stop=st.sampled_from(StopReason),
    reward=st.none() | anyfloat,
    timing=st.builds(Timing, started=anyfloat, finished=anyfloat, verified=anyfloat),
    forgetting=st.none() | anyfloat,
    forgetting_source=st.sampled_from(["", "swap", "learner"]),
)
groups = st.builds(
    Group,
    slot=st.builds(Slot, i64, i64),
    prompt=i64,
    attempt=i64,
    seed=i64,
    task=words,
    source=words,
    rollouts=st.lists(rollouts, max_size=3).map(tuple),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(groups, max_size=3))
def test_round_trip_through_parquet_is_bit_exact(same, some: list[Group]) -> None:
    table = pq.read_table(io.BytesIO(to_parquet(groups_to_table(some))))
    assert same(table_to_groups(table), some)


def test_nan_payloads_stay_apart(same, make_group) -> None:
    """What a float32 says beyond its value: payloads, signs of zero."""
    nans = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x80000000, 0], np.uint32).view(np.float32)
    segment = Segment(
        tokens=np.zeros(5, np.int32),
        action_mask=np.zeros(5, bool),
        behavior_logp=nans,
        versions=np.full(5, -1, np.int32),
        turn=np.zeros(5, np.int16),
        sampling=Sampling(),
    )
    score = float(np.uint64(0x7FF8000000000001).view(np.float64))
    members = tuple(
        Rollout(member=m, segments=(segment,), score=s, outcome=Outcome.WRONG, stop=StopReason.EOS)
        for m, s in enumerate([float("nan"), score])
    )
    group = Group(slot=Slot(0, 0), prompt=0, attempt=0, seed=0, task="", source="", rollouts=members)
    assert same(table_to_groups(pq.read_table(io.BytesIO(to_parquet(groups_to_table([group]))))), [group])


def test_a_reader_sees_one_row_a_rollout(make_group) -> None:
    some = [make_group(3), make_group(4)]
    table = pq.read_table(io.BytesIO(to_parquet(groups_to_table(some, {"batch": [10, 11]}))))
    rows = table.to_pylist()
    assert [(r["batch"], r["epoch"], r["index"], r["member"]) for r in rows] == [(10, 0, 3, 0), (10, 0, 3, 1), (11, 0, 4, 0), (11, 0, 4, 1)]
    rollout = some[1].rollouts[1]
    segment = rollout.segments[0]
    row = rows[3]
    assert (row["prompt"], row["score"], row["outcome"], row["stop"], row["reward"]) == (4, rollout.score, "wrong", "eos", None)
    assert (row["tokens"], row["versions"]) == (segment.tokens.tolist(), [-1, -1, -1, 4, 4, 4, 4])
    assert row["behavior_logp"] == segment.behavior_logp.tolist()
    assert table.schema.field("behavior_logp").type.value_type == pa.float32()


def test_extra_columns_are_one_entry_a_group(make_group) -> None:
    table = groups_to_table(
        [make_group(0), make_group(1, members=0), make_group(2)], {"entered": np.array([5, 6, 7]), "why": ["a", "b", "c"]}
    )
    assert group_column(table, "entered") == [5, 6, 7]
    assert group_column(table, "why") == ["a", "b", "c"]
    with pytest.raises(ValueError, match="entered has 2 entries for 1 groups"):
        groups_to_table([make_group(0)], {"entered": [1, 2]})


def test_any_whole_groups_of_any_tables_decode(same, make_group) -> None:
    """A filter or a concatenation of logs is again a log."""
    a, b, c = make_group(0, members=1), make_group(1), make_group(2, members=1)
    joined = pa.concat_tables([groups_to_table([a]), groups_to_table([b, c])])
    assert same(table_to_groups(joined), [a, b, c])
    assert same(table_to_groups(joined.slice(1, 2)), [b])
    assert same(table_to_groups(joined.filter(pa.array([True, False, False, True]))), [a, c])


def test_a_wrong_dtype_is_refused_by_name(make_group) -> None:
    group = make_group(0, members=1)
    segment = group.rollouts[0].segments[0]
    object.__setattr__(segment, "behavior_logp", segment.behavior_logp.astype(np.float64))
    with pytest.raises(ValueError, match="behavior_logp is float64, the record declares float32"):
        groups_to_table([group])

"""Packing: what goes in comes out in rollout order, and blocks cover every row once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rollouts import ragged, rollout, segment
from trimtab.learner.layout import BlockLayout
from trimtab.learner.packing import pack
from trimtab.records import Rollout, Sampling, Segment, TrimtabError


def test_columns_are_the_action_tokens_in_rollout_order() -> None:
    rollouts = ragged(np.random.default_rng(0), 9)
    packed = pack(rollouts)
    segments = [(i, s) for i, r in enumerate(rollouts) for s in r.segments]
    for column, name in [
        (packed.targets_N, "tokens"),
        (packed.behavior_N, "behavior_logp"),
        (packed.version_N, "versions"),
        (packed.turn_N, "turn"),
    ]:
        np.testing.assert_array_equal(column.numpy(), np.concatenate([getattr(s, name)[s.action_mask] for _, s in segments]))
    np.testing.assert_array_equal(packed.rollout_N.numpy(), np.concatenate([[i] * s.actions for i, s in segments]))
    np.testing.assert_array_equal(packed.length_R.numpy(), [r.actions for r in rollouts])
    assert packed.reward_N is None


def test_each_action_token_is_predicted_from_exactly_what_stood_before_it() -> None:
    """Follow every predicting row back: the tokens of its segment up to it are the tokens before the action, interior zeros included."""
    rollouts = ragged(np.random.default_rng(1), 8)
    packed = pack(rollouts)
    contexts = [s.tokens[:t].tolist() for r in rollouts for s in r.segments for t in np.flatnonzero(s.action_mask)]
    rows = packed.predict_H[packed.to_N].tolist()
    assert [packed.tokens_P[row - int(packed.positions_P[row]) : row + 1].tolist() for row in rows] == contexts


def test_tokens_after_the_last_action_take_no_rows() -> None:
    rng = np.random.default_rng(0)
    packed = pack([rollout(segment(rng, "..aaa...")), rollout(segment(rng, "....")), rollout(segment(rng, ".a"))])
    assert packed.tokens_P.shape == (4 + 1,)
    assert packed.length_R.tolist() == [3, 0, 1]


def test_orders_are_inverse_and_rollouts_ascend_in_length() -> None:
    packed = pack(ragged(np.random.default_rng(3), 11))
    n = torch.arange(packed.targets_N.shape[0])
    assert torch.equal(n[packed.to_H][packed.to_N], n)
    assert list(packed.rows.lengths) == sorted(packed.rows.lengths)
    assert torch.equal(packed.actions.owner[packed.to_N], packed.packed_R[packed.rollout_N])


def test_step_rewards_and_missing_ones() -> None:
    rng = np.random.default_rng(0)
    a, b = segment(rng, "..aa"), segment(rng, ".a")
    rewarded = Segment(**{f: getattr(a, f) for f in a.__slots__ if f != "reward"}, reward=np.array([0, 0, 1, 2], np.float32))
    assert pack([rollout(rewarded), rollout(b)]).reward_N.tolist() == [1, 2, 0]


def test_allowed_tokens_are_a_kept_set_even_where_the_engine_reports_none() -> None:
    a = segment(np.random.default_rng(0), "..aa")
    narrowed = Segment(**{f: getattr(a, f) for f in a.__slots__ if f != "sampling"}, sampling=Sampling(allowed=(3, 5)))
    packed = pack([rollout(narrowed)])
    assert packed.kept_H.indptr.tolist() == [0, 2, 4]
    assert packed.kept_H.ids.tolist() == [3, 5, 3, 5]
    mixed = pack([rollout(narrowed), rollout(a)])
    assert mixed.uncut_H.tolist() == [False, False, True, True]


def test_a_batch_without_action_tokens_is_refused() -> None:
    with pytest.raises(TrimtabError, match="none of the 1 rollouts has an action token"):
        pack([rollout(segment(np.random.default_rng(0), "..."))])


def test_equal_lengths_are_views_of_the_packed_tensor() -> None:
    x = torch.randn(6 * 5, 3)
    (block,) = BlockLayout([5] * 6).blocks
    assert block.take(x).data_ptr() == x.data_ptr()
    runs = BlockLayout([5] * 30 + [9] * 30).blocks
    assert all(b.index is None for b in runs)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=40), st.randoms())
@settings(max_examples=60, deadline=None)
def test_split_then_join_is_the_identity_and_blocks_stay_small(lengths: list[int], random: object) -> None:
    layout = BlockLayout(lengths)
    x = torch.randn(sum(lengths), 2)
    if not layout.rows:
        assert layout.blocks == ()
        return
    assert torch.equal(layout.join(layout.split(x)), x)
    # Zero-padded blocks sum to the sequences' sums.
    sums = torch.zeros(len(lengths), 2)
    for b in layout.blocks:
        sums[b.members] = b.take_zero(x).sum(1)
    torch.testing.assert_close(sums, torch.zeros(len(lengths), 2).index_add(0, layout.owner, x))
    assert sum(b.count * b.length for b in layout.blocks) - layout.rows <= 64 * len(layout.blocks)


def test_a_rollout_of_nothing_keeps_its_place() -> None:
    rng = np.random.default_rng(0)
    empty = Rollout(**{f: getattr(rollout(segment(rng, ".a")), f) for f in Rollout.__slots__ if f != "segments"}, segments=())
    packed = pack([empty, rollout(segment(rng, "..a"))])
    assert packed.rollout_N.tolist() == [1]
    assert packed.rows.lengths == (0, 2)

"""The discrete-event model against schedules worked out by hand, and against laws that hold for every schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.config.load import load
from trimtab.config.run import RunConfig
from trimtab.records import Slot, TrimtabError
from trimtab.sim.figures import figures
from trimtab.sim.loop import Simulated, simulate
from trimtab.sim.model import Given, LearnerStep, LogNormal, Model, Rng, SimRollout

QUICK = {"learner.batches": 4, "rollout.prompts_per_batch": 1, "rollout.group_size": 1, "rollout.held_batches": 50, "engine.slots": 50}


def config(*methods: str, batches: int = 4, **runtime: object) -> RunConfig:
    """Groups of one rollout, batches of one group, unless said otherwise."""
    table = {**QUICK, "learner.batches": batches, **{f"runtime.{k}": v for k, v in runtime.items() if "__" not in k}}
    table |= {k.replace("__", "."): v for k, v in runtime.items() if "__" in k}
    # An importance correction that is content with groups of one; what is trained does not matter here.
    chosen = ", ".join(['"seq_tis"', '"reinforce"', *methods])
    return load("quickstart", [*(f"{k}={v}" for k, v in table.items()), f"methods=[{chosen}]"])


def given_times(**times: object) -> Given:
    values: dict[str, object] = {"step_s": 1.0, "train_s": LogNormal(1.0), "tokens": LogNormal(4), **times}
    return Given(**values)  # type: ignore[arg-type]


class Table(Model):
    """Members by index of the slot; every decode step a second."""

    def __init__(self, tokens: Sequence[int], step: LearnerStep) -> None:
        self._tokens, self._step = tokens, step

    def group(self, rng: Rng, slot: Slot, members: int) -> list[SimRollout]:
        return [SimRollout(self._tokens[slot.index], self._tokens[slot.index])] * members

    def decode_s(self, rng: Rng) -> float:
        return 1.0

    def step(self, rng: Rng, batch: int) -> LearnerStep:
        return self._step


# ------------------------------------------------------------------------------------------------ by hand
def test_a_synchronous_loop() -> None:
    """Depth 0: generate for 4 s, train for 1 s, again; nothing is ever stale and each waits for the other."""
    run = simulate(config(max_lag=0, depth=0), given_times())
    ends = [b.end_s for b in run.batches]
    assert ends == pytest.approx([5, 10, 15, 20], abs=0.05)  # a turn of the controller after each publication
    assert [b.age for b in run.batches] == [0, 0, 0, 0]
    f = run.figures(1)
    assert f.learner_idle == pytest.approx(4 / 5, abs=0.01)
    assert f.sampler_idle == pytest.approx(1 / 5, abs=0.01)


def test_one_step_ahead() -> None:
    """Depth 1, 4 s of sampling against 6 s of learning, one rollout at a time: the sampler waits, every group is one version old.

    Group 0 is there at 4 and trained until 10, group 1 at 8. Group 2 is admitted when group 0 is consumed, at 10, begins under version 0
    (version 1 is committed at the boundary behind its first token), and is there at 14; group 1 is trained until 16.
    """
    run = simulate(config(max_lag=4, depth=1, engine__slots=1), given_times(train_s=LogNormal(6.0)))
    assert [b.end_s for b in run.batches] == pytest.approx([10, 16, 22, 28], abs=0.05)
    assert [b.wait_s for b in run.batches] == pytest.approx([4, 0, 0, 0], abs=0.05)
    assert [b.age for b in run.batches[:2]] == [0, 4]  # four tokens, one version
    assert run.figures(1).learner_idle == pytest.approx(0, abs=0.01)


def test_a_rollout_that_spans_versions() -> None:
    """Two slots, one long and three short rollouts of 2 tokens: versions are committed while the long one decodes."""
    run = simulate(config(max_lag=8, depth=8, engine__slots=2, batches=4), Table([9, 2, 2, 2], LearnerStep(0.25)))
    # The short ones end at 2, 4 and 6; each is trained a quarter of a second later, staged at 3, 5, 7 and swapped in at 4, 6, 8.
    last = run.batches[-1]
    assert last.tokens == 9
    assert last.end_s == pytest.approx(9.25, abs=0.02)
    assert last.age == 4 * 3 + 2 * 2 + 2 * 1 + 1 * 0  # tokens 0-3 of version 0, 4-5 of 1, 6-7 of 2, 8 of 3
    assert last.generation == last.age


def test_a_skipped_batch_publishes_nothing() -> None:
    run = simulate(config(max_lag=2, depth=2), given_times(applied=0.0))
    assert [b.age for b in run.batches] == [0, 0, 0, 0]


def test_what_is_held_back_keeps_its_slot() -> None:
    """One slot, 4 decode steps, 10 s at least: a group every 10 s."""
    run = simulate(config(max_lag=4, depth=4, engine__slots=1), given_times(hold_s=LogNormal(10.0), train_s=LogNormal(0.1)))
    assert [b.end_s for b in run.batches] == pytest.approx([10.1, 20.1, 30.1, 40.1], abs=0.02)


def test_stage_and_pause_stop_decoding() -> None:
    """Every publication costs the sampler 3 s: a group takes 4 + 3, except for the first."""
    times = given_times(train_s=LogNormal(0.1), stage_s=2.0, pause_s=1.0)
    run = simulate(config(max_lag=4, depth=4, engine__slots=1, batches=6), times)
    ends = [b.end_s for b in run.batches]
    assert [b - a for a, b in pairwise(ends[1:])] == pytest.approx([7.0] * 4, abs=0.05)


def test_a_batch_that_is_no_step_frees_places_at_the_next_tick() -> None:
    """Nothing is published, so nobody wakes the controller: it looks up 0.1 s after its last turn, when the batch was asked for."""
    times = given_times(applied=0.0, train_s=LogNormal(0.02), after_s=0.5)
    run = simulate(config(max_lag=0, depth=0, batches=6), times)
    ends = [b.end_s for b in run.batches]
    # 4 s of sampling, and 0.1 s from the turn in which the last group came back, not the 0.52 s until the learner asks again.
    assert [b - a for a, b in pairwise(ends)] == pytest.approx([4.1] * 5, abs=0.01)


def test_a_verdict_is_seen_after_the_step_in_hand() -> None:
    """Two slots: the short rollout ends at 2, its verdict comes at 2.4 and is seen at 3; the long one's at 9.4, where nothing decodes."""

    class Judged(Table):
        def group(self, rng: Rng, slot: Slot, members: int) -> list[SimRollout]:
            return [m._replace(verify_s=0.4) for m in super().group(rng, slot, members)]

    run = simulate(config(max_lag=8, depth=1, engine__slots=2, batches=2), Judged([9, 2], LearnerStep(0.25)))
    assert [b.end_s for b in run.batches] == pytest.approx([3.25, 9.65], abs=0.02)


def test_a_swap_is_work() -> None:
    """Depth 0: a sampler without groups is busy while it stages and swaps."""
    run = simulate(config(max_lag=0, depth=0, batches=8), given_times(stage_s=0.2, pause_s=0.3))
    assert run.figures(1).sampler_idle == pytest.approx(1 / 5.5, abs=0.01)


def test_some_batches_of_a_longer_plan() -> None:
    """A plan that goes on keeps its samplers busy; one that ends does not."""
    times = given_times(train_s=LogNormal(4.2))
    ends, goes_on = (simulate(config(max_lag=8, depth=4, engine__slots=1, batches=plan), times, batches=20).batches for plan in (20, 40))
    assert len(ends) == len(goes_on) == 20
    assert sum(b.idle_s for b in goes_on[-4:]) < 1 < sum(b.idle_s for b in ends[-4:])


# ------------------------------------------------------------------------------------------------ laws
PACE = '{ name = "pace", forgetting = "none" }'


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["", PACE, '"freshest"', '{ name = "max_age", max_age = 2 }', '{ name = "random_reject" }']),
    st.integers(0, 2**20),
    st.floats(0.2, 3.0),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_slot_ends_in_one_state_and_no_token_is_too_old(method: str, seed: int, train: float, workers: int, bounded: bool) -> None:
    lag = 6 if bounded else '"none"'
    c = config(
        *([method] if method else []), batches=12, max_lag=lag, depth=6, workers=workers,
        rollout__prompts_per_batch=3, rollout__group_size=2, engine__slots=5,
    )  # fmt: skip
    run = simulate(c, given_times(step_s=0.1, tokens=LogNormal(6, 0.8), train_s=LogNormal(train, 0.3), stage_s=0.05, applied=0.9), seed)
    assert run.slots["trained"] == 3 * 12 == 3 * len(run.batches)
    assert run.slots["training"] == run.slots["admitted"] == 0
    assert run.slots["dropped"] >= sum(b.let_go for b in run.batches)
    for before, b in pairwise(run.batches):
        assert 0 <= b.wait_s <= b.end_s - before.end_s + 1e-9
        assert b.busy_s + b.idle_s == pytest.approx(workers * (b.end_s - before.end_s))
        assert 0 <= b.generation <= b.age
        assert not bounded or b.age <= 6 * b.tokens


def test_equal_seeds_are_equal_runs() -> None:
    c = config(batches=10, max_lag=4, depth=4, workers=2)
    times = given_times(tokens=LogNormal(6, 0.8), train_s=LogNormal(1.0, 0.5))
    one, again, other = (simulate(c, times, seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def _overproducing(*methods: str, train: float, depth: int = 20, batches: int = 180, slots: int = 12, workers: int = 1) -> Simulated:
    """Groups of one, 8 to a batch, twelve at a time of 1 s on average: 12 a second arrive where nothing holds them back."""
    c = config(
        *methods, batches=batches, max_lag='"none"', depth=depth, workers=workers,
        rollout__prompts_per_batch=8, engine__slots=slots,
    )  # fmt: skip
    return simulate(c, given_times(step_s=0.05, tokens=LogNormal(18, 0.4), train_s=LogNormal(train)), 3)


def test_pace_holds_the_pool_at_its_target_and_the_surplus() -> None:
    """q groups arrive a batch, B are taken: n settles at P* + (q - B), P* = 2 B, before each batch, and q - B are let go."""
    run = _overproducing(PACE, train=0.9)
    kept = run.batches[60:]
    arriving = sum(b.trained + b.let_go for b in kept) / len(kept)
    assert 9 < arriving < 12  # more than 8, held back by nothing
    before = sum(b.waiting + b.trained + b.let_go for b in kept) / len(kept)  # what is left after a batch, its groups and the rejected
    # ``waiting`` is counted a learner step after the batch was formed: what has arrived meanwhile is in it.
    assert before == pytest.approx(2 * 8 + (arriving - 8) + arriving, abs=1.0)
    assert run.figures(60).let_go == pytest.approx(1 - 8 / arriving, abs=0.01)
    free = _overproducing(train=0.9)
    assert free.figures(60).pool > 2 * run.figures(60).pool  # up to what depth allows
    assert free.figures(60).age > 2 * run.figures(60).age


def test_littles_law() -> None:
    """Groups in the pool = arrivals a second x seconds in it; a version is a batch, so seconds are batches of waiting."""
    run = _overproducing(train=0.9, depth=6)
    f = run.figures(60)
    assert f.pool / 8 == pytest.approx(f.waiting, rel=0.15)
    assert f.let_go == 0


def test_rate_is_that_of_the_slower_side() -> None:
    sampling = _overproducing(train=0.05, batches=90).figures(30)
    learning = _overproducing(train=2.0, batches=90).figures(30)
    assert learning.batches_per_s == pytest.approx(1 / 2.0, rel=0.01)
    assert sampling.batches_per_s == pytest.approx(12 / (18 * 0.05 * LogNormal(1, 0.4).mean) / 8, rel=0.08)
    assert learning.learner_idle < 0.01 < 0.8 < sampling.learner_idle
    two = _overproducing(train=0.05, batches=90, workers=2).figures(30)
    assert two.batches_per_s == pytest.approx(2 * sampling.batches_per_s, rel=0.08)


def test_another_runtime_is_refused() -> None:
    with pytest.raises(TrimtabError, match=r"runtime\.kind = 'lockstep'"):
        simulate(load("quickstart", ['runtime={kind = "lockstep"}']), given_times())


def test_a_warm_up_leaves_something() -> None:
    run = simulate(config(max_lag=0, depth=0), given_times())
    with pytest.raises(ValueError, match="4 batches leave none"):
        figures(run.batches, 4)


def test_lognormal_of_quantiles() -> None:
    d = LogNormal.of(0.05, 0.5)
    assert d.sigma == pytest.approx(0.98979, abs=1e-4)
    assert d.mean == pytest.approx(0.05 * 1.6321, rel=1e-3)

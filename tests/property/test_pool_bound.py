"""Nobody gets a token older than ``max_lag`` past the pool, and the pool never stalls: a hostile world tries.

One seeded discrete-event world around the real pool: workers of very different speed that take new weights late or in the middle
of a rollout, die, deliver after their death; rollouts that fail, hang or are dropped; a learner that skips; restarts from JSON.
The world keeps its own record of what is outstanding and counts the inequalities literally.
"""

import heapq
import itertools
import json
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pool_chain import pool_chain
from trimtab.control.protocol import Reject, Selection
from trimtab.control.registry import build
from trimtab.pool.options import PoolOptions
from trimtab.pool.plan import Plan
from trimtab.pool.pool import Pool
from trimtab.pool.results import BlockedBy, Fate, Finished, Formed, NotYet, Ticket
from trimtab.records import Group, Outcome, Rollout, Sampling, Segment, StopReason

SIZE = 4  # groups a batch
MEMBERS = 2


@cache
def rollouts(versions, incarnation, valid):
    n = len(versions)
    segment = Segment(
        tokens=np.zeros(n + 1, np.int32),
        action_mask=np.arange(n + 1) > 0,
        behavior_logp=np.zeros(n + 1, np.float32),
        versions=np.array([-1, *versions], np.int32),
        turn=np.zeros(n + 1, np.int16),
        sampling=Sampling(),
        incarnation=incarnation,
    )

    def member(i, outcome):
        return Rollout(member=i, segments=(segment,), score=float(i), outcome=outcome, stop=StopReason.EOS)

    outcomes = [Outcome.WRONG, Outcome.CORRECT if valid else Outcome.ERROR]
    return tuple(member(i, outcome) for i, outcome in enumerate(outcomes))


class Worker:
    def __init__(self, name, held, speed, places):
        self.name, self.held, self.speed, self.places = name, held, speed, places
        self.busy, self.life = 0, 0


class World:
    def __init__(self, seed, options, *, batches, hostility=1.0, learner=1.0, workers=5, places=6, select=None, restarts=0, checks=1):
        self.rng = random.Random(seed)
        self.options, self.batches, self.hostility, self.learner = options, batches, hostility, learner
        self.select, self.checks, self.restarts = select, checks, restarts
        self.plan_seed = seed
        self.incarnation = 0
        self.pool = self.fresh_pool()
        self.now, self.events, self.tie, self.steps = 0.0, [], itertools.count(), 0
        self.charges = {}  # slot -> charge: the world's own O, without the batch in training
        self.in_training = 0
        self.published = 0
        self.trained, self.ages, self.mean_ages, self.skipped = [], [], [], 0
        speeds = [self.rng.choice([0.1, 1.0, 4.0]) if hostility else 0.1 for _ in range(workers)]
        self.workers = [Worker(f"w{i}", 0, speed, places) for i, speed in enumerate(speeds)]
        for worker in self.workers:
            self.at(self.swap_delay(), self.swap, worker)
        self.at(20.0, self.tick)

    def fresh_pool(self):
        plan = Plan(seed=self.plan_seed, prompts=37, batch_groups=SIZE, batches=self.batches)
        return Pool(self.options, plan, group_size=MEMBERS, incarnation=self.incarnation, chain=pool_chain([self], self.select))

    def accept(self, group):
        assert group.now >= group.oldest
        return Reject("zero variance") if self.chance(0.2) else None

    def chance(self, p):
        return self.rng.random() < p * self.hostility

    def at(self, delay, what, *args):
        heapq.heappush(self.events, (self.now + delay, next(self.tie), what, args))

    # ------------------------------------------------------------------------------------------------------------ workers

    def swap_delay(self):
        return self.rng.expovariate(1.0) * self.rng.choice([0.1, 1.0, 30.0]) if self.hostility else 1.0

    def swap(self, worker):
        worker.held = self.published
        self.at(self.swap_delay(), self.swap, worker)

    def admit(self, worker):
        """False where no other worker would be given a group either."""
        while worker.busy < worker.places:
            ticket = self.pool.admit(worker.name, worker.held, self.now)
            if not isinstance(ticket, Ticket):
                return ticket.by in (BlockedBy.LAG, BlockedBy.BEHIND)
            assert ticket.held == worker.held
            self.charges[ticket.slot] = ticket.held
            worker.busy += 1
            self.check()
            self.at(self.rng.expovariate(2.0), self.start, worker, worker.life, self.incarnation, ticket)
        return True

    def start(self, worker, life, incarnation, ticket):
        """The first token: its version is the one now held, which is no older than the one charged."""
        first = worker.held if worker.life == life and incarnation == self.incarnation else ticket.held
        hang = self.chance(0.01)
        slow = self.rng.choice([1.0, 1.0, 1.0, 8.0])
        self.at(500.0 if hang else self.rng.expovariate(1.0) * worker.speed * slow, self.finish, worker, life, incarnation, ticket, first)

    def finish(self, worker, life, incarnation, ticket, first):
        alive = worker.life == life and incarnation == self.incarnation
        worker.busy -= alive
        if not alive and self.rng.random() < 0.5:
            return  # died with it
        if self.chance(0.05):
            fate = self.pool.fail(worker.name, ticket.slot, ticket.attempt, "environment raised").fate
        else:
            # in-flight swaps: later tokens are of later versions
            last = max(first, worker.held) if alive else first
            group = Group(
                slot=ticket.slot,
                prompt=ticket.prompt,
                attempt=ticket.attempt,
                seed=0,
                task="t",
                source="s",
                rollouts=rollouts((first, (first + last) // 2, last), incarnation, not self.chance(0.05)),
            )
            fate = self.pool.deliver(worker.name, group).fate
            if fate is Fate.WAITING:
                assert first >= self.charges[ticket.slot]
                self.charges[ticket.slot] = first
        if fate in (Fate.DROPPED, Fate.RETRIED, Fate.FAILED):
            del self.charges[ticket.slot]

    def lose(self, worker):
        worker.life += 1
        worker.busy = 0
        worker.held = self.published
        for slot in self.pool.lost(worker.name):
            del self.charges[slot]

    def tick(self):
        for straggler in self.pool.expire(self.now):
            assert self.now - straggler.since_s > self.options.straggler_deadline_s
            del self.charges[straggler.slot]
        if self.chance(0.3):
            self.lose(self.rng.choice(self.workers))
        self.at(20.0, self.tick)

    # ------------------------------------------------------------------------------------------------------------ learner

    def form(self):
        """True at the end of the plan."""
        if self.in_training:
            return False
        if self.restarts and self.rng.random() < 0.02:
            self.restart()
        formed = self.pool.form()
        if isinstance(formed, Formed):
            batch = formed.batch
            assert len(batch.groups) == SIZE
            assert batch.version == self.published
            for group, aged in zip(batch.groups, formed.ages, strict=True):
                ages = [batch.version - int(v) for r in group.rollouts for v in r.versions()]
                assert aged.oldest == max(ages)
                assert aged.generation + aged.waiting == pytest.approx(sum(ages) / len(ages))
                assert aged.waiting >= 0
                assert aged.generation >= 0
                self.ages.append(max(ages))
                self.mean_ages.append(sum(ages) / len(ages))
                self.trained.append(group.slot)
                del self.charges[group.slot]
            for gone in formed.let_go:
                del self.charges[gone.slot]
            self.in_training = SIZE
            self.check()
            self.at(self.learner * (self.rng.expovariate(1.0) if self.hostility else 1.0), self.train)
        elif isinstance(formed, NotYet):
            for gone in formed.let_go:
                del self.charges[gone.slot]
        return isinstance(formed, Finished)

    def train(self):
        skip = self.chance(0.2)
        self.skipped += skip
        self.published += not skip
        self.in_training = 0
        self.pool.consumed(self.published)
        if not self.hostility:
            for worker in self.workers:
                worker.held = self.published
        self.check()

    def restart(self):
        """kill -9 after a checkpoint: what was running is lost, what waited is kept, the pool goes on as if nothing happened."""
        state = json.loads(json.dumps(self.pool.state_dict()))
        groups = self.pool.waiting_groups()
        for worker in self.workers:
            self.lose(worker)
        self.incarnation += 1
        pool = self.fresh_pool()
        pool.load_state_dict(state, groups)
        assert pool.state_dict() == self.pool.state_dict()
        assert pool.facts(0.0) == replace(self.pool.facts(0.0), waits=())  # who waited is forgotten, nothing else
        assert pool.free() == self.pool.free()
        self.pool = pool

    # -------------------------------------------------------------------------------------------------------------- oracle

    def check(self):
        """The two rules, counted literally over the world's own record."""
        self.steps += 1
        if self.steps % self.checks:
            return
        turn, lag, depth = self.published + bool(self.in_training), self.options.max_lag, self.options.batches_ahead
        charges = list(self.charges.values())
        facts = self.pool.facts(self.now)
        assert facts.outstanding <= SIZE * (depth + 1)
        assert facts.outstanding >= len(charges) + self.in_training
        assert {v: n for v, n, _ in facts.profile} == {v: sum(c <= v for c in charges) for v in set(charges)}
        if lag is not None:
            for v in range(turn - lag - 2, self.published + 2):
                assert sum(c <= v for c in charges) <= max(0, SIZE * (v + lag - turn + 1))

    def run(self, limit=400):
        """To the end of the plan, within ``limit`` events a batch."""
        left = limit * max(self.batches, 1)
        while not self.form():
            for worker in self.rng.sample(self.workers, len(self.workers)):
                if not self.admit(worker):
                    break
            moved = False
            while not moved:  # a first token gives nobody a reason to ask again
                assert left, self.pool.facts(self.now).waits
                left -= 1
                self.now, _, what, args = heapq.heappop(self.events)
                what(*args)
                moved = what != self.start
        self.verify()
        return self

    def verify(self):
        facts = self.pool.facts(self.now)
        assert len(set(self.trained)) == len(self.trained) == SIZE * self.batches
        assert self.pool.trained() == sorted(self.trained)
        assert facts.outstanding == 0
        assert facts.counts["trained"] == len(self.trained)
        assert self.published == self.batches - self.skipped
        if self.options.max_lag is not None:
            assert max(self.ages) <= self.options.max_lag


class Whimsical:
    """A selector that takes any groups, lets some go and requeues some; now and then it only lets go."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def select(self, pool, want):
        ids = pool.ids.tolist()
        self.rng.shuffle(ids)
        rest = ids[want:]
        reject, requeue = rest[: self.rng.choice([0, 0, 1])], rest[1 : 1 + self.rng.choice([0, 1])]
        return Selection(tuple(ids[:want]) if self.rng.random() < 0.9 else (), tuple(reject), tuple(requeue))

    def formed(self, selection):
        assert len(selection.take) == SIZE


def eager(name):
    """A selector that acts wherever it can."""
    return build(name, {"max_age": 1} if name == "max_age" else {"w_star": 0.0, "beta": 0.0} if name != "freshest" else {})


@pytest.mark.parametrize("name", ["pace", "random_reject", "freshest", "max_age"])
@pytest.mark.parametrize("lag", [2, "none"])
def test_selectors_never_exceed_the_bound_and_never_stall(name, lag):
    """Samplers faster than the learner. Without a bound on the lag, depth alone limits what waits."""
    options = PoolOptions(max_lag=lag, depth=2, straggler_deadline_s=60.0)
    world = World(7, options, batches=40, restarts=1, learner=4.0, hostility=0.3, select=eager(name)).run(limit=2000)
    if lag == 2:
        assert max(world.ages) <= 2
    if name == "max_age":
        assert max(world.ages) <= 1


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize(("lag", "depth"), [(0, None), (1, None), (1, 0), (2, None), (2, 1), (4, None), (4, 2), (12, None), (12, 6)])
@pytest.mark.parametrize("seed", [0, 1])
def test_hostile_world_never_exceeds_the_bound_and_never_stalls(lag, depth, order, seed):
    options = PoolOptions(max_lag=lag, depth=depth, order=order, straggler_deadline_s=60.0)
    World(seed, options, batches=40, restarts=1, learner=[0.2, 2.0][seed]).run()


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_without_a_lag_bound_depth_alone_limits(order):
    world = World(3, PoolOptions(max_lag="none", depth=2, order=order, straggler_deadline_s=60.0), batches=40, restarts=1).run()
    assert max(world.ages) > 2  # a straggler waits for as long as its turn takes


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lag=st.integers(0, 6),
    back=st.integers(0, 6),
    order=st.sampled_from(["fifo", "ready"]),
    learner=st.sampled_from([0.05, 0.5, 5.0]),
    hostility=st.sampled_from([0.0, 1.0, 2.0]),
    name=st.sampled_from([None, "whimsical", "pace", "random_reject", "freshest", "max_age"]),
)
def test_any_world(seed, lag, back, order, learner, hostility, name):
    options = PoolOptions(max_lag=lag, depth=max(0, lag - back), order=order, straggler_deadline_s=60.0)
    select = Whimsical(seed) if name == "whimsical" else eager(name) if name else None
    World(seed, options, batches=15, learner=learner, hostility=hostility, select=select, restarts=1).run(limit=2000)


@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize("lag", [0, 1, 2, 4, 12])
def test_the_bound_is_tight(lag, order):
    """A fast, faithful sampler sits at the bound: after the ramp every trained group has age max_lag exactly."""
    world = World(0, PoolOptions(max_lag=lag, order=order), batches=40, hostility=0.0, learner=20.0, workers=8, places=16).run()
    assert set(world.ages[SIZE * lag :]) == {lag}


def test_depth_keeps_the_age_below_the_bound():
    """B3: how far ahead is not how stale. Depth 1 under max_lag 3, fast sampler: mean age at most 1."""
    world = World(0, PoolOptions(max_lag=3, depth=1), batches=60, hostility=0.0, learner=20.0, workers=8, places=16).run()
    assert np.mean(world.mean_ages) <= 1
    assert max(world.ages) == 1


@pytest.mark.slow
def test_one_hundred_thousand_groups():
    options = PoolOptions(max_lag=4, straggler_deadline_s=60.0)
    world = World(11, options, batches=25_000, learner=0.3, workers=8, checks=50).run()
    assert len(world.trained) == 100_000
    assert max(world.ages) == 4


def test_waiting_names_who_is_waited_for():
    options = PoolOptions(max_lag=1, straggler_deadline_s=60.0)
    world = World(5, options, batches=30)
    named = 0
    form = world.pool.form

    def watched():
        nonlocal named
        answer = form()
        if isinstance(answer, NotYet):
            named += 1
            assert answer.missing or answer.stragglers
            assert all(s.worker or s.charge == -1 for s in answer.stragglers)
            assert answer.why
        return answer

    world.pool.form = watched
    world.run()
    assert named

"""A pool of batches of two groups, and groups made to measure."""

import numpy as np
import pytest

from support.pool_chain import pool_chain
from trimtab.pool.options import PoolOptions
from trimtab.pool.plan import Plan
from trimtab.pool.pool import Pool
from trimtab.pool.results import Ticket
from trimtab.records import Group, Outcome, Rollout, Sampling, Segment, StopReason


@pytest.fixture
def make_group():
    """``make(slot, members=[versions, ...])``: one rollout per entry, one action token per version."""

    def segment(versions, incarnation):
        n = len(versions)
        return Segment(
            tokens=np.zeros(n + 1, np.int32),
            action_mask=np.arange(n + 1) > 0,
            behavior_logp=np.zeros(n + 1, np.float32),
            versions=np.array([-1, *versions], np.int32),
            turn=np.zeros(n + 1, np.int16),
            sampling=Sampling(),
            incarnation=incarnation,
        )

    def make(slot, members=((0,), (0,)), *, attempt=0, incarnation=0, outcomes=None, stops=None, scores=None):
        n = len(members)
        return Group(
            slot=slot,
            prompt=0,
            attempt=attempt,
            seed=0,
            task="t",
            source="s",
            rollouts=tuple(
                Rollout(
                    member=i,
                    segments=(segment(versions, incarnation),),
                    score=(scores or [0.0] * n)[i],
                    outcome=(outcomes or [Outcome.WRONG] * n)[i],
                    stop=(stops or [StopReason.EOS] * n)[i],
                )
                for i, versions in enumerate(members)
            ),
        )

    return make


@pytest.fixture
def make_pool():
    """A pool over 10 prompts, batches of 2 groups of 2 rollouts."""

    def make(*, batches=20, prompts=10, batch_groups=2, accept=(), select=None, calibration=0, incarnation=0, **options):
        chain = pool_chain(accept, select)
        plan = Plan(seed=7, prompts=prompts, batch_groups=batch_groups, batches=batches)
        return Pool(PoolOptions(**options), plan, group_size=2, chain=chain, calibration=calibration, incarnation=incarnation)

    return make


@pytest.fixture
def deliver(make_group):
    """Deliver a ticket's group, all tokens of one version."""

    def send(pool, ticket, version=None, **more):
        version = ticket.held if version is None else version
        return pool.deliver(ticket.worker, make_group(ticket.slot, ((version,), (version,)), attempt=ticket.attempt, **more))

    return send


@pytest.fixture
def admit_all():
    """Admit to a worker until the pool blocks it: the tickets, and the refusal."""

    def admit(pool, worker="w", held=None, now_s=0.0):
        tickets = []
        while isinstance(answer := pool.admit(worker, pool.version if held is None else held, now_s), Ticket):
            tickets.append(answer)
        return tickets, answer

    return admit

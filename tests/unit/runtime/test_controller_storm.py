"""Workers that are killed, frozen, forgetful and out of memory at random moments, in dozens of small runs: every plan is trained."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trimtab.records import Slot


@contextmanager
def storm(loop, rng: random.Random, forget: bool) -> Iterator[None]:
    """Until left: every few milliseconds something happens to one of the workers."""
    over = threading.Event()

    def blow() -> None:
        while not over.wait(rng.uniform(0.0, 0.02)):
            faults = loop.faults[rng.choice(list(loop.faults))]
            what = rng.random()
            if what < 0.4:
                living = [worker for worker in list(loop.workers) if not worker.killed]
                if living:
                    _interrupt(rng.choice(living))
            elif what < 0.7:
                faults.go.clear()
                over.wait(rng.uniform(0.0, 0.03))
                faults.go.set()
            elif what < 0.8:
                faults.raises = MemoryError()
                over.wait(0.01)
                faults.raises = None
            elif forget:
                faults.swallow = {Slot(*divmod(rng.randrange(80), 13))}

    thread = threading.Thread(target=blow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for faults in loop.faults.values():
            faults.go.set()
            faults.raises = None


def _interrupt(worker) -> None:
    try:
        worker.interrupt()
    except OSError:  # it was killed just now
        return


@pytest.mark.parametrize("seed", range(24))
def test_every_plan_is_trained_exactly_whatever_befalls_the_workers(make_loop, seed: int) -> None:
    rng = random.Random(seed)
    lag = rng.choice([0, 1, 2, 4, "none"])
    depth = {"depth": rng.randint(0, 3)} if lag == "none" else {}
    forget = rng.random() < 0.5
    straggler = {"straggler_deadline_s": 0.3} if forget else {}
    loop = make_loop(40, max_lag=lag, workers=rng.randint(1, 3), restarts=10_000, max_attempts=9, **depth, **straggler)
    with storm(loop, rng, forget):
        loop.start()
        while loop.batch(applied=rng.random() < 0.8):
            pass
    trained = sorted(group.slot for formed in loop.trained for group in formed.batch.groups)
    assert trained == loop.pool.trained()
    assert len(trained) == len(set(trained)) == loop.plan.target
    if not loop.pool.facts(0.0).counts["failed"]:
        assert trained == [Slot(*divmod(i, 13)) for i in range(loop.plan.target)]
    if lag != "none":
        assert max(aged.oldest for formed in loop.trained for aged in formed.ages) <= lag

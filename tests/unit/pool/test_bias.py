"""The two-sample rule, and what the pool tells of what it lets go."""

import numpy as np
import pytest

from trimtab.control.protocol import Selection
from trimtab.pool.bias import LEAST, WINDOW, Bias, BiasState


def rows(n, *, length=10.0, score=0.5, seed=0):
    draw = np.random.default_rng(seed)
    return [(length + draw.normal(), score + 0.1 * draw.normal(), score) for _ in range(n)]


def test_equal_samples_do_not_drift():
    bias = Bias()
    for i in range(40):
        assert bias.feed(rows(16, seed=i), rows(8, seed=1000 + i)) == []


def test_a_drift_is_told_once_and_its_end_once():
    bias, told = Bias(), []
    for i in range(30):
        told += bias.feed(rows(16, seed=i), rows(16, length=14.0, seed=99 + i))
    for i in range(30):
        told += bias.feed(rows(16, seed=i), rows(16, seed=99 + i))
    assert [(d.method, d.point, d.what) for d in told] == [
        ("pool", "select", "length drifts"),
        ("pool", "select", "length drifts no more"),
    ]
    assert told[0].amount == pytest.approx(4.0, abs=0.5)
    assert "groups let go is 14" in told[0].why
    assert "trained on 10" in told[0].why


def test_few_groups_prove_nothing_and_a_small_difference_does_not_matter():
    assert Bias().feed(rows(WINDOW), rows(LEAST - 1, length=99.0)) == []
    bias = Bias()
    for i in range(WINDOW // 16):  # clear or not, a tenth of a standard deviation
        assert bias.feed(rows(16, seed=i), rows(16, length=10.1, seed=i)) == []


def test_a_constant_column_that_differs_drifts():
    bias = Bias()
    (told,) = bias.feed([(1.0, 1.0, 1.0)] * LEAST, [(1.0, 0.0, 1.0)] * LEAST)
    assert told.what == "score drifts"


def test_it_goes_on_from_its_state():
    bias = Bias()
    bias.feed(rows(100), rows(100, length=14.0, seed=1))
    resumed = Bias(BiasState.model_validate_json(bias.state().model_dump_json()))
    assert resumed.state() == bias.state()
    assert resumed.feed(rows(16), rows(16, length=14.0)) == bias.feed(rows(16), rows(16, length=14.0)) == []


def test_the_pool_tells_what_a_batch_let_go(make_pool, make_group, admit_all):
    class Worst:
        def select(self, pool, want):
            pool.recorder.metric("worst/seen", len(pool.ids))
            order = np.argsort(-pool.score, kind="stable")
            return Selection(tuple(pool.ids[order[:want]].tolist()), tuple(pool.ids[order[want:]].tolist()))

        def formed(self, selection):
            self.told = selection

    worst = Worst()
    pool = make_pool(max_lag="none", depth=40, batches=80, prompts=200, select=worst)
    decisions = []
    for batch in range(35):
        for i, ticket in enumerate(admit_all(pool)[0][:6]):
            score = float(i < 2)
            pool.deliver("w", make_group(ticket.slot, ((batch, batch), (batch,)), attempt=ticket.attempt, scores=[score, score]))
        if batch == 15:  # what was compared survives a restart
            state, groups = pool.state_dict(), pool.waiting_groups()
            pool = make_pool(max_lag="none", depth=40, batches=80, prompts=200, select=worst)
            pool.load_state_dict(state, groups)
        formed = pool.form()
        assert worst.told.take
        metrics = {name: n / d for name, (n, d) in formed.notes.metrics.items()}
        assert metrics == {
            "worst/seen": 6,
            "pool/let_go": 4,
            "pool/let_go_length": 1.5,
            "pool/let_go_score": 0.0,
            "pool/let_go_accuracy": 0.0,
        }
        decisions += formed.notes.decisions
        pool.consumed(pool.version + 1)
        pool.lost("w")
    assert [d.what for d in decisions if d.method == "pool"] == ["score drifts"]
    assert [(d.what, d.amount) for d in decisions if d.method == "worst"] == [("rejected", 4.0)] * 35

import json
import random

import pytest

from trimtab.pool.ledger import IllegalTransition, Ledger, SlotState
from trimtab.records import Slot

S = Slot(0, 0)


def ledger_at(state):
    """A ledger whose slot S is in the given state."""
    ledger = Ledger()
    ledger.admit(S, prompt=3)
    if state is not SlotState.ADMITTED:
        ledger.run(S, "w", charge=4, now_s=1.0)
    if state in (SlotState.WAITING, SlotState.TRAINED, SlotState.DROPPED):
        ledger.arrive(S, oldest=5, entered=6)
    if state is SlotState.TRAINED:
        ledger.train(S)
    if state is SlotState.DROPPED:
        ledger.drop(S, "zero variance")
    if state is SlotState.FAILED:
        ledger.fail(S, "deadline")
    return ledger


STEPS = {
    "run": lambda ledger: ledger.run(S, "w", 4, 0.0),
    "arrive": lambda ledger: ledger.arrive(S, 5, 6),
    "retry": lambda ledger: ledger.retry(S, failed=True),
    "give_back": lambda ledger: ledger.give_back(S),
    "train": lambda ledger: ledger.train(S),
    "drop": lambda ledger: ledger.drop(S, "zero variance"),
    "fail": lambda ledger: ledger.fail(S, "deadline"),
    "admit": lambda ledger: ledger.admit(S, 3),
}
IN_LINE = {"retry": SlotState.ADMITTED, "give_back": SlotState.ADMITTED}
LEGAL = {
    SlotState.ADMITTED: {"run": SlotState.RUNNING},
    SlotState.RUNNING: {"arrive": SlotState.WAITING, "fail": SlotState.FAILED, **IN_LINE},
    SlotState.WAITING: {"train": SlotState.TRAINED, "drop": SlotState.DROPPED, **IN_LINE},
}


@pytest.mark.parametrize("state", list(SlotState))
@pytest.mark.parametrize("step", list(STEPS))
def test_every_other_transition_raises_and_changes_nothing(state, step):
    ledger = ledger_at(state)
    before = ledger.state_dict()
    after = LEGAL.get(state, {}).get(step)
    if after is not None:
        STEPS[step](ledger)
        assert [s for s in SlotState if ledger.count(s)] == [after]
    else:
        with pytest.raises(IllegalTransition):
            STEPS[step](ledger)
        assert ledger.state_dict() == before
        assert ledger.count(state) == 1


def test_a_retry_raises_the_attempt_and_has_no_charge_until_it_runs_again():
    ledger = ledger_at(SlotState.RUNNING)
    entry = ledger.retry(S, failed=True)
    assert (entry.attempt, entry.failures, entry.charge, entry.worker) == (1, 1, -1, "")
    assert ledger.run(S, "v", charge=9, now_s=2.0).charge == 9  # charged anew


def test_a_returned_slot_keeps_its_attempt():
    ledger = ledger_at(SlotState.RUNNING)
    entry = ledger.give_back(S)
    assert (entry.attempt, entry.failures, entry.charge, entry.prompt) == (0, 0, -1, 3)


def test_a_requeue_is_no_failure():
    entry = ledger_at(SlotState.WAITING).retry(S, failed=False)
    assert (entry.attempt, entry.failures) == (1, 0)


def test_a_group_older_than_its_charge_is_refused():
    ledger = ledger_at(SlotState.RUNNING)
    with pytest.raises(IllegalTransition, match="oldest token has version 3"):
        ledger.arrive(S, oldest=3, entered=6)
    assert ledger[S].state is SlotState.RUNNING


def test_a_slot_that_vanishes_is_noticed_at_the_next_transition():
    ledger = ledger_at(SlotState.RUNNING)
    ledger.admit(Slot(0, 1), 0)
    del ledger._live[S]
    with pytest.raises(RuntimeError, match="2 admitted, 0 terminal, 2 live, 1 outstanding"):
        ledger.run(Slot(0, 1), "w", 0, 0.0)


def test_reasons_are_counted():
    ledger = Ledger()
    for i in range(3):
        ledger.admit(Slot(0, i), i)
        ledger.run(Slot(0, i), "w", 0, 0.0)
    ledger.fail(Slot(0, 0), "deadline")
    for i in (1, 2):
        ledger.arrive(Slot(0, i), 0, 0)
        ledger.drop(Slot(0, i), "zero variance")
    assert ledger.causes() == "dropped: zero variance (2), failed: deadline (1)"
    assert (ledger.admitted, ledger.outstanding) == (3, 0)


def walk(ledger, rng, steps, slots):
    """Random legal life: the multiset of trained slots as a reference."""
    trained = []
    for _ in range(steps):
        live = list(ledger.live())
        if rng.random() < 0.3 or not live:
            slot = next(slots)
            ledger.admit(slot, slot.index)
            continue
        e = rng.choice(live)
        if e.state is SlotState.ADMITTED:
            ledger.run(e.slot, "w", 0, 0.0)
        elif e.state is SlotState.RUNNING:
            rng.choice([lambda s: ledger.arrive(s, 0, 0), lambda s: ledger.retry(s, failed=True), lambda s: ledger.fail(s, "x")])(e.slot)
        elif rng.random() < 0.7:
            ledger.train(e.slot)
            trained.append(e.slot)
        else:
            ledger.drop(e.slot, "y")
    return trained


@pytest.mark.parametrize("seed", range(5))
def test_the_state_is_exact_and_survives_json(seed):
    rng = random.Random(seed)
    slots = (Slot(*divmod(i, 7)) for i in range(10**6))
    ledger = Ledger()
    trained = walk(ledger, rng, 400, slots)
    state = json.loads(json.dumps(ledger.state_dict()))
    for entry in list(ledger.live(SlotState.RUNNING)):
        ledger.give_back(entry.slot)  # what a restart does
    again = Ledger()
    again.load_state_dict(state)
    assert again.trained() == ledger.trained() == sorted(trained)
    assert [again.count(s) for s in SlotState] == [ledger.count(s) for s in SlotState]
    assert (again.admitted, again.outstanding) == (ledger.admitted, ledger.outstanding)
    assert list(again.live()) == list(ledger.live())
    rng_b = random.Random()
    rng_b.setstate(rng.getstate())
    at = ledger.admitted
    more = [walk(b, r, 200, (Slot(*divmod(i, 7)) for i in range(at, 10**6))) for b, r in ((ledger, rng), (again, rng_b))]
    assert more[0] == more[1]
    assert again.state_dict() == ledger.state_dict()


def test_a_hundred_thousand_slots_are_a_short_string():
    ledger = Ledger()
    for i in range(100_000):
        slot = Slot(0, i)
        ledger.admit(slot, i)
        ledger.run(slot, "w", 0, 0.0)
        if i % 1000 == 0:
            ledger.fail(slot, "deadline")
        else:
            ledger.arrive(slot, 0, 0)
            ledger.train(slot)
    text = json.dumps(ledger.state_dict())
    assert len(text) < 2_000
    assert '"0": "1f999t1f' in text
    again = Ledger()
    again.load_state_dict(json.loads(text))
    assert again.trained() == ledger.trained()

"""Groups come out whole and right, whatever the order in which rows and verdicts come in."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rolling import AnyOrderEngine, NearVerifier, Sums, member_key, response_of
from support.tiny import tiny_tokenizer
from trimtab import keyed
from trimtab.records import Outcome, Slot, StoppedByRule, StopReason
from trimtab.rollout.collector import Collector, GroupDone, GroupFailed
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer

LIMIT = 12
OPTIONS = RolloutOptions(group_size=4, prompts_per_batch=4, max_new_tokens=LIMIT, min_group=1)
TOKENIZER = tiny_tokenizer()
RENDERER = Renderer(TOKENIZER, context=64, max_new_tokens=LIMIT, stop_ids=(2,))


def collector(options: RolloutOptions = OPTIONS, *, slots: int = 8, chaos: int = 0, seed: int = 7, **more: object) -> Collector:
    return Collector(AnyOrderEngine(slots, chaos), Sums(), NearVerifier(chaos), RENDERER, options, seed, **more)


def texts(slot: Slot, attempt: int = 0, seed: int = 7, tag: int = keyed.ROLLOUT) -> list[str]:
    """The responses of a group, worked out from its keys alone."""
    ids = [response_of(member_key(seed, slot, attempt, member, tag), LIMIT) for member in range(4)]
    return ["".join(TOKENIZER.convert_ids_to_tokens(int(i)) for i in row if i != 2) for row in ids]


def find(wanted: str, attempt: int = 0) -> Slot:
    """A slot whose group has a member that begins with ``wanted`` (NearVerifier: 9 raises, 8 times out), and one that does not raise."""
    for index in range(1000):
        group = texts(Slot(0, index), attempt)
        if any(t.startswith(wanted) for t in group) and any(not t.startswith("9") for t in group):
            return Slot(0, index)
    raise AssertionError(wanted)


def signature(done: GroupDone) -> tuple:
    g = done.group
    return (
        g.slot,
        g.prompt,
        g.attempt,
        [(r.member, r.score, r.outcome, r.stop, r.segments[0].tokens.tolist(), r.segments[0].behavior_logp.tolist()) for r in g.rollouts],
    )


@settings(max_examples=60, deadline=None)
@given(chaos=st.integers(0, 10**6), slots=st.integers(1, 40), order=st.permutations(range(6)))
def test_groups_do_not_depend_on_order_slots_or_timing(chaos: int, slots: int, order: list[int]) -> None:
    c = collector(slots=slots, chaos=chaos, max_groups=6)
    for index in order:
        c.assign(Slot(0, index), row=index, attempt=0)
    results = c.drain(30)
    assert {r.group.slot.index if isinstance(r, GroupDone) else r.slot.index for r in results} == set(range(6))
    for result in results:
        slot = result.group.slot if isinstance(result, GroupDone) else result.slot
        expected = {m: t for m, t in enumerate(texts(slot)) if not t.startswith("9")}
        if isinstance(result, GroupFailed):
            assert not expected
            continue
        assert {r.member: RENDERER.text(r.segments[0].tokens[r.segments[0].action_mask]) for r in result.group.rollouts} == expected
        for r in result.group.rollouts:
            s = r.segments[0]
            sampled = response_of(member_key(7, slot, 0, r.member), LIMIT)
            assert np.array_equal(s.tokens[s.action_mask], sampled), "trained ids are exactly the sampled ids"
            assert np.array_equal(s.tokens[~s.action_mask], RENDERER.ids(Sums().prompt(slot.index)))
            correct = not expected[r.member].startswith("8") and len(expected[r.member]) % 2 == 0
            assert (r.score, r.outcome is Outcome.CORRECT) == (float(correct), correct)


def test_more_slots_refills_and_shuffled_submission_give_identical_groups() -> None:
    runs = []
    for chaos, slots in ((0, 1), (1, 5), (2, 100)):
        c, done = collector(slots=slots, chaos=chaos, max_groups=5), []
        todo = list(range(30))
        random.Random(chaos).shuffle(todo)
        while todo or c.outstanding:
            while todo and c.room():
                index = todo.pop()
                c.assign(Slot(0, index), row=index % 10, attempt=0)
            assert c.outstanding <= 5
            done += [r for r in c.step() if isinstance(r, GroupDone)]
        runs.append(sorted(map(signature, done)))
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 30


def test_errors_leave_their_group_and_timeouts_stay_at_zero() -> None:
    slot = find("9")
    c = collector()
    c.assign(slot, row=1, attempt=0)
    [done] = c.drain(10)
    assert isinstance(done, GroupDone)
    nines = [m for m, t in enumerate(texts(slot)) if t.startswith("9")]
    assert [r.member for r in done.group.rollouts] == [m for m in range(4) if m not in nines]
    assert done.errors == ("RuntimeError: row 1 has a nine",) * len(nines)
    assert len(done.scoring_s) == 4

    slot = find("8")
    c.assign(slot, row=2, attempt=0)
    [done] = c.drain(10)
    eights = {m for m, t in enumerate(texts(slot)) if t.startswith("8")}
    assert {r.member for r in done.group.rollouts if r.outcome is Outcome.TIMEOUT} == eights
    assert all(r.score == 0.0 for r in done.group.rollouts if r.member in eights)


def test_too_few_members_is_a_failure_to_retry_and_the_retry_draws_anew() -> None:
    slot = find("9")
    c = collector(OPTIONS.model_copy(update={"min_group": None}))
    c.assign(slot, row=1, attempt=0)
    [failed] = c.drain(10)
    assert isinstance(failed, GroupFailed)
    assert (failed.slot, failed.row, failed.attempt, failed.retry) == (slot, 1, 0, True)
    assert failed.reason == (
        f"{4 - sum(t.startswith('9') for t in texts(slot))} of 4 rollouts have a verdict, 4 are needed; "
        "the last error: RuntimeError: row 1 has a nine"
    )
    c = collector()
    c.assign(slot, row=1, attempt=1)
    [done] = c.drain(10)
    assert done.group.attempt == 1
    assert [RENDERER.text(r.segments[0].tokens[r.segments[0].action_mask]) for r in done.group.rollouts] == [
        t for t in texts(slot, attempt=1) if not t.startswith("9")
    ]
    assert texts(slot, attempt=1) != texts(slot)


@pytest.mark.parametrize(("row", "reason"), [(13, "row 13 cannot be had"), (14, "prompt of row 14 has 401 tokens")])
def test_a_poison_prompt_is_data_and_the_others_go_on(row: int, reason: str) -> None:
    c = collector()
    c.assign(Slot(0, 0), row=row, attempt=2)
    c.assign(Slot(0, 1), row=1, attempt=0)
    assert c.outstanding == 2
    results = c.drain(10)
    [failed] = [r for r in results if isinstance(r, GroupFailed)]
    assert reason in failed.reason
    assert (failed.slot, failed.attempt, failed.retry) == (Slot(0, 0), 2, False), "no attempt will do better"
    assert [r.group.slot for r in results if isinstance(r, GroupDone)] == [Slot(0, 1)]


def test_room_is_two_batches_by_default() -> None:
    c = collector()
    assert c.room() == 8
    for index in range(8):
        c.assign(Slot(0, index), row=0, attempt=0)
    assert (c.room(), c.outstanding) == (0, 8)
    c.drain(30)
    assert (c.room(), c.outstanding) == (8, 0)


def test_a_cancelled_group_never_comes_back_and_its_slot_can_be_used_again() -> None:
    for steps in range(0, 30, 3):
        c = collector(chaos=steps)
        c.assign(Slot(0, 0), row=0, attempt=0)
        c.assign(Slot(0, 1), row=1, attempt=0)
        early = [r for _ in range(steps) for r in c.step()]
        c.cancel(Slot(0, 0))
        c.assign(Slot(0, 0), row=0, attempt=1)
        late = c.drain(10)
        assert [r.group.attempt for r in late if r.group.slot == Slot(0, 0)] == [1]
        assert sum(r.group.slot == Slot(0, 1) for r in early + late) == 1
        signatures = [signature(r) for r in late if r.group.attempt == 1]
        fresh = collector()
        fresh.assign(Slot(0, 0), row=0, attempt=1)
        assert signatures == [signature(r) for r in fresh.drain(10)]
        c.assign(Slot(0, 2), row=2, attempt=0)
        c.step()
        c.cancel(Slot(0, 2))
        assert (c.outstanding, c.engine.running) == (0, 0)
        assert not any(c.step() for _ in range(20))


def test_drain_names_who_is_waited_for() -> None:
    class Silent(NearVerifier):
        def poll(self, block: float = 0.0) -> list:
            return []

    c = Collector(AnyOrderEngine(), Sums(), Silent(), RENDERER, OPTIONS, 0)
    c.assign(Slot(2, 5), row=0, attempt=0)
    with pytest.raises(StoppedByRule, match=r"no group ended for 0.1 s; slots still out: \(2, 5\)$"):
        c.drain(0.1)


def test_versions_are_those_that_sampled() -> None:
    engine = AnyOrderEngine(seed=3)
    engine.version, engine.incarnation = 4, 2
    c = Collector(engine, Sums(), NearVerifier(), RENDERER, OPTIONS, 7)
    for index in range(6):
        c.assign(Slot(0, index), row=0, attempt=0)
    with pytest.raises(ValueError, match="under way already"):
        c.assign(Slot(0, 0), row=0, attempt=0)
    results = []
    while c.outstanding:
        results += c.step()
        engine.version += 1  # a swap between any two steps
    rollouts = [r for done in results for r in done.group.rollouts]
    assert any(r.newest > r.oldest for r in rollouts), "rollouts span versions"
    assert all(r.oldest >= 4 and r.segments[0].incarnation == 2 for r in rollouts)


def test_truncated_responses_are_scored_unless_told_otherwise() -> None:
    seen = {}
    for truncated in ("score", "wrong"):
        c = collector(OPTIONS.model_copy(update={"truncated": truncated}), max_groups=40)
        for index in range(40):
            c.assign(Slot(0, index), row=0, attempt=0)
        rollouts = [r for done in c.drain(30) if isinstance(done, GroupDone) for r in done.group.rollouts]
        seen[truncated] = {r.outcome for r in rollouts if r.stop is StopReason.LENGTH}
    assert seen["score"] >= {Outcome.CORRECT}
    assert seen["wrong"] == {Outcome.WRONG}


def test_kept_sets_travel_with_the_tokens() -> None:
    c = collector(OPTIONS.model_copy(update={"top_p": 0.9}))
    c.assign(Slot(0, 0), row=0, attempt=0)
    for r in c.drain(10)[0].group.rollouts:
        s = r.segments[0]
        assert s.sampling.cut
        for i, token in enumerate(s.tokens[s.action_mask]):
            assert token in s.kept.ids[s.kept.indptr[i] : s.kept.indptr[i + 1]]

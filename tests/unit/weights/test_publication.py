"""The state machine of a publication: stage, compare, commit; who is named where it stalls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.records import Version
from trimtab.weights.publish import Publication, PublicationPhase, PublishError

GOOD, BAD = "a" * 32, "b" * 32
NAMES = ("w0", "w1", "w2")


def publication(*replicas: str) -> Publication:
    return Publication(Version(0, 5), GOOD, replicas, now=100.0, deadline=110.0)


def test_commits_are_due_once_and_only_when_every_digest_agrees() -> None:
    p = publication("w0", "w1")
    assert (p.phase, p.due()) == (PublicationPhase.STAGING, frozenset())
    p.staged("w0", GOOD, 0.2, 101.0)
    assert (p.phase, p.due()) == (PublicationPhase.STAGING, frozenset())
    p.staged("w1", GOOD, 0.3, 102.0)
    assert (p.phase, p.due(), p.due()) == (PublicationPhase.COMMITTING, {"w0", "w1"}, frozenset())
    p.committed("w1", 0.01, 103.0)
    assert p.under_way
    p.committed("w0", 0.02, 104.0)
    assert p.phase is PublicationPhase.DONE
    assert (p.times.stage, p.times.pause, p.times.commit) == (0.3, 0.02, 4.0)  # the slowest replica's; start to last commit


def test_a_commit_that_nobody_asked_for_does_not_count() -> None:
    p = publication("w0", "w1")
    p.committed("w0", 0.0, 101.0)
    p.staged("w0", GOOD, 0.0, 102.0)
    p.staged("w1", GOOD, 0.0, 102.0)
    p.committed("w1", 0.0, 103.0)
    assert p.phase is PublicationPhase.COMMITTING  # w0 has yet to answer the real one


def test_another_digest_aborts_and_no_commit_is_ever_due() -> None:
    p = publication("w0", "w1")
    p.staged("w0", GOOD, 0.0, 101.0)
    with pytest.raises(PublishError, match=r"version 5: w1 staged bytes with digest bbbbbbbbbbbb, the learner sent aaaaaaaaaaaa; the old"):
        p.staged("w1", BAD, 0.0, 102.0)
    p.staged("w1", GOOD, 0.0, 103.0)
    p.lost("w1", 104.0)
    assert (p.phase, p.due()) == (PublicationPhase.ABORTED, frozenset())


@pytest.mark.parametrize("committing", [False, True])
def test_the_deadline_names_who_is_missing(committing: bool) -> None:
    p = publication("w0", "w1", "w2")
    for name in NAMES if committing else ("w1",):
        p.staged(name, GOOD, 0.0, 101.0)
    if committing:
        p.committed("w1", 0.0, 102.0)
    p.expire(110.0)  # not yet
    step = "commit from w0, w2 within 10 s$" if committing else "stage from w0, w2 within 10 s; the old version serves on"
    with pytest.raises(PublishError, match=f"version 5: no answer to {step}"):
        p.expire(110.1)
    assert p.phase is PublicationPhase.ABORTED
    p.expire(999.0)  # said once


def test_a_lost_replica_leaves_the_quorum() -> None:
    p = publication("w0", "w1", "w2")
    p.staged("w0", GOOD, 0.0, 101.0)
    p.staged("w1", GOOD, 0.0, 101.0)
    p.lost("w2", 102.0)
    assert (p.phase, p.replicas) == (PublicationPhase.COMMITTING, {"w0", "w1"})
    p.lost("w1", 103.0)  # died before it could be told
    assert p.due() == {"w0"}
    p.committed("w0", 0.0, 104.0)
    assert p.phase is PublicationPhase.DONE


def test_without_replicas_it_is_done_at_once() -> None:
    assert publication().phase is PublicationPhase.DONE
    p = publication("w0")
    p.lost("w0", 101.0)
    assert p.phase is PublicationPhase.DONE


def test_a_newcomer_joins_while_the_others_stage_and_not_later() -> None:
    p = publication("w0")
    assert p.joined("w1")
    p.staged("w0", GOOD, 0.0, 101.0)
    assert p.due() == frozenset()
    p.staged("w1", GOOD, 0.0, 102.0)
    assert p.due() == {"w0", "w1"}
    assert not p.joined("w2")
    assert p.replicas == {"w0", "w1"}


EVENTS = st.tuples(st.sampled_from(["good", "bad", "committed", "lost", "joined"]), st.sampled_from(NAMES))


@given(st.lists(EVENTS, max_size=25), st.sets(st.sampled_from(NAMES)))
def test_whatever_comes_in_whatever_order(events: list[tuple[str, str]], start: set[str]) -> None:
    """Against a plain account of what each replica has said: commits are due to exactly those alive when the last good digest is in."""
    p = publication(*start)
    alive, staged, committed, told = set(start), set(), set(), set()
    aborted = False
    for what, name in events:
        phase = p.phase
        if what in ("good", "bad"):
            counts = phase is PublicationPhase.STAGING and name in alive
            if what == "bad" and counts:
                with pytest.raises(PublishError):
                    p.staged(name, BAD, 0.0, 101.0)
                aborted = True
            else:
                p.staged(name, GOOD if what == "good" else BAD, 0.0, 101.0)
                staged |= {name} if counts else set()
        elif what == "committed":
            p.committed(name, 0.0, 102.0)
            committed |= {name} if phase is PublicationPhase.COMMITTING and name in alive else set()
        elif what == "lost":
            p.lost(name, 103.0)
            alive.discard(name)
            staged.discard(name)
            committed.discard(name)
        elif p.joined(name):
            assert phase is PublicationPhase.STAGING
            alive.add(name)
        due = p.due()
        assert not due & told  # never told twice: by then it is too late to join again
        if due:
            assert not aborted
            assert due == alive <= staged
        told |= due
        if aborted:
            assert p.phase is PublicationPhase.ABORTED
        elif p.phase is PublicationPhase.DONE:
            assert alive <= committed
        else:
            assert not alive <= committed or not alive  # nobody waits for answers that are in

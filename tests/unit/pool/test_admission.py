import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.pool.admission import Bounds, Profile
from trimtab.pool.results import BlockedBy


def profile_of(charges):
    profile = Profile()
    for charge in charges:
        profile.add(charge)
    return profile


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6))))
def test_the_profile_counts(steps):
    """Against a list: O(<=v) is the number of charges of v or less."""
    profile, charges = Profile(), []
    for add, v in steps:
        if add:
            profile.add(v)
            charges.append(v)
        elif v in charges:
            profile.remove(v)
            charges.remove(v)
        else:
            with pytest.raises(ValueError, match=f"version {v}"):
                profile.remove(v)
    assert len(profile) == len(charges)
    assert [profile.at_most(v) for v in range(-1, 8)] == [sum(c <= v for c in charges) for v in range(-1, 8)]
    assert list(profile) == [(v, sum(c <= v for c in charges)) for v in sorted(set(charges))]


@given(st.lists(st.integers(0, 6)), st.integers(0, 6), st.integers(0, 8), st.integers(1, 3), st.integers(0, 4))
def test_room_and_debts_are_the_two_rules(charges, held, turn, size, lag):
    """Literally: admit only if afterwards O(<=v) <= B (v+k-turn+1) for all v >= h; n must leave so that O(<=v) <= B (v+k-turn)."""
    bounds, profile = Bounds(size, lag, lag), profile_of(charges)
    places = bounds.room(profile, held, turn)
    for n in range(1, 20):
        after = [*charges, *[held] * n]
        allowed = all(sum(c <= v for c in after) <= size * (v + lag - turn + 1) for v in range(held, 30))
        assert allowed == (n <= places)
    owed = dict(bounds.owed(profile, turn))
    for v in set(charges):
        assert owed.get(v, 0) == max(0, sum(c <= v for c in charges) - size * (v + lag - turn))
    needed = bounds.needed(profile, turn)
    holds = [all(sum(c <= v for c in charges) <= size * (v + k - turn + 1) for v in set(charges)) for k in range(-20, 40)]
    assert not charges or (holds[needed + 20] and not holds[needed + 19])


def test_why_a_worker_is_blocked():
    bounds = Bounds(2, 3, 3)
    assert bounds.block(profile_of([]), "w", 4, 7) is None
    behind = bounds.block(profile_of([]), "w1", 3, 7)
    assert behind.by is BlockedBy.BEHIND
    assert behind.why == "w1 holds version 3, the next batch (version 7) takes 4 or newer"
    full = bounds.block(profile_of([4, 5, 5, 5]), "w1", 4, 7)  # O(<=5) = 2 * (5 + 3 - 7 + 1) = 4
    assert full.by is BlockedBy.LAG
    assert full.why == "4 groups of version 5 or older fill the batches up to version 8"
    assert bounds.block(profile_of([4, 5, 5, 5]), "w1", 6, 7) is None


def test_without_a_lag_everything_has_room():
    bounds = Bounds(2, None, 1)
    profile = profile_of([0] * 100)
    assert bounds.room(profile, 0, 50) is None
    assert bounds.owed(profile, 50) == []
    assert bounds.block(profile, "w", 0, 50) is None
    assert bounds.limit(0, 50) is None
    assert bounds.most == 4

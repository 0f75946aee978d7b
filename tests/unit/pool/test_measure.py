"""What filters and selectors are shown of a group."""

import dataclasses

import numpy as np

from trimtab.control.protocol import Notes, Reject
from trimtab.methods.dynamic_sampling import DynamicSampling, DynamicSamplingOptions
from trimtab.pool import measure
from trimtab.records import Group, Rollout, Slot


def test_filters_see_the_verifiable_score_not_the_shaped_reward(make_group):
    """Invariant 10: shaping, applied or not, changes nothing a method of the pool decides on."""
    plain = make_group(Slot(0, 0), scores=[1.0, 0.0])

    def shaped(r: Rollout) -> Rollout:
        return dataclasses.replace(r, reward=r.score - 0.75 * r.member)

    group: Group = dataclasses.replace(plain, rollouts=tuple(map(shaped, plain.rollouts)))
    (a, b) = (measure.stats(measure.measure(g), 3, Notes()) for g in (plain, group))
    np.testing.assert_array_equal(b.scores_R, [1.0, 0.0])
    np.testing.assert_array_equal(a.scores_R, b.scores_R)
    assert measure.measure(group).score == measure.measure(plain).score == 0.5


def test_dynamic_sampling_decides_on_the_score_not_on_the_shaped_reward(make_group):
    """DAPO shapes long answers down: a solved group of different lengths is still solved, and a mixed one is still mixed."""
    method = DynamicSampling(DynamicSamplingOptions())
    for scores, rewards, want in (
        ([1.0, 1.0], [1.0, 0.5], Reject("constant score", "all its members have the same score")),
        ([1.0, 0.0], [0.0, 0.0], None),
    ):
        group = make_group(Slot(0, 0), scores=scores)
        rollouts = tuple(dataclasses.replace(r, reward=x) for r, x in zip(group.rollouts, rewards, strict=True))
        arrived = measure.measure(dataclasses.replace(group, rollouts=rollouts))
        assert method.accept(measure.stats(arrived, 0, Notes())) == want

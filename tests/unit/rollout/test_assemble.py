"""Token in, token out: what is trained is what was sampled."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.engines.protocol import Completion
from trimtab.records import Kept, Outcome, Sampling, StopReason
from trimtab.rollout import assemble
from trimtab.tasks.protocol import Verdict

ids = st.integers(0, 2**31 - 1)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    tokens = draw(st.lists(ids, min_size=1, max_size=20))
    n = len(tokens)
    sizes = draw(st.none() | st.lists(st.integers(1, 5), min_size=n, max_size=n))
    kept = None if sizes is None else Kept(indptr=np.cumsum([0, *sizes]), ids=np.arange(sum(sizes), dtype=np.int32))
    return Completion(
        id=draw(st.integers(0, 9)),
        tokens=np.array(tokens, np.int32),
        logp=np.array(draw(st.lists(st.floats(-100, 0, width=32), min_size=n, max_size=n)), np.float32),
        versions=np.sort(np.array(draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)), np.int32)),
        incarnation=draw(st.integers(0, 3)),
        stop=draw(st.sampled_from(StopReason)),
        started=1.0,
        finished=2.0,
        kept=kept,
    )


@given(prompt=st.lists(ids, min_size=1, max_size=20), completion=completions(), top_p=st.sampled_from([0.5, 1.0]))
def test_a_segment_is_the_prompt_and_exactly_the_sampled_tokens(prompt: list[int], completion: Completion, top_p: float) -> None:
    sampling = Sampling(temperature=0.7, top_p=top_p)
    s = assemble.segment(np.array(prompt, np.int32), completion, sampling, turn=2)
    p = len(prompt)
    assert s.tokens.tolist() == [*prompt, *completion.tokens.tolist()]
    assert s.action_mask.tolist() == [False] * p + [True] * len(completion.tokens)
    assert np.array_equal(s.behavior_logp[p:], completion.logp), "the recorded log-probs, to the bit"
    assert not s.behavior_logp[:p].any()
    assert np.array_equal(s.versions[p:], completion.versions)
    assert set(s.versions[:p].tolist()) == {-1}
    assert (s.incarnation, s.sampling, set(s.turn.tolist())) == (completion.incarnation, sampling, {2})
    assert s.kept is completion.kept, "kept sets are one an action token, as sampled"
    r = assemble.rollout(3, s, completion, Verdict(score=0.5, outcome=Outcome.WRONG), verified=3.0)
    assert (r.member, r.score, r.reward, r.stop, r.oldest) == (3, 0.5, None, completion.stop, int(completion.versions.min()))
    assert (r.timing.started, r.timing.finished, r.timing.verified) == (1.0, 2.0, 3.0)


@given(completion=completions(), outcomes=st.lists(st.sampled_from(Outcome), max_size=8), seed=st.randoms())
def test_errors_leave_and_nothing_else_does(completion: Completion, outcomes: list[Outcome], seed: object) -> None:
    s = assemble.segment(np.array([1], np.int32), completion, Sampling())
    rollouts = [assemble.rollout(i, s, completion, Verdict(score=0.0, outcome=o), 0.0) for i, o in enumerate(outcomes)]
    seed.shuffle(rollouts)
    kept = assemble.members(rollouts)
    assert [r.member for r in kept] == [i for i, o in enumerate(outcomes) if o is not Outcome.ERROR]


@given(completion=completions())
def test_what_no_scorer_needs_to_see(completion: Completion) -> None:
    scored = assemble.unseen(completion, "score")
    wrong = assemble.unseen(completion, "wrong")
    if completion.stop is StopReason.ABORTED:
        assert scored is not None
        assert scored.outcome is Outcome.ERROR
        assert math.isnan(scored.score), "an aborted response is no evidence against the policy"
    else:
        assert scored is None
        assert (wrong is not None) == (completion.stop is StopReason.LENGTH)
        assert wrong is None or (wrong.outcome, wrong.score) == (Outcome.WRONG, 0.0)

"""Counts of verdicts add up however they are split, and stay small whatever scorers say."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from support.rolling import AnyOrderEngine, NearVerifier, Sums
from support.tiny import tiny_tokenizer
from trimtab.records import Outcome, Slot
from trimtab.rollout.collector import Collector, GroupDone
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.verdict_counts import KINDS, OTHER, VerdictCounts

RENDERER = Renderer(tiny_tokenizer(), context=64, max_new_tokens=12, stop_ids=(2,))
verdict = st.tuples(st.sampled_from(list(Outcome)), st.sampled_from(["a", "b", "c"]))


@given(st.lists(st.lists(verdict, max_size=8), max_size=5))
def test_parts_add_up(parts: list[list[tuple[Outcome, str]]]) -> None:
    whole, total = VerdictCounts(), VerdictCounts()
    for part in parts:
        some = VerdictCounts()
        for outcome, detail in part:
            some.count(outcome, detail)
            whole.count(outcome, detail)
        total.add(some)
    assert total == whole
    assert whole.asked == sum(map(len, parts))
    failed = [(o, d) for part in parts for o, d in part if o in (Outcome.ERROR, Outcome.TIMEOUT)]
    assert whole.reasons == Counter(f"{o.value}: {d}" for o, d in failed)


def test_reasons_that_never_repeat_take_no_room() -> None:
    counts = VerdictCounts()
    for n in range(1000):
        counts.count(Outcome.ERROR, f"cannot read {n}")
    assert len(counts.reasons) == KINDS + 1
    assert counts.reasons[OTHER] == 1000 - KINDS
    assert counts.reasons.total() == 1000


def collected(min_group: int | None, groups: int = 60) -> tuple[VerdictCounts, list[object]]:
    """Groups of four from a verifier that raises on some responses and gives timeouts of score 0 on others."""
    options = RolloutOptions(group_size=4, prompts_per_batch=4, max_new_tokens=12, min_group=min_group)
    c = Collector(AnyOrderEngine(8, 0), Sums(), NearVerifier(0), RENDERER, options, 7, max_groups=groups)
    for index in range(groups):
        c.assign(Slot(0, index), row=index % 10, attempt=0)
    results = c.drain(60)
    counts = c.take_counts()
    assert c.take_counts() == VerdictCounts(), "taken once"
    return counts, results


def test_the_collector_counts_members_of_groups_that_are_lost() -> None:
    """Exactly the same errors, whether they leave their group or their group leaves with them."""
    (some, done), (none, failing) = collected(1), collected(None)
    assert some.outcomes == none.outcomes
    assert some.asked == 240
    assert some.outcomes["error"] > 0
    assert some.outcomes["timeout"] > 0
    whole = [r for r in failing if isinstance(r, GroupDone)]
    assert none.lost == 0
    assert none.retried == 4 * (60 - len(whole)) > 0
    assert some.lost == sum(4 - len(r.group.rollouts) for r in done if isinstance(r, GroupDone))
    assert some.lost <= some.outcomes["error"], "a timeout of score 0 stays"
    assert {reason.partition(" has")[0] for reason in some.reasons} >= {"error: RuntimeError: row 1"}

"""The columns of the view are those of the groups, whatever has come and gone."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.control.protocol import Notes, PoolView
from trimtab.pool.columns import WaitingColumns
from trimtab.pool.ledger import LiveSlot, SlotState
from trimtab.pool.measure import measure
from trimtab.records import Outcome, Slot


def literal(rows, now, want):
    """The view, one Python object a group."""
    out = {name: [] for name in PoolView.__dataclass_fields__}
    for i, (entry, m) in enumerate(rows):
        for name in ("mean_version", "finished", "first", "members", "oldest", "forgetting", "score", "accuracy", "length"):
            out[name].append(getattr(m, name))
        out["ids"].append(entry.serial)
        out["entered"].append(entry.entered)
        out["order"].append(entry.arrival)
        out["interrupted"].append(len(m.finished_M) > 0)
        for name in ("finished_M", "generation_M", "forgetting_M"):
            out[name].extend(getattr(m, name))
        out["row_M"].extend([i] * len(m.finished_M))
    return out


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 4), max_size=15), st.integers(0, 2**32))
def test_any_coming_and_going(make_group, steps, seed):
    draw = np.random.default_rng(seed)
    columns, rows, serial = WaitingColumns(), [], 0
    for step in steps:
        for _ in range(int(draw.integers(0, 20))):
            members = [draw.integers(0, 3, draw.integers(1, 4)).cumsum().tolist() for _ in range(3)]
            group = make_group(Slot(0, serial), members, outcomes=draw.choice([Outcome.WRONG, Outcome.CORRECT], 3).tolist())
            scored = [replace(r, forgetting=draw.choice([None, 0.0, 0.25])) for r in group.rollouts]
            entry = LiveSlot(Slot(0, serial), 0, serial * 7 % 1000, state=SlotState.WAITING, entered=9, arrival=serial)
            rows.append((entry, measure(replace(group, rollouts=tuple(scored)))))
            columns.add(*rows[-1])
            serial += 1
        for _ in range(step * min(1, len(rows))):
            if rows:
                columns.remove(rows.pop(int(draw.integers(len(rows))))[0])
        unknown = sorted(e.arrival for e, m in rows if np.isnan(m.forgetting_M).any())
        assert columns.unscored() == unknown
        if rows and step == 4:
            at = int(draw.integers(len(rows)))
            entry, m = rows[at]
            group = replace(m.group, rollouts=tuple(replace(r, forgetting=0.5) for r in m.group.rollouts))
            rows[at] = entry, measure(group)
            columns.rescored(*rows[at])
        view = columns.view(9, 2, Notes())
        for name, values in literal(rows, 9, 2).items():
            if name not in ("now", "batch_groups", "recorder"):
                np.testing.assert_array_equal(getattr(view, name), values, err_msg=name)
        kept = {name: getattr(view, name).copy() for name in ("ids", "forgetting_M", "order")}
        if rows:
            columns.remove(rows.pop()[0])
            columns.view(9, 2, Notes())
        for name, values in kept.items():  # a view is a copy
            np.testing.assert_array_equal(getattr(view, name), values)

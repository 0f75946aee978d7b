"""The control points of the loop and what a method sees there: a method of your own imports all it needs from here.

A **method** is one file: a class that inherits the base of each point it acts at and defines that base's function. Its class attributes
are read at load, before anything runs.

====================  ====================  ================================================================================
base                  function              what it is asked
====================  ====================  ================================================================================
``AcceptMethod``      ``accept(group)``     pool: may this finished group stay? -> ``None`` or :class:`Reject`
``SelectMethod``      ``select(pool, n)``   pool: which groups form this batch? -> :class:`Selection` or ``None`` (wait)
``ShapeMethod``       ``shape(view)``       additive token reward, tensor ``_N``
``WeighMethod``       ``weigh(view)``       :class:`Weighing`: how much does each token or sequence count? no advantages; detached
``CreditMethod``      ``credit(view, w)``   :class:`Credit`: was this better than expected? exactly one owner in a chain
``NormCreditMethod``  ``unit(view, w)``     ``q_N``: ``norm2_R = ||grad sum q_N current_N||^2`` per rollout, measured before credit
``ObjectiveMethod``   ``objective(v,w,a)``  ``loss_N``, differentiable in ``view.current_N`` and ``view.entropy_N``; one owner
``TermMethod``        ``objective(v,w,a)``  what is added to it
``SurveyMethod``      ``survey(view, a)``   sees the *whole* update before any weight or loss of it: batch statistics
``GradientMethod``    ``gradient(g)``       :class:`Keep` or :class:`Skip`: how much of the finished gradient is safe?
``StepMethod``        ``step(s)``           multiplier in (0, 1] or :class:`Refuse`
every one             ``after(result)``     called with what happened; the method decides what state to commit
====================  ====================  ================================================================================

``survey`` is for methods of the weigh and objective points and sees every micro-batch and rank. At weigh it is called before the
weights, with ``a`` = None (a weigh method never sees advantages); at objective after credit, with ``advantage_N``. What it finds (a
threshold, a mean) the method keeps on itself until the next call. It costs a scoring forward unless the update is one micro-batch.

``cadence = "batch"``: credit is assigned once a batch, before its first update, over all of its rollouts, with ``current_N`` =
``proximal_N``; every update (mini-batch, epoch) then uses its share of that advantage.

Configuration imports this module too, so torch is imported for type checking only.
"""

from __future__ import annotations

from trimtab.control.learner_side import (
    Credit,
    Gradient,
    GradientCopy,
    Keep,
    Notes,
    Recorder,
    Refuse,
    Skip,
    StepResult,
    StepView,
    Totals,
    View,
    Weighing,
)
from trimtab.control.method import (
    AcceptMethod,
    AligningMethod,
    Composition,
    CreditMethod,
    GradientMethod,
    Method,
    MethodOptions,
    NormCreditMethod,
    ObjectiveMethod,
    SelectMethod,
    ShapeMethod,
    State,
    StepMethod,
    SurveyMethod,
    TermMethod,
    WeighMethod,
)
from trimtab.control.points import Need, NormEstimator, Point, Rank, Ratio, Reduction, SequenceNorms, Side, Status
from trimtab.control.pool_side import GroupStats, PoolView, Reject, Rescoring, Selection
from trimtab.control.setting import Setting

__all__ = [
    "AcceptMethod",
    "AligningMethod",
    "Composition",
    "Credit",
    "CreditMethod",
    "Gradient",
    "GradientCopy",
    "GradientMethod",
    "GroupStats",
    "Keep",
    "Method",
    "MethodOptions",
    "Need",
    "NormCreditMethod",
    "NormEstimator",
    "Notes",
    "ObjectiveMethod",
    "Point",
    "PoolView",
    "Rank",
    "Ratio",
    "Recorder",
    "Reduction",
    "Refuse",
    "Reject",
    "Rescoring",
    "SelectMethod",
    "Selection",
    "SequenceNorms",
    "Setting",
    "ShapeMethod",
    "Side",
    "Skip",
    "State",
    "Status",
    "StepMethod",
    "StepResult",
    "StepView",
    "SurveyMethod",
    "TermMethod",
    "Totals",
    "View",
    "WeighMethod",
    "Weighing",
]

"""What fuzzing a method needs: its switches enumerated, a chain it is allowed in, hostile inputs at every control point.

All of it is derived from what the method declares (points, needs, options), so a new method is fuzzed as soon as its name is listed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from support.views import setting
from trimtab import functional as F
from trimtab.control.chain import Chain
from trimtab.control.protocol import GroupStats, Method, NormCreditMethod, Notes, Point, PoolView, StepView, Totals, View
from trimtab.control.registry import MethodEntry, build, method_class
from trimtab.learner.gradient import ActorGradient
from trimtab.records import Json, TrimtabError

# What may have to stand beside a method for the chain to be a sound one; the first list that is accepted is used.
COMPANY: tuple[tuple[str, ...], ...] = ((), ("seq_tis",), ("none",), ("tok_tis",), ("decoupled",))

Options = dict[str, Json]


# ------------------------------------------------------------------------------------------------------------------------ options


def switches(name: str) -> list[Options]:
    """The defaults, then every choice of every switch that has choices, one at a time; what the options themselves refuse is left out."""
    found: list[Options] = [{}]
    for field, info in method_class(name).Options.model_fields.items():
        for value in _choices(info.annotation):
            if value == info.default and isinstance(value, type(info.default)):
                continue
            try:
                build(name, {field: value})
            except TrimtabError:
                continue
            found.append({field: value})
    return found


def _choices(annotation: Any) -> list[Json]:
    if annotation is bool:
        return [False, True]
    if annotation is type(None):
        return [None]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return [value for part in get_args(annotation) for value in _choices(part)]
    return []


def entries(name: str, options: Options, beside: Sequence[str] = ()) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """A list of methods with this one in it that a chain accepts, and the setting it is accepted in; None where there is none."""
    reduction = {} if method_class(name).reduction is None else {"reduction": method_class(name).reduction}
    for company in COMPANY:
        listed = [{"name": other} for other in (*company, *beside)] + [{"name": name, **options}]
        try:
            Chain.resolve([MethodEntry.model_validate(item) for item in listed], setting(**reduction))
        except TrimtabError:
            continue
        return listed, reduction
    return None


def chain_of(name: str, options: Options, beside: Sequence[str] = ()) -> Chain | None:
    found = entries(name, options, beside)
    return None if found is None else Chain.resolve([MethodEntry.model_validate(item) for item in found[0]], setting(**found[1]))


# ------------------------------------------------------------------------------------------------------------------- learner side

LOG_RATIOS = (0.0, 1e-8, 0.3, -0.4, 2.0, -3.0, 60.0, -60.0, 800.0, -800.0, 1e4, -1e4)
REWARDS = (0.0, 1.0, 1.0, -1.0, 0.5, 1e-9, 1e6)
NORMS2 = (0.0, 1e-30, 0.4, 1.0, 30.0, 1e30)
VALUES = (0.0, 0.5, -1.0, 1e6, -1e6)
LENGTHS = (0, 1, 1, 2, 3, 5)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Up to 8 rollouts of 0 to 5 tokens in up to 4 groups, of which some may be empty here; every column present and finite.

    A few draws choose the extremes; what is between them comes from a generator of its own.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 8))
    lengths = rng.choice(LENGTHS, count)
    if not lengths.any():
        lengths[-1] = 1
    groups = draw(st.integers(1, 4))
    group_R = np.sort(rng.integers(0, groups, count))
    equal = draw(st.booleans())
    mild = draw(st.booleans())  # an ordinary batch among the hostile ones
    n = int(lengths.sum())
    rollout_N = np.repeat(np.arange(count), lengths)

    def off(spread: float = 0.3) -> np.ndarray:
        return spread * rng.normal(size=n) if mild else rng.choice(LOG_RATIOS, n)

    behavior = -rng.random(n) * 3
    current, proximal, reference = behavior + off(), behavior + off(), behavior + off()
    if draw(st.booleans()):
        proximal = current.copy()
    reward_R = np.full(count, rng.choice(REWARDS)) if equal else rng.choice(REWARDS, count)
    step_N = np.where(rng.random(n) < 0.2, rng.choice((1.0, -0.5), n), 0.0) if draw(st.booleans()) else None
    age = rng.integers(0, 200, n)
    return View(
        behavior_N=_f32(behavior),
        rollout_N=torch.from_numpy(rollout_N),
        turn_N=torch.from_numpy((np.arange(n) % 3 > 1).astype(np.int64)),
        age_N=torch.from_numpy(age),
        version_N=torch.from_numpy(200 - age),
        scale_N=_f32(1.0 / (count * np.repeat(lengths, lengths))),
        current_N=_f32(current),
        proximal_N=_f32(proximal),
        reference_N=_f32(reference),
        reward_N=None if step_N is None else _f32(step_N),
        values_N=_f32(rng.choice(VALUES, n)),
        entropy_N=_f32(rng.choice((0.0, 1e-6, 1.0, 11.0), n)),
        sum_p2_N=_f32(rng.choice((1e-5, 0.3, 1.0), n)),
        score_R=torch.from_numpy(reward_R),
        reward_R=torch.from_numpy(reward_R),
        length_R=torch.from_numpy(lengths.astype(np.int64)),
        group_R=torch.from_numpy(group_R),
        terminated_R=torch.from_numpy(rng.random(count) < 0.7),
        boot_R=torch.from_numpy(rng.choice(VALUES, count)),
        norm2_R=torch.from_numpy(rng.choice(NORMS2, count)),
        groups=groups,
        totals=Totals(
            rollouts=count,
            tokens=n,
            groups=groups,
            max_length=5,
            reward_std=float(F.advantages.unbiased_std(torch.from_numpy(reward_R))),
        ),
        mini_step=int(rng.integers(0, 3)),
        recorder=Notes(),
    )


def _f32(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


@dataclass(frozen=True, slots=True)
class Played:
    """The reduced loss and its derivatives."""

    loss: Tensor
    d_N: Tensor
    h_N: Tensor

    @property
    def finite(self) -> bool:
        return all(bool(torch.isfinite(x).all()) for x in (self.loss, self.d_N, self.h_N))


def play(whole: Chain, view: View) -> Played:
    """All learner-side points in the order in which an update of one micro-batch calls them."""
    chain = whole.learner()
    chain.survey(Point.WEIGH, view)
    w = chain.weigh(view)
    added = chain.shape(view)
    if added is not None:
        view.reward_N = added if view.reward_N is None else view.reward_N + added
        view.reward_R = view.reward_R + view.sum_R(added.double())
    owner = chain.credit_owner
    if isinstance(owner, NormCreditMethod):
        assert chain.unit(view, w).shape == view.behavior_N.shape
    kept = view.current_N
    if owner.cadence == "batch":
        view.current_N = view.proximal_N
    credit = chain.credit(view, w)
    view.current_N = kept
    if credit.advantage_N is not None:
        advantage_N = credit.advantage_N.to(view.behavior_N.dtype)
    else:
        assert credit.advantage_R is not None
        advantage_N = view.token(credit.advantage_R).to(view.behavior_N.dtype)
    chain.survey(Point.OBJECTIVE, view, advantage_N)
    assert view.entropy_N is not None
    leaf, entropy = view.current.detach().requires_grad_(), view.entropy_N.detach().requires_grad_()
    view.current_N, view.entropy_N = leaf, entropy
    loss_N = chain.objective(view, w, advantage_N)
    term = chain.term(view, w, advantage_N)
    loss = (view.scale_N * (loss_N if term is None else loss_N + term)).sum()
    d_N, h_N = torch.autograd.grad(loss, [leaf, entropy], allow_unused=True, materialize_grads=True)
    return Played(loss.detach(), d_N, h_N)


# ----------------------------------------------------------------------------------------------------------------------- pool side


@st.composite
def arrivals(draw: st.DrawFn) -> GroupStats:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, now = draw(st.integers(1, 6)), draw(st.integers(0, 300))
    oldest = int(rng.integers(0, now + 1))
    return GroupStats(
        scores_R=np.full(n, rng.choice(REWARDS)) if draw(st.booleans()) else rng.choice(REWARDS, n),
        lengths_R=rng.choice((0, 1, 7, 10_000), n),
        oldest=oldest,
        mean_version=(oldest + now) / 2,
        now=now,
        truncated_R=rng.random(n) < 0.3,
    )


@st.composite
def pools(draw: st.DrawFn) -> tuple[PoolView, int]:
    """Waiting groups and how many are wanted: fewer than, exactly and many more than wait; none at all."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    waiting, want = draw(st.sampled_from((0, 1, 3, 4, 5, 40))), draw(st.sampled_from((1, 4)))
    now = draw(st.integers(0, 300))
    entered = np.sort(rng.integers(0, now + 1, waiting))
    oldest = (entered * rng.random(waiting)).astype(np.int64)
    unknown = draw(st.sampled_from((0.0, 0.5, 1.0)))
    forgetting = np.where(rng.random(waiting) < unknown, np.nan, rng.choice((0.0, 1e-12, 0.2, 1e4), waiting))
    view = PoolView(
        ids=rng.permutation(1000)[:waiting].astype(np.int64),
        entered=entered,
        mean_version=(oldest + entered) / 2,
        finished=entered.astype(np.float64),
        first=np.where(oldest < entered, np.inf, entered),
        members=np.full(waiting, 1),
        oldest=oldest,
        order=np.arange(waiting),
        forgetting=forgetting,
        interrupted=oldest < entered,
        score=rng.choice(REWARDS, waiting).astype(np.float64),
        accuracy=rng.random(waiting),
        row_M=np.flatnonzero(oldest < entered),
        finished_M=entered[oldest < entered],
        generation_M=((entered - oldest) / 2)[oldest < entered],
        forgetting_M=forgetting[oldest < entered],
        length=rng.choice((0.0, 1.0, 1e4), waiting),
        now=now,
        batch_groups=want,
    )
    return view, want


# ---------------------------------------------------------------------------------------------------------- gradient and step side

ORDINARY = "ordinary"
GRADIENTS = (ORDINARY, "zero", "tiny", "huge", "parallel", "opposite", "inf", "nan", "one nan")


def gradient(kind: str, number: int, rng: np.random.Generator, recorder: Notes) -> ActorGradient:
    """A gradient of two parameter groups: random, 0, 1e-30, 1e30, the direction of every other one or its opposite, infinite, NaN."""
    parameters = [nn.Parameter(torch.zeros(size)) for size in (4, 3, 5)]
    scale = {"zero": 0.0, "tiny": 1e-30, "huge": 1e30, "inf": math.inf, "nan": math.nan, "opposite": -1.0}.get(kind, 1.0)
    for p in parameters:
        if kind in ("parallel", "opposite"):
            values = np.linspace(1, 2, p.numel())
        else:
            values = rng.normal(size=p.numel())
        p.grad = torch.zeros(p.numel()) if scale == 0 else _f32(values) * scale
    if kind == "one nan":
        assert parameters[1].grad is not None
        parameters[1].grad[1] = math.nan
    weights = torch.tensor([0.0, 1.0, 8.0]).double(), torch.tensor([0, 3, 5])
    return ActorGradient(parameters, number, 0, recorder, groups=["a", "a", "b"], weights=lambda: weights)


BROKEN = (math.nan, math.inf, -math.inf)


@st.composite
def steps(draw: st.DrawFn) -> StepView:
    values = st.sampled_from((0.0, 0.5, -2.0, 800.0, -800.0, 1e4, -1e4, *BROKEN))
    norm = draw(st.sampled_from((0.0, 1e-30, 1.0, 1e30, math.inf, math.nan)))
    return StepView(
        log_ratio_R=torch.tensor(draw(st.lists(values, max_size=6)), dtype=torch.float64),
        applied=draw(st.integers(0, 3)),
        batch_id=draw(st.integers(0, 3)),
        mini_step=draw(st.integers(0, 2)),
        lag_zero=draw(st.booleans()),
        recorder=Notes(),
        update_norm=lambda: norm,
    )


# -------------------------------------------------------------------------------------------------------------------------- state


def reloaded(method: Method) -> Method:
    """A new method of the same options that has loaded this one's state."""
    fresh = type(method)(method.options)
    fresh.load_state_dict(method.state_dict())
    return fresh


def same_state(a: Any, b: Any) -> bool:
    """Equal to the bit, NaN equal to NaN; tensors and plain values."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(itertools.starmap(same_state, zip(a, b, strict=True)))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def not_a_number(notes: Notes) -> Iterator[str]:
    """Metrics that are NaN."""
    for name, (numerator, denominator) in notes.metrics.items():
        if math.isnan(numerator) or math.isnan(denominator):
            yield name

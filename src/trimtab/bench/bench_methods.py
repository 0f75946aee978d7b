"""What each method costs: 1 + its CPU time over that of a plain update (uncorrected GRPO, norm clip), and the bytes it adds.

A method that only computes with what an update has anyway is charged the CPU time inside its calls. One that needs more (norms, values,
a reference model, vocabulary statistics) is charged a whole update with it minus one without, in turn within every round, so that
what else the machine does hits both. Medians over rounds. ``select`` and ``accept`` are charged once, or once a group, an update.

``copc`` is over ``async_ppo``: the critic is that one's. ``four`` is the larger of ``four/copc`` (pace, copc, gac, ess, over async_ppo) and
``four/vcpo`` (pace, vcpo, gac, zclip, over the plain update); ``four/plain`` is the former over the plain update, critic included.
``pace/select/10000`` is one selection among 10,000 waiting groups, 30 % of them interrupted: the least of the rounds.

``bytes_added``: kept between updates (state of the method, critic, reference). ``peak_added``: more tensor memory at the worst moment.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from trimtab.bench.bench_norms import GROUP, SIZES, Size, batch_of, model_of
from trimtab.bench.pool_cost import WAITING, pooled
from trimtab.bench.rows import BenchRow, spread
from trimtab.control.chain import Chain
from trimtab.control.protocol import Method, Need, NormCreditMethod, Reduction, Setting, Side
from trimtab.control.registry import MethodEntry, build, method_class, names
from trimtab.learner.options import LearnerOptions
from trimtab.learner.passes import PackedModel
from trimtab.learner.update import Learner
from trimtab.methods.catalogue import BUNDLES
from trimtab.records import Batch, Group, Json, Slot, TrimtabError

P = ParamSpec("P")
T = TypeVar("T")
Listed = Mapping[str, Json]

PLAIN, CRITIC = "plain", "async_ppo"
WORST = 10_000  # groups that wait in the case of its own
BATCHES = 4  # different ones, in turn
COMPANY: tuple[tuple[str, ...], ...] = ((), ("none",), ("seq_tis",), ("decoupled",))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow(BenchRow):
    bytes_added: int = 0
    peak_added: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """``methods`` over the case ``over``; ``whole``: whole updates are compared, else the time in calls of the methods ``charged``."""

    name: str
    methods: Sequence[Listed]
    over: str = PLAIN
    whole: bool = False
    charged: Sequence[str] = ()


@dataclass
class CpuMeter:
    """CPU seconds inside what it wraps."""

    seconds: float = 0.0

    def wrap(self, call: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return timed

    def watch(self, method: Method) -> None:
        for name in (*method.functions(), "after"):
            setattr(method, name, self.wrap(getattr(method, name)))


@dataclass
class MethodSide:
    """A learner under the methods of a case."""

    case: Case
    learner: Learner
    meter: CpuMeter
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)

    def update(self, batch: Batch) -> None:
        self.meter.seconds = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        self.learner.train(batch)
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        self.calls.append(self.meter.seconds)


def run(rounds: int = 50, size: Size = SIZES[0], only: Sequence[str] = ()) -> list[MethodRow]:
    """One row a method, then the combinations; ``only`` restricts them by name."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(rounds, size, only)
    finally:
        torch.set_num_threads(threads)


def cases() -> list[Case]:
    """Every registered method but those of the pool, then the combinations."""
    found = []
    for name in names():
        if method_class(name).sides() == {Side.POOL}:
            continue
        listed = _listed(name)
        method = build(name, {})
        whole = bool(method.needs & ~Need.PROXIMAL) or isinstance(method, NormCreditMethod)
        found.append(Case(name, listed, whole=whole, charged=[name]))
    gac, zclip, ess = {"name": "gac"}, {"name": "zclip"}, {"name": "ess"}
    return [
        Case(PLAIN, [{"name": "none"}, {"name": "grpo"}], whole=True),
        Case(CRITIC, [{"name": "async_ppo"}], whole=True, charged=_members(CRITIC)),
        *found,
        Case("copc", [{"name": "copc"}], over=CRITIC, charged=_members("copc")),
        Case("vcpo", [{"name": "vcpo"}], whole=True),
        Case("sketch", [{"name": "seq_tis"}, {"name": "opob", "norms": "sketch"}], whole=True),
        Case("four/copc", [{"name": "copc"}, gac, ess], over=CRITIC, whole=True),
        Case("four/vcpo", [{"name": "vcpo"}, gac, zclip], whole=True),
        Case("four/plain", [{"name": "copc"}, gac, ess], whole=True),
    ]


def _members(bundle: str) -> list[str]:
    return [str(item["name"]) for item in BUNDLES[bundle]]


def _listed(name: str) -> list[Listed]:
    """The method in the smallest company in which a chain accepts it."""
    for company in COMPANY:
        listed: list[Listed] = [*({"name": other} for other in company), {"name": name}]
        try:
            _chain(listed)
        except TrimtabError:
            continue
        return listed
    raise TrimtabError.field("bench.methods", name, "no list with it is accepted; give it a case of its own")


def _chain(methods: Sequence[Listed]) -> Chain:
    entries = [MethodEntry.model_validate(item) for item in methods]
    insists = [method_class(str(item["name"])).reduction for item in methods if str(item["name"]) not in BUNDLES]
    reduction = next((r for r in insists if r is not None), Reduction.SEQ_MEAN_TOKEN_MEAN)
    return Chain.resolve(entries, Setting(group_size=GROUP, asynchronous=True, cut=False, reports_kept=True, reduction=reduction))


# ----------------------------------------------------------------------------------------------------------------------- measuring


def _measure(rounds: int, size: Size, only: Sequence[str]) -> list[MethodRow]:
    wanted = [case for case in cases() if not only or case.name in {*only, PLAIN, CRITIC}]
    batches = [_batch(size, number) for number in range(BATCHES)]
    sides = {case.name: _side(case, size) for case in wanted}
    for i in range(rounds + 2):  # the first two warm caches and buffers
        for side in sides.values():
            side.update(batches[i % BATCHES])
    waiting = size.rollouts // GROUP * WAITING
    pool = {name: pooled(name, waiting, rounds) for name in names() if method_class(name).sides() == {Side.POOL}}
    peaks = {name: peak_bytes(side.learner, batches[0]) for name, side in sides.items()}
    rows = []
    for name, side in sides.items():
        base = sides[side.case.over]
        selecting = statistics.median(pool["pace"]) if name.startswith("four/") else 0.0
        rows.append(_row(side, base, selecting, kept_bytes(side.learner) - kept_bytes(base.learner), peaks[name] - peaks[base.case.name]))
    four = [row for row in rows if row.case in ("four/copc", "four/vcpo")]
    rows += [dataclasses.replace(max(four, key=lambda row: row.ratio), case="four")] if four else []
    step = statistics.median(sides[PLAIN].cpu[2:])
    for name, seconds in pool.items():
        rows.append(_pool_row(name, statistics.median(seconds), step, spread(seconds) / step))
    rows.append(_pool_row(f"pace/select/{WORST}", min(pooled("pace", WORST, rounds)), step))
    return [row for row in rows if not only or row.case in only]


def _row(side: MethodSide, base: MethodSide, selecting: float, kept: int, peak: int) -> MethodRow:
    cpu, calls, base_cpu, base_calls = (np.array(x[2:]) for x in (side.cpu, side.calls, base.cpu, base.calls))
    added = cpu - base_cpu + selecting if side.case.whole else calls - base_calls
    ratios = (1 + added / base_cpu).tolist()
    return MethodRow(
        case=side.case.name,
        cpu_s=statistics.median(cpu if side.case.whole else added),
        wall_s=statistics.median(side.wall[2:] if side.case.whole else added),
        ratio=statistics.median(ratios),
        spread=spread(ratios),
        bytes_added=kept,
        peak_added=peak,
    )


def _pool_row(case: str, seconds: float, step: float, spread: float = 0.0) -> MethodRow:
    return MethodRow(case=case, cpu_s=seconds, wall_s=seconds, ratio=1 + seconds / step, spread=spread)


def _side(case: Case, size: Size) -> MethodSide:
    chain, meter = _chain(case.methods), CpuMeter()
    for method in chain.methods:
        if method.name in case.charged:
            meter.watch(method)
    options = LearnerOptions.model_validate({"optimizer": {"lr": 1e-6}, "reduction": chain.setting.reduction})
    reference = PackedModel(model_of(size)) if Need.REFERENCE in chain.needs else None
    model = PackedModel(model_of(size), estimator=chain.norm_estimator)
    learner = Learner(model, chain.learner(), options, max_length=size.tokens, reference=reference)
    return MethodSide(case, learner, meter)


def _batch(size: Size, number: int) -> Batch:
    """Rewards are drawn anew for each number, so that gradients of consecutive batches are not one gradient; every group is mixed."""
    rng = np.random.default_rng(number)
    rollouts, _ = batch_of(size)
    scored = [dataclasses.replace(r, score=float(rng.integers(2) if r.member > 1 else r.member)) for r in rollouts]
    parts = [tuple(scored[i : i + GROUP]) for i in range(0, len(scored), GROUP)]
    groups = [Group(slot=Slot(0, i), prompt=i, attempt=0, seed=0, task="t", source="t", rollouts=part) for i, part in enumerate(parts)]
    return Batch(number=number, version=3, groups=tuple(groups))


# -------------------------------------------------------------------------------------------------------------------------- memory


def kept_bytes(learner: Learner) -> int:
    """Tensors and numbers that learner and methods keep between updates, the frozen reference model included."""
    reference = learner._tools.reference
    frozen = 0 if reference is None else sum(p.nbytes for p in reference.parameters())
    return _bytes(learner.state_dict()) + _bytes(learner.chain.state_dict()) + frozen


def _bytes(tree: object) -> int:
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, Mapping):
        return sum(_bytes(x) for x in tree.values())
    if isinstance(tree, list | tuple):
        return sum(_bytes(x) for x in tree)
    return 8 if isinstance(tree, int | float) else 0


def peak_bytes(learner: Learner, batch: Batch) -> int:
    """Most tensor memory that one update holds beyond what it found."""
    gc.collect()
    gc.disable()  # what it frees would be counted
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            learner.train(batch)
    finally:
        gc.enable()
    assert profiled.profiler is not None
    events = [(e.start_ns(), e.nbytes()) for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    return int(np.cumsum([size for _, size in sorted(events)]).max(initial=0))

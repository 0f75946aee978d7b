"""A chain: the methods of a run, validated together; its two sides call them in loop order.

Composition is configuration: weights multiply, masks intersect, multipliers multiply, any refusal wins. Credit and objective
have exactly one owner. A later entry replaces a *bundle's* owner, mask or weight for the same ratio; two that the user wrote
are refused at load. What a chain lacks it gets, and says so: ``grpo`` credit, ``linear`` objective, ``norm_clip(1.0)``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.control.clash import clash
from trimtab.control.learner_chain import LearnerChain
from trimtab.control.pool_chain import PoolChain
from trimtab.control.protocol import GradientMethod, Method, Point, Rank, Ratio, Rescoring, SelectMethod, Setting, Side
from trimtab.control.registry import ChainMember, MethodEntry, build, expand, written
from trimtab.control.roster import Roster
from trimtab.records import Json, TrimtabError

# Correcting either makes stale rollouts usable; current/proximal alone covers only the updates within a batch.
_STALE = {Ratio.CURRENT_BEHAVIOR, Ratio.PROXIMAL_BEHAVIOR}

_DEFAULTS: tuple[tuple[Point, str, dict[str, Json]], ...] = (
    (Point.CREDIT, "grpo", {}),
    (Point.OBJECTIVE, "linear", {}),
    (Point.GRADIENT, "norm_clip", {"max_norm": 1.0}),
)


@dataclass(slots=True)
class Chain(Roster):
    """The validated methods of a run. ``said`` lists what was added or replaced, in words. :meth:`pool` and :meth:`learner` are who
    calls them."""

    setting: Setting
    said: list[str] = field(default_factory=list)

    @staticmethod
    def resolve(entries: Sequence[MethodEntry], setting: Setting) -> Chain:
        """Expand bundles, settle owners, add what is missing, and let every method check the whole."""
        if not entries and setting.asynchronous:
            raise TrimtabError.field(
                "methods", [], 'an asynchronous run needs a correction; write ["vcpo"], or ["none"] to consent to none'
            )
        chain = Chain(members=[], setting=setting)
        for name, options, origin in expand(entries):
            chain._add(ChainMember(build(name, options), origin))
        for point, name, options in _DEFAULTS:
            if not any(_fills(m, point) for m in chain.methods):
                chain.members.append(ChainMember(build(name, options), "default"))
                lacking = "gradient clip" if point is Point.GRADIENT else f"{point.value} method"
                chain.say(f"no {lacking}: added {written(name, options)}")
        chain._order()
        chain._check()
        return chain

    def _add(self, new: ChainMember) -> None:
        for old in list(self.members):
            why = clash(old.method, new.method)
            if not why:
                continue
            if old.origin == "" or old.origin == new.origin:
                after = f", or write {old.method.name} after {new.origin} to replace its {new.method.name}" if new.origin else ""
                raise TrimtabError.field("methods", [old.method.name, new.method.name], f"both {why}; keep one of them{after}")
            self.members.remove(old)
            self.say(f"{new.method.name} replaces {old.method.name} of {old.origin}: both {why}")
        self.members.append(new)

    def _order(self) -> None:
        """Loop order: by first point, at the gradient point by rank, else as listed (sort is stable)."""
        points = list(Point)

        def place(member: ChainMember) -> tuple[int, int]:
            method = member.method
            first = method.points()[0]
            return points.index(first), method.rank if first is Point.GRADIENT and isinstance(method, GradientMethod) else 0

        self.members.sort(key=place)

    def _check(self) -> None:
        s = self.setting
        corrected = {ratio for m in self.methods for ratio in m.corrects}
        if s.asynchronous and not corrected & _STALE and not any(m.uncorrected for m in self.methods):
            listed = [m.method.name for m in self.members if m.origin != "default"]
            raise TrimtabError.field(
                "methods", listed, 'nothing corrects for stale rollouts; add a weigh method such as "seq_tis", or "none" to consent to none'
            )
        readers = [m.name for m in self.methods if m.corrects or m.reads_ratios]
        if s.cut and not s.reports_kept and readers:
            raise TrimtabError(
                f"rollout.top_p < 1 or rollout.top_k > 0 cuts the distribution and this engine cannot report the kept sets, so the ratios "
                f"of {', '.join(readers)} would be wrong; use top_p = 1 and top_k = 0, or an engine that reports kept sets"
            )
        for m in self.methods:
            if s.group_size < m.min_group:
                raise TrimtabError.field(
                    "rollout.group_size", s.group_size, f"{m.name} compares the members of a group and needs at least {m.min_group}"
                )
            if m.reduction is not None and m.reduction != s.reduction:
                raise TrimtabError.field("learner.reduction", s.reduction.value, f"{m.name} needs {m.reduction.value}")
            m.check(self)

    # ------------------------------------------------------------------------------------------------ facts
    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    @property
    def calibration(self) -> int:
        """Batches to run at lag 0 before admission opens."""
        return max((m.calibration for m in self.methods), default=0)

    @property
    def rescoring(self) -> Rescoring | None:
        """Where the forgetting scores that a method reads come from, if one does."""
        return next((m.rescoring for m in self.acting(SelectMethod) if m.rescoring is not None), None)

    def describe(self) -> list[dict[str, Json]]:
        """The resolved list, as ``config show`` prints it and ``methods`` accepts it."""
        return [{"name": m.name, **m.options.model_dump(mode="json")} for m in self.methods]

    # ------------------------------------------------------------------------------------------------ sides
    def pool(self) -> PoolChain:
        """The side that acts on finished groups. A method of both sides is there as a copy: no thread sees what the other's keeps."""
        mine = [m for m in self.members if Side.POOL in m.method.sides()]
        return PoolChain([copy.deepcopy(m) if len(m.method.sides()) > 1 else m for m in mine])

    def learner(self) -> LearnerChain:
        """The side that acts on updates."""
        return LearnerChain([m for m in self.members if Side.LEARNER in m.method.sides()], calibration=self.calibration)


def _fills(m: Method, point: Point) -> bool:
    """Is this method what the chain would otherwise get by default?"""
    return isinstance(m, GradientMethod) and m.rank is Rank.CLIP if point is Point.GRADIENT else point in m.owns()

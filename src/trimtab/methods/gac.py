"""GAC: Gradient Alignment Control (Xu et al. 2026, arXiv 2603.01501).

Published: under asynchrony the cosine of *consecutive policy gradients* stays high, where synchronous training has it near zero;
aligned steps are correlated steps and overshoot. The remedy acts by regimes of that cosine, ``c_t = <g_t, p> / (||g_t|| ||p||)``:

    keep      c_t <= c_low (every negative one)   g
    project   c_low < c_t <= c_high               g - (1 - b) (<g, p> / ||p||^2) p
    skip      c_t > c_high                        no step: nothing of the optimizer moves

Our reading, because the paper's text was not available: both thresholds and their defaults, the strength b, what p is, the guard
against skipping forever, and the calibration (``trimtab calibrate gac``). ``full``: b = 0, the result is orthogonal to p. ``cone``:
``b = (c_low / c) sqrt((1 - c^2) / (1 - c_low^2))``, the result has cosine c_low with p. ``scale``: b is a constant. Descent is kept in
every case: ``<g~, g> = ||g||^2 (1 - (1 - b) c^2) >= 0``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field, model_validator

from trimtab import functional as F
from trimtab.control.protocol import AligningMethod, Gradient, GradientCopy, Keep, MethodOptions, Rank, Skip, State, Status, StepResult
from trimtab.records import Decision

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-12  # a gradient of at most this norm has no direction
WHOLE = "all"  # the one part of granularity "global"


class GACOptions(MethodOptions):
    c_low: float = Field(0.10, ge=0, lt=1, description="largest cosine that is left alone")
    c_high: float = Field(0.60, gt=0, le=1, description="largest cosine that is still stepped; 1: never skip")
    mode: Literal["full", "cone", "scale"] = Field("full", description="how much of the aligned part goes")
    retain: float = Field(0.5, ge=0, lt=1, description="scale: the share of the aligned part that stays")
    reference: Literal["raw", "applied"] = Field("raw", description="p: the last gradient as it came, or as it was last applied")
    granularity: Literal["global", "param_group"] = Field("global", description="one cosine, or one a layer (skips go by the global one)")
    boundary: Literal["update", "batch"] = Field("update", description="batch: only the first update of a rollout batch is controlled")
    copy_dtype: Literal["fp32", "bf16"] = Field("fp32", description="of the kept gradient; fp32: as the learner's gradients are")
    max_consecutive_skips: int = Field(2, ge=0, description="after so many, a skip becomes a full projection")
    warmup: int = Field(0, ge=0, description="applied updates that are only measured")
    monitor: bool = Field(False, description="measure only")

    @model_validator(mode="after")
    def _ordered(self) -> GACOptions:
        if self.c_low >= self.c_high:
            raise ValueError(f"c_low = {self.c_low} must be below c_high = {self.c_high}")
        return self


class GAC(AligningMethod):
    """Keep, project or skip by the cosine with the previous gradient; before any clip, on the whole actor's gradient.

    "Previous" is the previous optimizer update: with several updates per batch most pairs share rollouts and are aligned for that
    reason alone (``gac/cosine_within`` beside ``gac/cosine_across``); ``boundary = "batch"`` compares across batches only. A
    parameter group is a layer, the embedding, or the rest. The learning-rate scale of ``ess`` does not change c.
    """

    name = "gac"
    source = "GAC (arXiv 2603.01501): regimes of the cosine and one-sided projection; thresholds, strength and guard: our reading"
    status = Status.OUR_READING
    summary = "project out of the gradient, or skip, what repeats the previous one"
    formula = "c = <g,p>/(|g||p|): keep if c <= c_low, g - (1-b)(<g,p>/|p|^2) p if c <= c_high, else skip"
    cost = "one gradient copy (two while a step is decided); two dot products, at most one axpy"
    fails = "Where the signal-to-noise ratio is high, even on-policy gradients are aligned, and it cuts the step by about that share."
    Options = GACOptions
    options: GACOptions
    rank = Rank.ALIGN

    def __init__(self, options: GACOptions) -> None:
        super().__init__(options)
        self._reference: dict[str, GradientCopy] = {}  # by part
        self._saved: dict[str, Sequence[Tensor]] = {}  # of a checkpoint, until the first gradient shows where they belong
        self._batch = -1  # that the reference is of
        self._pending: tuple[dict[str, GradientCopy], int] | None = None
        self._skips = 0
        self._applied = 0
        self.cosine: float | None = None  # of the update under way with the reference, where there is one

    # ------------------------------------------------------------------------------------------------ the gradient
    def gradient(self, g: Gradient) -> Keep | Skip:
        if not TINY < g.norm() < math.inf:  # no direction, or not the learner's any more: the reference stays
            return Keep()
        parts: Mapping[str, Gradient] = {WHOLE: g} if self.options.granularity == "global" else g.split()
        self._restore(parts)
        raw = self._copy(parts) if self.options.reference == "raw" else {}
        verdict = self._control(g, parts)
        if raw:
            self._reference, self._batch = raw, g.batch_id
        elif isinstance(verdict, Keep):
            self._pending = self._copy(parts), g.batch_id
        return verdict

    def _control(self, g: Gradient, parts: Mapping[str, Gradient]) -> Keep | Skip:
        o, norm = self.options, g.norm()
        p2 = sum(p.norm2 for p in self._reference.values())
        if not TINY**2 < p2 < math.inf:
            return Keep()
        dots = {name: part.dot(self._reference[name]) for name, part in parts.items()}
        c = F.gradients.cosine(sum(dots.values()), norm, math.sqrt(p2))
        self.cosine = c
        within = g.batch_id == self._batch
        g.recorder.metric("gac/cosine", c)
        g.recorder.metric("gac/cosine_within" if within else "gac/cosine_across", c)
        if o.monitor or self._applied < o.warmup or (within and o.boundary == "batch"):
            return Keep()
        if c > o.c_high and self._skips < o.max_consecutive_skips:
            self._skips += 1
            self._tell(g, skipped=1.0)
            return Skip(f"cosine {c:.3g} > {o.c_high:g}")
        removed = sum(self._project(part, self._reference[name], dots[name], guarded=c > o.c_high) for name, part in parts.items())
        ratio = g.norm() / norm
        self._tell(g, projected=float(removed > 0.0), norm_ratio=ratio, removed=removed / norm**2)
        if removed > 0.0:
            why = f"cosine {c:.3g}" + (f" > {o.c_high:g} after {self._skips} skips" if c > o.c_high else "")
            g.recorder.note(Decision(method=self.name, point="gradient", what="projected", amount=ratio, why=why))
        return Keep()

    def _project(self, part: Gradient, p: GradientCopy, dot: float, *, guarded: bool) -> float:
        """Take the aligned part out where the cosine asks for it; how much of the squared norm went."""
        o, norm = self.options, part.norm()
        c = F.gradients.cosine(dot, norm, math.sqrt(p.norm2))
        if not c > o.c_low:
            return 0.0
        b = 0.0
        if o.mode == "cone" and not guarded:
            b = o.c_low / c * math.sqrt((1 - c**2) / (1 - o.c_low**2))
        elif o.mode == "scale" and not guarded:
            b = o.retain
        part.axpy((b - 1) * dot / p.norm2, p)
        return norm**2 * c**2 * (1 - b**2)

    def _tell(self, g: Gradient, *, skipped: float = 0.0, projected: float = 0.0, norm_ratio: float = 1.0, removed: float = 0.0) -> None:
        """The regime's rates; ``gac/removed``: the share of the squared norm that was projected out."""
        g.recorder.metric("gac/skipped", skipped)
        g.recorder.metric("gac/projected", projected)
        g.recorder.metric("gac/consecutive_skips", self._skips)
        if not skipped:
            g.recorder.metric("gac/norm_ratio", norm_ratio)
            g.recorder.metric("gac/removed", removed)

    def _copy(self, parts: Mapping[str, Gradient]) -> dict[str, GradientCopy]:
        dtype = F.gradients.BF16 if self.options.copy_dtype == "bf16" else None
        return {name: part.copy(dtype) for name, part in parts.items()}

    def after(self, result: StepResult) -> None:
        pending, self._pending, self.cosine = self._pending, None, None
        if result.applied:
            self._skips = 0
            self._applied += 1
            if pending is not None:
                self._reference, self._batch = pending

    # ------------------------------------------------------------------------------------------------ durable state
    def _restore(self, parts: Mapping[str, Gradient]) -> None:
        """Take the checkpoint's reference up; one that does not fit the parameters any more is dropped: the next step is a first one."""
        saved, self._saved = self._saved, {}
        found = {name: part.restored(saved[name]) for name, part in parts.items() if name in saved}
        if saved and found.keys() == parts.keys() == saved.keys():
            whole = {name: copy for name, copy in found.items() if copy is not None}
            self._reference = whole if len(whole) == len(parts) else {}

    def state_dict(self) -> State:
        kept = {name: copy.state() for name, copy in self._reference.items()} or self._saved
        tensors = {f"reference/{name}": list(tensors) for name, tensors in kept.items()}
        return {"batch": self._batch, "skips": self._skips, "applied": self._applied, **tensors}

    def load_state_dict(self, state: State) -> None:
        self._batch, self._skips, self._applied = (int(str(state[key])) for key in ("batch", "skips", "applied"))
        self._reference, self._pending = {}, None
        tensors = {key.removeprefix("reference/"): value for key, value in state.items() if key.startswith("reference/")}
        self._saved = cast("dict[str, Sequence[Tensor]]", tensors)

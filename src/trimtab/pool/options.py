"""What a run may choose about its pool."""

import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trimtab.plugins import named
from trimtab.records import TrimtabError

LAG = "lag"
ADMISSIONS = "trimtab.admissions"  # entry points


class LagOptions(BaseModel):
    """How stale a trained token may be, and how far the samplers may run ahead: the pool's part of ``[runtime]``.

    ``max_lag`` bounds the age of every trained token, in versions; ``depth`` how far ahead the samplers may be, in batches:
    at most ``depth + 1`` batches of groups are outstanding (the one in training counts). ``depth = 0`` makes progress under
    every ``max_lag``: it is the synchronous loop. More depth than lag cannot be used: the lag alone keeps the outstanding
    groups within ``max_lag + 1`` batches.

    Raises :class:`TrimtabError` for a value that cannot work.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_lag: int | None = Field(4, description='oldest that a trained token may be, in versions; "none": no bound on the age, only depth')
    depth: int | None = Field(None, description="batches that samplers may run ahead; default: max_lag")
    admission: str = Field(LAG, description='what holds max_lag: "lag" counts outstanding groups; others are rules that a plug-in brings')
    order: Literal["fifo", "ready"] = Field(
        "ready",
        description="which groups form a batch: by first token, waiting for the slow (fifo), or as they arrive, as far as max_lag allows",
    )
    max_fruitless: int = Field(100, description="batches' worth of groups dropped or failed in a row, after which the run stops")
    straggler_deadline_s: float = Field(
        600.0, description="seconds after which a group that was given to a worker and is not back has failed"
    )

    @field_validator("max_lag", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        return None if value == "none" else value  # TOML has no null

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_lag is not None and self.max_lag < 0:
            raise TrimtabError.field("runtime.max_lag", self.max_lag, "an age is at least 0 (synchronous); give 0 or more, or 'none'")
        if self.depth is not None and self.depth < 0:
            raise TrimtabError.field("runtime.depth", self.depth, "give 0 (samplers never run ahead) or more batches")
        if self.admission != LAG:
            named(ADMISSIONS, "runtime.admission", self.admission, Admission, builtin=(LAG,)).check(self)
        if not self._bounded():
            raise TrimtabError.field("runtime.depth", self.depth, "with max_lag = none only depth bounds the pool; give depth")
        if self.max_lag is not None and self.depth is not None and self.depth > self.max_lag:
            raise TrimtabError.field(
                "runtime.depth",
                self.depth,
                f"max_lag = {self.max_lag} leaves no use for more; lower depth or raise max_lag",
            )
        if self.max_fruitless < 1:
            raise TrimtabError.field(
                "runtime.max_fruitless", self.max_fruitless, "a run that may drop nothing cannot filter; give 1 or more"
            )
        if not (self.straggler_deadline_s > 0 and math.isfinite(self.straggler_deadline_s)):
            raise TrimtabError.field(
                "runtime.straggler_deadline_s", self.straggler_deadline_s, "nothing waits forever; give a finite number of seconds above 0"
            )
        return self

    def _bounded(self) -> bool:
        return self.max_lag is not None or self.depth is not None

    @property
    def batches_ahead(self) -> int:
        """``depth``, or its default ``max_lag``."""
        ahead = self.max_lag if self.depth is None else self.depth
        assert ahead is not None  # _check refuses None for both
        return ahead

    def require_depth(self, needed: int, policy: str) -> None:
        """Refuse a selection policy that never sees as many groups as it acts on: it needs ``depth >= needed``."""
        if self.batches_ahead < needed:
            raise TrimtabError.field(
                "runtime.depth",
                self.batches_ahead,
                f"{policy} needs {needed} or more batches ahead; raise depth",
            )


class Admission:
    """What options know of a rule of admission; the whole of it is :class:`trimtab.pool.rules.Rule`."""

    @classmethod
    def check(cls, options: LagOptions) -> None:
        """TrimtabError where the rule cannot work under these options."""


class PoolOptions(LagOptions):
    """All that a pool is built with: two fields of ``[rollout]``, what makes a group and how often it is tried, and lockstep's surplus.

    ``surplus``: every batch brings ``ceil(batch_groups (1 + surplus))`` groups, whatever becomes of them. It takes the place of depth,
    and of the plan's end: what is left over at the end is dropped.
    """

    min_group: int | None = None  # fewest valid rollouts of a group; default: all of them
    max_attempts: int = 3  # failed attempts after which a prompt is set aside for this epoch
    surplus: float = 0.0

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.min_group is not None and self.min_group < 1:
            raise TrimtabError.field("rollout.min_group", self.min_group, "a group has at least 1 rollout; give 1 or more")
        if self.max_attempts < 1:
            raise TrimtabError.field("rollout.max_attempts", self.max_attempts, "every prompt is tried at least once; give 1 or more")
        return self

    def _bounded(self) -> bool:
        return self.surplus > 0 or super()._bounded()

"""A fixed limit on the age of what is trained on, enforced by dropping."""

from __future__ import annotations

from pydantic import Field

from trimtab.control.protocol import AcceptMethod, GroupStats, MethodOptions, PoolView, Reject, Selection, SelectMethod, Status


class MaxAgeOptions(MethodOptions):
    max_age: int = Field(4, ge=0, description="oldest token kept, in versions (SkyRL 4, prime-rl 8, NeMo-RL 1, TRL's asynchronous GRPO 4)")


class MaxAge(AcceptMethod, SelectMethod):
    """Drops a group, on arrival or while it waits, if its oldest token is more than ``max_age`` versions old; the rest first come,
    first served.

    The bound of ``runtime.max_lag`` holds without dropping, because admission foresees it; this is what systems do that let samplers
    run free: use it with ``max_lag = "none"`` (a larger one may expire a group first). Versions count publications, one a batch
    however many updates it has.
    """

    name = "max_age"
    source = "SkyRL max_staleness_steps, prime-rl max_off_policy_steps, NeMo-RL max_trajectory_age_steps, TRL max_staleness"
    status = Status.PUBLISHED
    summary = "drops groups older than a limit"
    formula = "drop if V - min_t v_t > max_age"
    fails = "Drops what takes long, hence what is hard: training reward rises without learning."
    cost = "O(waiting groups) at every batch; the dropped sampling"
    Options = MaxAgeOptions
    options: MaxAgeOptions

    def accept(self, group: GroupStats) -> Reject | None:
        return Reject("max age", self._why) if group.now - group.oldest > self.options.max_age else None

    def select(self, pool: PoolView, want: int) -> Selection | None:
        old = pool.now - pool.oldest > self.options.max_age
        rest, reject = pool.ids[~old], tuple(pool.ids[old].tolist())
        if len(rest) >= want:
            return Selection(tuple(rest[:want].tolist()), reject, why=self._why)
        return Selection((), reject, why=self._why) if reject else None

    @property
    def _why(self) -> str:
        return f"their oldest tokens are more than {self.options.max_age} versions old"

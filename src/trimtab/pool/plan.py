"""The plan: which prompt comes next, and when the run has admitted enough."""

import logging
from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel, ConfigDict

from trimtab.pool.order import Order, whole
from trimtab.records import I64, Slot, TrimtabError

log = logging.getLogger(__name__)


class PlanState(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int
    prompts: int
    drawn: int
    data: dict[str, str] = {}


class Plan:
    """Slots in order: the i-th draw is ``(epoch, index) = divmod(i, prompts)``, its row ``order(epoch)[index]``.

    ``order``: by default all rows in keyed order. ``data``: what the rows were read from, (name, digest) by field; a resume wants
    the same.

    The target is ``batches * batch_groups`` trained slots. ``wants`` says whether one more may be drawn: only while trained
    and outstanding slots together are fewer than the target, so a dropped or failed slot draws the next index and the last
    batch is whole. A retry keeps its slot and draws nothing.
    """

    def __init__(
        self,
        *,
        seed: int,
        prompts: int,
        batch_groups: int,
        batches: int,
        order: Order | None = None,
        data: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        if prompts < 1:
            raise TrimtabError.field("prompts", prompts, "the data set is empty; give a task with at least one training row")
        if batch_groups < 1:
            raise TrimtabError.field("batch groups", batch_groups, "a batch has at least one group; give 1 or more")
        if batches < 0:
            raise TrimtabError.field("batches", batches, "give 0 or more")
        self.seed = seed
        self.prompts = prompts
        self.batch_groups = batch_groups
        self.batches = batches
        self.drawn = 0
        self.data = dict(data or {})
        self.accept_changed_data = False  # of the checkpoint that is loaded next
        self._order = order or whole(seed, np.arange(prompts))
        self._rows: dict[int, I64] = {}  # the two latest epochs' orders

    @property
    def target(self) -> int:
        """Slots to train on in the whole run."""
        return self.batches * self.batch_groups

    def wants(self, trained: int, outstanding: int) -> bool:
        """May one more slot be drawn?"""
        return trained + outstanding < self.target

    def row(self, slot: Slot) -> int:
        """The task's row that the slot names."""
        if slot.epoch not in self._rows:
            if len(self._rows) == 2:
                del self._rows[next(iter(self._rows))]
            self._rows[slot.epoch] = self._order(slot.epoch)
        return int(self._rows[slot.epoch][slot.index])

    def draw(self) -> tuple[Slot, int]:
        """The next slot and its row."""
        slot = Slot(*divmod(self.drawn, self.prompts))
        self.drawn += 1
        return slot, self.row(slot)

    def state(self) -> PlanState:
        return PlanState(
            seed=self.seed, prompts=self.prompts, drawn=self.drawn, data={field: digest for field, (_, digest) in self.data.items()}
        )

    def restore(self, saved: PlanState) -> None:
        """Go on from a checkpoint. ``batches`` may differ; the seed and the number of rows may not, nor the data unless it is accepted."""
        changed = [f"{field} = {name!r}" for field, (name, digest) in self.data.items() if saved.data.get(field, digest) != digest]
        if changed and not self.accept_changed_data:
            raise TrimtabError(
                f"{' and '.join(changed)}: it has changed since the checkpoint, and the run would go on with other data; "
                "put back what it was, or add --accept-changed-data to trimtab resume"
            )
        if changed:
            log.warning("%s: it has changed since the checkpoint, and is accepted as it is now", " and ".join(changed))
        if saved.prompts != self.prompts:
            raise TrimtabError.field("prompts", self.prompts, f"the checkpoint's plan has {saved.prompts}; resume with the same data")
        if saved.seed != self.seed:
            raise TrimtabError.field("seed", self.seed, f"the checkpoint's plan has seed {saved.seed}; resume with the same seed")
        self.drawn = saved.drawn

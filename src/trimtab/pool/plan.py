"""The plan: which prompt comes next, and when the run has admitted enough."""

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from trimtab import keyed
from trimtab.records import Slot, TrimtabError


class PlanState(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int
    prompts: int
    drawn: int


class Plan:
    """Slots in order: the i-th draw is ``(epoch, index) = divmod(i, prompts)``, its row ``permutation(seed, epoch)[index]``.

    The target is ``batches * batch_groups`` trained slots. ``wants`` says whether one more may be drawn: only while trained
    and outstanding slots together are fewer than the target, so a dropped or failed slot draws the next index and the last
    batch is whole. A retry keeps its slot and draws nothing.
    """

    def __init__(self, *, seed: int, prompts: int, batch_groups: int, batches: int) -> None:
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
        self._rows: dict[int, npt.NDArray[np.int64]] = {}  # the two latest epochs' orders

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
            self._rows[slot.epoch] = keyed.permutation(self.seed, slot.epoch, self.prompts)
        return int(self._rows[slot.epoch][slot.index])

    def draw(self) -> tuple[Slot, int]:
        """The next slot and its row."""
        slot = Slot(*divmod(self.drawn, self.prompts))
        self.drawn += 1
        return slot, self.row(slot)

    def state(self) -> PlanState:
        return PlanState(seed=self.seed, prompts=self.prompts, drawn=self.drawn)

    def restore(self, saved: PlanState) -> None:
        """Go on from a checkpoint. ``batches`` may differ; the seed and the number of rows may not."""
        if saved.prompts != self.prompts:
            raise TrimtabError.field("prompts", self.prompts, f"the checkpoint's plan has {saved.prompts}; resume with the same data")
        if saved.seed != self.seed:
            raise TrimtabError.field("seed", self.seed, f"the checkpoint's plan has seed {saved.seed}; resume with the same seed")
        self.drawn = saved.drawn

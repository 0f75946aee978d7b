"""How a score becomes what credit is assigned by. Imports no torch; other kinds are plug-ins (:mod:`trimtab.plugins`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from trimtab.tasks.protocol import LARGEST

if TYPE_CHECKING:
    from trimtab.tasks.protocol import Prompt, Step


class ShapingOptions(BaseModel):
    """What credit is assigned by: offset + scale * the score, or * the rewards of single steps. The score itself stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # A plug-in gives the rewards of steps: stepwise is true, steps() finds them and check() refuses what has none.
    stepwise: ClassVar[bool] = False

    kind: Literal["final"] = Field("final", description="the score, at the end of the response")
    scale: float = Field(1.0, gt=0.0, le=LARGEST, allow_inf_nan=False, description="factor on the score, or on the rewards of steps")
    offset: float = Field(0.0, ge=-LARGEST, le=LARGEST, allow_inf_nan=False, description="added once a response, at its end")

    def check(self, task: BaseModel) -> None:
        """Raise ValueError where these options cannot shape the scores of a task with these options."""

    def steps(self, task: BaseModel, prompt: Prompt, response: str) -> tuple[Step, ...]:
        """The rewards of single steps, where ``stepwise``. Runs in the scorer's process."""
        raise NotImplementedError

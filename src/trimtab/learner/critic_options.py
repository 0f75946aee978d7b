"""Options of critics, told apart by ``kind``. Imports no torch; other kinds are plug-ins (:mod:`trimtab.plugins`)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from trimtab.learner.optimizer_options import AdamWOptions, ConstantOptions, Schedule
from trimtab.tasks.options import PromptOptions


class CriticAdamWOptions(AdamWOptions):
    """The critic's AdamW: no decay, and a rate of its own."""

    lr: float = Field(1e-3, gt=0, description="learning rate of the critic")
    weight_decay: float = Field(0.0, ge=0, description="as of the policy's optimizer")


class CriticOptions(BaseModel):
    """The value function of methods that need values. Its schedule counts its own applied steps.

    ``made_by`` names ``module:function``, called with (the policy's model, these options, a ``Told`` of ``learner.critic`` or None).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    made_by: ClassVar[str] = "trimtab.learner.critic:make"
    remark: ClassVar[str] = ""  # what a run with this critic says about itself

    kind: Literal["model", "head"] = Field(
        "model",
        description="model: a network of its own, which starts as a copy of the policy; head: a linear layer on the policy's hidden states",
    )
    optimizer: CriticAdamWOptions = CriticAdamWOptions()
    schedule: Schedule = ConstantOptions()
    max_norm: float = Field(1.0, gt=0, description="clip of the critic's gradient norm")
    updates: int = Field(1, gt=0, description="critic updates per actor update")
    warmup: int = Field(0, ge=0, description="first batches in which only the critic trains")
    value_clip: float | None = Field(
        None,
        gt=0,
        description="as PPO clips values: the larger of the losses with and without a limit to how far a value may move; default: off",
    )
    bootstrap: bool = Field(False, description="a rollout that the token limit cut continues with the critic's value; else with 0")

    def check_task(self, task: PromptOptions) -> None:
        """TrimtabError where this critic cannot value responses to that task."""

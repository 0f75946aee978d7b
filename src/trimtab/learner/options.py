"""Options of the learner: optimizer, schedule, how a batch becomes updates and micro-batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from trimtab.control.protocol import Reduction
from trimtab.engines.options import Device
from trimtab.learner.critic_options import CriticOptions
from trimtab.learner.optimizer_options import AdamWOptions, ConstantOptions, Schedule
from trimtab.plugins import Kinds


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


CriticChoice = Annotated[CriticOptions, Kinds("trimtab.critics", "learner.critic", (CriticOptions,), default="model")]


class LearnerOptions(_Options):
    """Optimizer, schedule, and how a batch becomes updates and micro-batches."""

    model_config = ConfigDict(defer_build=True)

    batches: int = Field(400, gt=0, description="batches to consume")
    optimizer: AdamWOptions = AdamWOptions()
    schedule: Schedule = ConstantOptions()
    critic: CriticChoice = CriticOptions()
    reference: str | None = Field(None, description="model of KL terms: a local folder or package:NAME; default: the run's own model")
    updates_per_batch: int = Field(1, gt=0, description="optimizer updates in one pass over a batch; each takes a share of its groups")
    epochs: int = Field(1, gt=0, description="passes over a batch")
    reduction: Reduction = Field(
        Reduction.SEQ_MEAN_TOKEN_MEAN,
        description="how the losses of tokens become one: the mean over rollouts of the mean over their tokens (seq_mean_token_mean) or of "
        "their sum (seq_mean_token_sum; .._norm: over a constant length), or the mean over all tokens (token_mean)",
    )
    micro_tokens: int | None = Field(
        None, gt=0, description="tokens that pass through the model together; default: those of the whole update"
    )
    norms: Literal["auto", "bookkeeping", "two_pass", "two_buffer"] = Field(
        "auto",
        description="how the gradient norm of each rollout is computed, where a method needs it (docs/vcpo.md); all give the same numbers",
    )
    norm_memory_mb: int = Field(512, gt=0, description="MiB that gradients of single rollouts may take for that")
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of the model, and of what is published and saved; bfloat16 is stepped on float32 masters"
    )
    device: Device = Field("cpu", description="cpu, cuda, or cuda:N for one of several")
    probe_gap: float | None = Field(
        None, gt=0, description="largest |engine - learner| log-prob that the probe accepts; default: by dtype, 1e-3, in bfloat16 0.25"
    )
    entropy: bool = Field(True, description="log the policy's entropy (one more pass over the logits)")
    keep_refused: bool = Field(True, description="save the batch of a refused step for inspection")

    @property
    def accepted_gap(self) -> float:
        """``probe_gap``, or the default of the dtype: in bfloat16 engine and learner round hidden states in different places."""
        return self.probe_gap or (0.25 if self.dtype == "bfloat16" else 1e-3)

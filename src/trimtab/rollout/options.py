"""What is generated for a batch: how many rollouts, from which distribution, how long. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trimtab.records import Sampling


class RolloutOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    group_size: int = Field(8, ge=1, description="rollouts of a prompt")
    prompts_per_batch: int = Field(8, ge=1, description="groups of a batch")
    max_new_tokens: int = Field(ge=1, description="longest response")
    temperature: float = Field(1.0, gt=0.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0, description="0: off")
    truncated: Literal["score", "wrong"] = Field("score", description="a response cut by max_new_tokens: scored as it is, or wrong unseen")
    min_group: int | None = Field(None, ge=1, description="fewest rollouts of a group that are no errors; default: all of them")
    max_attempts: int = Field(3, ge=1, description="failed attempts after which a prompt is set aside")
    held_batches: int = Field(2, ge=1, description="batches whose rows may be in generation at once: no row idles until a batch ends")

    @model_validator(mode="after")
    def _group(self) -> Self:
        if self.min_group is not None and self.min_group > self.group_size:
            raise ValueError(f"rollout.min_group = {self.min_group}: a group has rollout.group_size = {self.group_size} rollouts; lower it")
        return self

    @property
    def smallest_group(self) -> int:
        """``min_group``, or its default ``group_size``."""
        return self.group_size if self.min_group is None else self.min_group

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

"""What is generated: for a batch, how many rollouts, from which distribution, how long; for an evaluation. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trimtab.records import Sampling, TrimtabError
from trimtab.tasks.options import NoneWord


class RolloutOptions(BaseModel):
    """How many rollouts a batch takes, and how a response is sampled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group_size: int = Field(8, ge=1, description="rollouts of a prompt, which are compared with each other")
    prompts_per_batch: int = Field(8, ge=1, description="groups of a batch")
    max_new_tokens: int = Field(ge=1, description="longest response in tokens; a response that reaches it is cut there (truncated)")
    temperature: float = Field(1.0, gt=0.0, description="logits are divided by it when tokens are sampled, and when they are scored")
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="sample from the fewest most probable tokens that have this much probability; 1: off"
    )
    top_k: int = Field(0, ge=0, description="sample from so many most probable tokens; 0: off")
    stop: tuple[int | str, ...] = Field((), description="token ids and strings that end a response, beside the EOS of the model's folder")
    truncated: Literal["score", "wrong"] = Field("score", description="a response cut by max_new_tokens: scored as it is, or wrong unseen")
    min_group: int | None = Field(None, ge=1, description="fewest rollouts of a group that are no errors; default: all of them")
    max_attempts: int = Field(3, ge=1, description="times that a group of a prompt may fail before the prompt is given up for this epoch")
    held_batches: int = Field(
        2,
        ge=1,
        description="groups of so many batches are given to a worker at once, so that its slots need not idle towards the end of a batch",
    )

    @field_validator("stop", mode="before")
    @classmethod
    def _stops(cls, value: object) -> object:
        stops = tuple(value) if isinstance(value, list | tuple) else (value,)
        for stop in stops:
            if isinstance(stop, bool) or not isinstance(stop, int | str) or stop == "" or (isinstance(stop, int) and stop < 0):
                raise ValueError(f'{stop!r} ends no response; give token ids and strings, as in ["</answer>", 151645]')
        return stops

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


class EvalOptions(BaseModel):
    """Evaluation on held-out prompts: own prompts and randomness, pinned to one version, never through the pool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int = Field(0, ge=0, description="batches between evaluations during the run; 0: only before and after")
    prompts: int = Field(512, ge=1, description="fixed held-out prompts; where the task holds out fewer, all of those, and the run says so")
    samples: int = Field(1, ge=1, description="responses to each prompt; several give pass@k, and intervals count prompts, not responses")
    temperature: Annotated[float | None, NoneWord] = Field(
        None, ge=0.0, description='of evaluations; 0: the most probable token at every step; "none": rollout.temperature'
    )
    seed: int = Field(0, description="of what is sampled in evaluations; the same at every one")
    keep_best: bool = Field(True, description="keep the model folder of the best evaluation during the run, in best/")
    best_by: Literal["score", "accuracy"] = Field("score", description="what best/ is chosen by; of equals the later one is kept")
    max_error_share: float = Field(
        0.1, ge=0.0, le=1.0, description="an evaluation with a larger share of errors and timeouts is an event, and never the best"
    )

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.temperature == 0.0 and self.samples > 1:
            remedy = "at eval.temperature = 0 all responses to a prompt are the same; use 1 or raise eval.temperature"
            raise TrimtabError.field("eval.samples", self.samples, remedy)
        return self

    def rollout(self, training: RolloutOptions) -> RolloutOptions:
        """How the responses are generated: as in training, but for the number of responses and, where it is set, the temperature.

        Temperature 0 is the most probable token: a kept set of one, ``top_k = 1``.
        """
        update: dict[str, float | int] = {"group_size": self.samples, "min_group": 1}
        if self.temperature == 0.0:
            update |= {"temperature": 1.0, "top_k": 1}
        elif self.temperature is not None:
            update["temperature"] = self.temperature
        return training.model_copy(update=update)

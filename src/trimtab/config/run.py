"""The configuration of a run: each room's options composed, and what must fit together across them. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trimtab.config.shaped import shaped
from trimtab.control.chain import Chain
from trimtab.control.protocol import Need, Rescoring, SelectMethod, Setting
from trimtab.control.registry import MethodEntry
from trimtab.engines.forgetting import Phi
from trimtab.engines.options import EngineOptions, ScriptedEngineOptions, TorchEngineOptions
from trimtab.extras import require
from trimtab.learner.options import LearnerOptions
from trimtab.plugins import Kinds
from trimtab.pool.options import LagOptions
from trimtab.records import TrimtabError
from trimtab.rollout.options import EvalOptions, RolloutOptions
from trimtab.store.options import StoreOptions
from trimtab.tasks.options import JsonlOptions, PromptOptions, ReasoningGymOptions, VerifierOptions
from trimtab.telemetry.options import TelemetryOptions

NAMES = "it becomes a folder: use letters, digits, dots, hyphens and underscores, no dot or hyphen first, 100 at most"


EngineChoice = Annotated[EngineOptions, Kinds("trimtab.engines", "engine", (TorchEngineOptions, ScriptedEngineOptions), default="torch")]
TaskChoice = Annotated[PromptOptions, Kinds("trimtab.tasks", "task", (ReasoningGymOptions, JsonlOptions))]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LockstepOptions(_Options):
    """One process, a fixed schedule: batch t trains on rollouts of the weights as they stood after max(0, t - lag) consumed batches."""

    kind: Literal["lockstep"]
    lag: int = Field(0, ge=0, description="exact lag in batches; 0 is the synchronous run")
    swap_every: int = Field(0, ge=0, description="swap to the next newer weights every so many tokens inside a rollout; 0: never")
    surplus: float = Field(0.0, ge=0, description="generate ceil(prompts_per_batch (1 + surplus)) groups a batch: something to select from")
    max_lag: int | None = Field(None, ge=0, description="with surplus: the age at which a leftover expires, or none; not below lag")

    @field_validator("max_lag", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        return None if value == "none" else value  # TOML has no null

    @model_validator(mode="after")
    def _leftovers(self) -> Self:
        if self.max_lag is not None and not self.surplus:
            raise TrimtabError.field("runtime.max_lag", self.max_lag, "lockstep without surplus leaves nothing over; set runtime.lag")
        if self.max_lag is not None and self.max_lag < self.lag:
            remedy = f"every group is {self.lag} old when it is due; give {self.lag} or more"
            raise TrimtabError.field("runtime.max_lag", self.max_lag, remedy)
        return self


class LocalOptions(LagOptions):
    """One machine: spawned rollout workers beside the learner. ``max_lag`` is a bound, ``depth`` how far samplers run ahead."""

    kind: Literal["local"] = "local"
    max_lag: int | None = Field(12, description=LagOptions.model_fields["max_lag"].description)
    workers: int = Field(1, ge=1, description="rollout worker processes")
    worker_threads: int = Field(1, ge=1, description="torch threads of a worker")
    restarts: int = Field(3, ge=0, description="times a dead worker is replaced before the run stops and names it")
    start_deadline_s: float = Field(120.0, gt=0, description="a worker must report ready within")
    publish_deadline_s: float = Field(60.0, gt=0, description="all workers must serve a published version within")
    progress_deadline_s: float = Field(600.0, gt=0, description="stop, naming who is waited for, when no group arrives for so long")


class RunConfig(_Options):
    """Everything that determines a run."""

    model_config = ConfigDict(defer_build=True)

    name: Annotated[str, shaped(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", NAMES)] = Field("run", description="folder below runs/")
    seed: int = Field(
        0, ge=0, description="everything random in the run follows from it: order of the prompts, sampled tokens, initial critic"
    )
    model: str = Field(
        description="a local Hugging Face model folder, package:NAME for one that ships with Trimtab, or run:PATH for the result of a run"
    )
    methods: tuple[MethodEntry, ...] = Field(
        (), description='names of methods and bundles, or tables with options, as in ["vcpo", {name = "opob", norms = "sketch"}]'
    )
    task: TaskChoice
    verifier: VerifierOptions = VerifierOptions()
    rollout: RolloutOptions
    engine: EngineChoice = TorchEngineOptions()
    learner: LearnerOptions = LearnerOptions()
    runtime: Annotated[LockstepOptions | LocalOptions, Field(discriminator="kind")] = LocalOptions()
    eval: EvalOptions = EvalOptions()
    store: StoreOptions = StoreOptions()
    telemetry: TelemetryOptions = TelemetryOptions()

    @field_validator("methods", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        """A bare string is the method of that name with its defaults."""
        if isinstance(value, str):
            raise TrimtabError.field("methods", value, f'methods is a list; write ["{value}"]')
        if isinstance(value, (list, tuple)):
            return tuple({"name": item} if isinstance(item, str) else item for item in value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        chain = self.chain()
        for method in chain.acting(SelectMethod):
            if isinstance(self.runtime, LocalOptions):
                self.runtime.require_depth(method.min_depth, method.name)
            elif method.min_depth and not self.runtime.surplus:
                remedy = f"lockstep brings what a batch takes and {method.name} chooses from more; give a surplus, such as 0.5"
                raise TrimtabError.field("runtime.surplus", self.runtime.surplus, remedy)
        if isinstance(self.engine, TorchEngineOptions) and self.engine.dtype != self.learner.dtype:
            remedy = f"weights are published as they are and learner.dtype is {self.learner.dtype}; use one for both"
            raise TrimtabError.field("engine.dtype", self.engine.dtype, remedy)
        self.learner.critic.check_task(self.task)
        updates, groups = self.learner.updates_per_batch, self.rollout.prompts_per_batch
        if updates > groups:
            remedy = f"a batch has {groups} groups and every update needs one; lower it or raise rollout.prompts_per_batch"
            raise TrimtabError.field("learner.updates_per_batch", updates, remedy)
        return self

    def require_extras(self) -> None:
        """MissingExtra where the run would need a package that is not installed. The report at its end is no such need."""
        if self.telemetry.tensorboard:
            require("tensorboard", "telemetry.tensorboard = True")
        self.task.require_extra()

    @property
    def asynchronous(self) -> bool:
        """Rollouts may be older than the weights they train: by lag, or at the second update of a batch."""
        r = self.runtime
        lagging = r.lag > 0 or r.surplus > 0 if isinstance(r, LockstepOptions) else r.max_lag != 0
        return self.learner.updates_per_batch * self.learner.epochs > 1 or lagging

    @property
    def rescoring(self) -> Rescoring | None:
        """How the run's methods want forgetting scores, if they do."""
        return self.chain().rescoring

    @property
    def rescore(self) -> Phi | None:
        """What the engine averages over the prefix of a rollout that a swap interrupts; None: it does not score."""
        wanted = self.rescoring
        return wanted.phi if wanted is not None and wanted.source == "swap" else None

    def chain(self) -> Chain:
        """The methods, resolved and checked against this run. A fresh chain at each call: methods hold state."""
        sampling = self.rollout.sampling
        chain = Chain.resolve(
            self.methods,
            Setting(
                group_size=self.rollout.group_size,
                asynchronous=self.asynchronous,
                cut=sampling.top_p < 1 or sampling.top_k > 0,
                reports_kept=True,  # the torch and scripted engines do
                reduction=self.learner.reduction,
                norms=self.learner.norms,
            ),
        )
        if self.learner.critic.remark and Need.VALUES in chain.needs:
            chain.say(self.learner.critic.remark)
        return chain

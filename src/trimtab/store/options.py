"""How often a run is made durable, and how much of it is kept."""

from pydantic import BaseModel, ConfigDict, Field


class StoreOptions(BaseModel):
    """Checkpoints and the rollout log of a run folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int = Field(default=50, ge=1, description="consumed batches between two checkpoints")
    keep: int = Field(
        default=2, ge=1, description="how many of the newest checkpoints stay; an older one goes once a newer one is verified"
    )
    rollouts: bool = Field(default=True, description="log every rollout to parquet; `replay` and `show` read it")

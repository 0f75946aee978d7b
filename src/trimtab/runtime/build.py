"""From a configuration to the parts of a run; everything that can be wrong is found here, before anything expensive starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trimtab.config.models import model_folder
from trimtab.config.run import LockstepOptions, RunConfig
from trimtab.control.protocol import Need
from trimtab.engines.checkpoint import Policy, load_policy
from trimtab.engines.folder import check_folder
from trimtab.engines.options import TorchEngineOptions
from trimtab.learner.critic import Told, make_critic
from trimtab.learner.passes import PackedModel
from trimtab.learner.update import Learner
from trimtab.pool.options import LagOptions, PoolOptions
from trimtab.pool.plan import Plan
from trimtab.pool.pool import Pool
from trimtab.records import TrimtabError
from trimtab.rollout.sampler import Sampler
from trimtab.runtime.data import TrainingData, look
from trimtab.runtime.lockstep import pool_options
from trimtab.telemetry.clock import Clock

if TYPE_CHECKING:
    from trimtab.control.chain import Chain

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Parts:
    """What the learner's process holds. ``sampler`` generates in lockstep and evaluates in both runtimes."""

    policy: Policy
    learner: Learner
    pool: Pool
    sampler: Sampler
    clock: Clock
    data: TrainingData


def build(config: RunConfig) -> Parts:
    """Load the task, the verifier, the model; refuse what cannot work, in one sentence."""
    config.require_extras()
    import torch

    chain = config.chain()
    dtype = getattr(torch, config.learner.dtype)
    if isinstance(config.engine, TorchEngineOptions):
        _check_device("engine.device", config.engine.device)
    _check_device("learner.device", config.learner.device)
    folder = model_folder(config.model)
    check_folder(folder)
    clock = Clock(keep=config.telemetry.timeline)
    with clock.span("start"):
        sampler = Sampler.build(
            partial(load_policy, folder, dtype, config.learner.device),
            task=config.task,
            verifier=config.verifier,
            rollout=config.rollout,
            engine=config.engine,
            seed=config.seed,
            rescore=config.rescore,
        )
        try:
            data = look(sampler.task, sampler.renderer, seed=config.seed, evaluated=config.eval.prompts)
            for line in data.told:
                log.info("%s", line)
            for note in data.notes:
                log.warning("%s", note)
            _say_unreachable(sampler.policy)
            learner = make_learner(config, sampler.policy, chain, clock)
            pool = make_pool(config, chain, len(data.rows), data)
            return Parts(sampler.policy, learner, pool, sampler, clock, data)
        except BaseException:
            sampler.close()
            raise


def _say_unreachable(policy: Policy) -> None:
    ids = policy.vocabulary
    if ids.unreachable:
        what = "%d of the model's %d token ids are not in its tokenizer: they are never sampled and take no part in training"
        log.info(what, ids.unreachable, ids.rows)


def _check_device(field: str, name: str) -> None:
    import torch

    device, there = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= there:
        raise TrimtabError.field(field, name, f"this machine shows {there or 'no'} CUDA device{'s' if there > 1 else ''}; use cpu")


def make_learner(config: RunConfig, policy: Policy, chain: Chain, clock: Clock) -> Learner:
    """The learner of a run, around this policy's model."""
    options = config.learner
    model = PackedModel(
        policy.model,
        route=options.norms,
        memory=options.norm_memory_mb * 2**20,
        estimator=chain.norm_estimator,
        ids=policy.vocabulary,
    )
    if chain.sequence_norms is not None and chain.sequence_norms.estimator == "exact":
        _ = model.registry  # an unknown module is refused by name here
    reference = _reference(config, policy) if Need.REFERENCE in chain.needs else None
    critic = make_critic(model, options.critic, _told(config, policy)) if Need.VALUES in chain.needs else None
    return Learner(
        model, chain.learner(), options, max_length=config.rollout.max_new_tokens, clock=clock, critic=critic, reference=reference
    )


def _told(config: RunConfig, policy: Policy) -> Told:
    def decode(ids: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return Told(task=config.task, decode=decode, positions=config.rollout.max_new_tokens)


def _reference(config: RunConfig, policy: Policy) -> PackedModel:
    """The frozen model of KL terms: ``learner.reference``, or the one the run started from."""
    folder = model_folder(config.learner.reference or config.model)
    check_folder(folder)
    found = load_policy(folder, policy.model.dtype, config.learner.device).model
    if found.config.vocab_size != policy.model.config.vocab_size:
        remedy = (
            f"it has {found.config.vocab_size} token ids and the policy {policy.model.config.vocab_size}; use one of the same vocabulary"
        )
        raise TrimtabError.field("learner.reference", config.learner.reference, remedy)
    return PackedModel(found.requires_grad_(False), ids=policy.vocabulary)


def make_pool(config: RunConfig, chain: Chain, prompts: int, data: TrainingData | None = None) -> Pool:
    """The pool of a run's runtime, over ``prompts`` rows; which they are, where somebody wants to know."""
    runtime = config.runtime
    fields = LagOptions.model_fields.keys()
    options = pool_options(runtime) if isinstance(runtime, LockstepOptions) else PoolOptions(**{f: getattr(runtime, f) for f in fields})
    plan = Plan(
        seed=config.seed,
        prompts=prompts,
        batch_groups=config.rollout.prompts_per_batch,
        batches=config.learner.batches,
        order=None if data is None else data.order,
        data=None if data is None else data.read.digests,
    )
    options = options.model_copy(update={"min_group": config.rollout.smallest_group, "max_attempts": config.rollout.max_attempts})
    return Pool(options, plan, group_size=config.rollout.group_size, chain=chain.pool(), calibration=chain.calibration)

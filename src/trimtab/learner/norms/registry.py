"""Which modules own the trainable parameters, by structure. What is not known here is refused by name.

A gradient norm that silently leaves a parameter out is wrong, so every trainable parameter must belong to exactly one module
whose per-rollout gradient is known: Linear, Embedding, RMSNorm as Qwen2 writes it and as torch does, LayerNorm, and the LM head.
The one parameter two modules may share is the weight of a tied head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm
from transformers import PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from trimtab.records import TrimtabError

Normalizer = Callable[[nn.Module, Tensor], Tensor]


def _qwen2_norm(m: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(m, Qwen2RMSNorm)
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + m.variance_epsilon)).to(x.dtype)


def _rms_norm(m: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(m, nn.RMSNorm)
    return rms_norm(x, m.normalized_shape, None, m.eps)


def _layer_norm(m: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(m, nn.LayerNorm)
    return layer_norm(x, m.normalized_shape, None, None, m.eps)


# A gain's gradient is sum_t xhat_t * e_t, with xhat the normalized input. Exact types: a subclass may compute something else.
NORMALIZERS: dict[type[nn.Module], Normalizer] = {Qwen2RMSNorm: _qwen2_norm, nn.RMSNorm: _rms_norm, nn.LayerNorm: _layer_norm}


@dataclass(frozen=True, slots=True)
class Registry:
    """The modules whose per-rollout gradients are known; together with the head they own every trainable parameter."""

    names: dict[nn.Module, str]
    head: nn.Linear
    embedding: nn.Module
    tied: bool

    @property
    def linears(self) -> list[nn.Linear]:
        return [m for m in self.names if isinstance(m, nn.Linear)]


def survey(model: PreTrainedModel) -> Registry:
    """Find the owner of every trainable parameter of ``model``.

    Raises:
        TrimtabError: names the module or parameter that is unknown, shared, or whose gradient is not the plain one; dropout.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    embedding = model.get_input_embeddings()
    if any(getattr(m, "gradient_checkpointing", False) for m in model.modules()):
        raise TrimtabError(
            "gradient checkpointing is on: per-sequence norms need each module called once, call model.gradient_checkpointing_disable()"
        )
    names: dict[nn.Module, str] = {}
    owner: dict[nn.Parameter, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise TrimtabError.field(f"{name}.p", module.p, "log-probs must be deterministic, set dropout to 0")
        parameters = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        if not parameters:
            continue
        if module is head:
            if type(module) is not nn.Linear or module.bias is not None:
                raise TrimtabError(f"{name} is a {_kind(module)}: the LM head must be a torch.nn.Linear without bias")
        else:
            _check_known(name, module)
            names[module] = name
        for n, p in parameters.items():
            tie = module is head and p is embedding.weight
            if p in owner and not tie:
                raise TrimtabError(f"{name}.{n} is also {owner[p]}: of shared parameters, per-sequence norms know a tied head only")
            owner.setdefault(p, f"{name}.{n}")
    return Registry(names, head, embedding, head.weight is embedding.weight)


def _check_known(name: str, module: nn.Module) -> None:
    kind = type(module)
    if kind is nn.Embedding:
        assert isinstance(module, nn.Embedding)
        if module.sparse or module.max_norm is not None or module.scale_grad_by_freq:
            raise TrimtabError(f"{name}: per-sequence norms know an Embedding without sparse, max_norm and scale_grad_by_freq")
    elif kind not in NORMALIZERS and kind is not nn.Linear:
        raise TrimtabError(
            f"{name} is a {_kind(module)}: per-sequence norms do not know its gradient; freeze its parameters, use a method without "
            f"sequence norms, or add the module to trimtab.learner.norms.registry"
        )


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"

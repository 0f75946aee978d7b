"""The weights an engine serves, and the second set that a publication is staged in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trimtab.engines.digest import weights_digest
from trimtab.records import TrimtabError


class ServedWeights:
    """Two sets of tensors: ``stage`` writes the one that is not served, ``commit`` exchanges them by pointer.

    The names are those of ``model.named_parameters()``; a tied head is one parameter under the embedding's name, so exchanging it
    moves both. A mapping may name the head too (as a ``state_dict`` does) if it holds the same values.
    """

    def __init__(self, model: nn.Module, version: int, incarnation: int) -> None:
        self.version, self.incarnation = version, incarnation
        self._parameters = dict(model.named_parameters())
        by_identity = {id(p): name for name, p in self._parameters.items()}
        self._aliases = {
            name: by_identity[id(p)] for name, p in model.named_parameters(remove_duplicate=False) if name not in self._parameters
        }
        self._spare: dict[str, Tensor] = {}
        self._staged: tuple[int, int] | None = None

    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        """Copy ``weights`` into the spare set; return the digest of the bytes that arrived there.

        Raises ``TrimtabError`` naming the tensor that is missing, unknown, of another shape or of another dtype.
        """
        self._staged = None
        self._check(weights)
        if not self._spare:
            self._spare = {name: torch.empty_like(p.data) for name, p in self._parameters.items()}
        with torch.no_grad():
            for name, tensor in self._spare.items():
                tensor.copy_(weights[name])
        for alias, name in self._aliases.items():
            if alias in weights and not torch.equal(weights[alias].to(self._spare[name].device), self._spare[name]):
                raise TrimtabError(f"publication of version {version}: {alias} is tied to {name} but holds other values")
        digest = weights_digest({name: self._spare[self._aliases.get(name, name)] for name in weights})
        self._staged = (version, incarnation)
        return digest

    def commit(self, version: int) -> None:
        """Serve the staged set. Raises ``TrimtabError`` where ``version`` is not what is staged."""
        if self._staged is None or self._staged[0] != version:
            staged = "nothing" if self._staged is None else f"version {self._staged[0]}"
            raise TrimtabError(f"commit of version {version} refused: {staged} is staged; stage it again")
        for name, parameter in self._parameters.items():
            parameter.data, self._spare[name] = self._spare[name], parameter.data
        (self.version, self.incarnation), self._staged = self._staged, None

    def abort(self) -> None:
        """Forget what is staged; what is served stays."""
        self._staged = None

    def _check(self, weights: Mapping[str, Tensor]) -> None:
        missing = self._parameters.keys() - weights.keys()
        unknown = weights.keys() - self._parameters.keys() - self._aliases.keys()
        if missing:
            raise TrimtabError(f"publication refused: {len(missing)} tensors are missing, the first is {min(missing)}")
        if unknown:
            raise TrimtabError(f"publication refused: the model has no tensor {min(unknown)}")
        for name, tensor in weights.items():
            served = self._parameters[self._aliases.get(name, name)]
            if tensor.shape != served.shape:
                raise TrimtabError(f"publication refused: {name} has shape {tuple(tensor.shape)}, the model's is {tuple(served.shape)}")
            if tensor.dtype != served.dtype:
                raise TrimtabError(
                    f"publication refused: {name} is {tensor.dtype}, served is {served.dtype}; publish in the engine's dtype"
                )

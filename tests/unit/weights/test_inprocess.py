"""Publishing inside one process: a corrupt, partial or late transfer leaves the old version serving, whole."""

import time
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from support.tiny import tiny_policy
from trimtab.engines.digest import weights_digest
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.torch_engine import TorchEngine
from trimtab.records import TrimtabError, Version
from trimtab.weights.inprocess import publish
from trimtab.weights.publish import PublishError


def weights(seed: int) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in tiny_policy(seed=seed).model.named_parameters()}


def served(engine: TorchEngine) -> str:
    return weights_digest(dict(engine._weights._parameters))


class Tampered(TorchEngine):
    """A transport that changes what it carries."""

    def __init__(self, change: str) -> None:
        super().__init__(tiny_policy(), TorchEngineOptions(slots=2))
        self.change = change

    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        arrived = {name: t.clone() for name, t in weights.items()}
        name = sorted(arrived)[3]
        if self.change == "bit":
            arrived[name].view(torch.int32).view(-1)[0] ^= 1
        elif self.change == "lost":
            del arrived[name]
        elif self.change == "stale":
            arrived[name] = dict(self._weights._parameters)[name].detach().clone()
        elif self.change == "slow":
            time.sleep(1.1)
        return super().stage(version, incarnation, arrived)


def test_a_publication_reaches_every_replica_and_is_timed() -> None:
    engines = [TorchEngine(tiny_policy(), TorchEngineOptions(slots=2)) for _ in range(2)]
    times = publish(Version(3, 1), weights(1), engines)
    assert [(e.incarnation, e.version, served(e)) for e in engines] == [(3, 1, weights_digest(weights(1)))] * 2
    assert 0 < times.pause < times.commit
    assert 0 < times.stage < times.commit


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ("bit", PublishError, "version 1: replica-1 staged bytes with digest"),
        ("stale", PublishError, "version 1: replica-1 staged bytes with digest"),
        ("lost", TrimtabError, "1 tensors are missing"),
        ("slow", PublishError, "no answer to stage from replica-1 within 1 s"),
    ],
)
def test_a_failed_transfer_leaves_the_old_version_serving_whole(change: str, error: type[TrimtabError], says: str) -> None:
    good, bad = TorchEngine(tiny_policy(), TorchEngineOptions(slots=2)), Tampered(change)
    before = served(good)
    with pytest.raises(error, match=says):
        publish(Version(0, 1), weights(1), [good, bad], deadline=1.0 if change == "slow" else 60.0)
    for engine in (good, bad):
        assert (engine.version, served(engine)) == (0, before)
        with pytest.raises(TrimtabError, match="nothing is staged"):
            engine.commit(1)  # what was staged is forgotten
    bad.change = ""
    publish(Version(0, 1), weights(1), [good, bad])  # and nothing stands in the way of the next try
    assert served(good) == served(bad) == weights_digest(weights(1))

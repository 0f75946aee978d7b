"""The transport of lockstep: the replica lives in the learner's process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trimtab.engines.digest import weights_digest
from trimtab.engines.protocol import Replica
from trimtab.records import Version
from trimtab.weights.publish import Publication, Times

if TYPE_CHECKING:
    from torch import Tensor


def publish(version: Version, weights: Mapping[str, Tensor], replicas: Sequence[Replica], deadline: float = 60.0) -> Times:
    """Stage on every replica, compare digests, commit; on any failure every replica forgets what it staged and the error surfaces."""
    names = {f"replica-{i}": replica for i, replica in enumerate(replicas)}
    now = time.perf_counter()
    publication = Publication(version, weights_digest(weights), names, now, now + deadline)
    try:
        for name, replica in names.items():
            begun = time.perf_counter()
            digest = replica.stage(version.number, version.incarnation, weights)
            done = time.perf_counter()
            publication.expire(done)
            publication.staged(name, digest, done - begun, done)
        for name in sorted(publication.due()):
            begun = time.perf_counter()
            names[name].commit(version.number)
            done = time.perf_counter()
            publication.committed(name, done - begun, done)
    finally:
        for replica in replicas:
            replica.abort()
    return publication.times

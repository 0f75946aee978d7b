"""The evaluator's process: evaluates a saved version while the run goes on. Its prompts never pass through the pool."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from multiprocessing.connection import Connection

from trimtab.engines.options import TorchEngineOptions
from trimtab.records import Version
from trimtab.rollout.messages import Evaluate, Evaluated, Ready, ToWorker, WorkerSpec
from trimtab.rollout.worker import enter, same_data, told


def serve(connection: Connection, spec: WorkerSpec) -> None:
    """Answer one ``Evaluate`` after the other until the end of the socket."""
    import torch

    from trimtab.engines.checkpoint import load_policy
    from trimtab.rollout.sampler import Sampler
    from trimtab.weights.inprocess import publish

    dtype = getattr(torch, spec.engine.dtype) if isinstance(spec.engine, TorchEngineOptions) else torch.float32
    sampler = Sampler.build(
        lambda: load_policy(spec.model),
        task=spec.task,
        verifier=spec.verifier,
        rollout=spec.rollout,
        engine=spec.engine,
        seed=spec.seed,
    )
    with closing(sampler):
        same_data(sampler.task, spec)
        connection.send(Ready(os.getpid(), 0))
        while True:
            ask: ToWorker = connection.recv()
            assert isinstance(ask, Evaluate)
            begun = time.perf_counter()
            weights = {name: p.detach() for name, p in load_policy(ask.folder, dtype).model.named_parameters()}
            publish(Version(0, ask.version), weights, [sampler.engine])
            found = sampler.evaluate(ask.options)
            connection.send(Evaluated(ask.batch, found, time.perf_counter() - begun))


def main() -> None:
    """``python -m trimtab.rollout.evaluator SOCKET`` (a file descriptor)."""
    connection, spec = enter(int(sys.argv[1]))
    with told(connection):
        serve(connection, spec)


if __name__ == "__main__":
    main()

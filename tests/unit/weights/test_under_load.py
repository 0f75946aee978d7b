"""200 publications into a worker that never stops generating: every token was sampled by exactly the weights that its version names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from support.tiny import tiny_folder
from trimtab.config.run import LocalOptions
from trimtab.engines.checkpoint import load_policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.torch_engine import TorchEngine
from trimtab.records import Group, Sampling, Segment, Slot, Version
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Assign, Committed, Done, Pulse, Ready, Staged, WorkerSpec
from trimtab.rollout.options import RolloutOptions
from trimtab.runtime.crew import Crew, CrewMember
from trimtab.runtime.publisher import Publisher
from trimtab.tasks.options import JsonlOptions, VerifierOptions
from trimtab.weights.shared import SharedBlocks

PUBLICATIONS = 200
ENGINE = TorchEngineOptions(slots=16)
ROLLOUT = RolloutOptions(group_size=2, prompts_per_batch=4, max_new_tokens=24)
PROBE = Segment(
    tokens=np.array([3, 4, 5, 6], np.int32),
    action_mask=np.array([False, True, True, True]),
    behavior_logp=np.zeros(4, np.float32),
    versions=np.array([-1, 0, 0, 0], np.int32),
    turn=np.zeros(4, np.int16),
    sampling=Sampling(),
)


class Versions:
    """The weights of any version, and what a cold engine that serves them says of a segment."""

    def __init__(self, folder: Path) -> None:
        policy = load_policy(folder)
        self.engine = TorchEngine(policy, ENGINE)
        base = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
        g = torch.Generator().manual_seed(1)
        self._base = base
        self._direction = {name: torch.randn(p.shape, generator=g) * p.abs().mean() for name, p in base.items()}

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        return {name: p + 0.1 * np.sin(version) * self._direction[name] for name, p in self._base.items()}

    def score(self, version: int, segment: Segment) -> np.ndarray:
        self.engine.stage(version, 0, self.weights(version))
        self.engine.commit(version)
        return self.engine.score([segment])[0]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[tuple[Crew, SharedBlocks, Versions]]:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+{i}=", "answer": ""}) + "\n" for i in range(50)))
    versions = Versions(tiny_folder(tmp_path / "model"))
    blocks = SharedBlocks.create(versions.weights(0))
    spec = WorkerSpec(
        name="worker-0",
        seed=0,
        model=str(tmp_path / "model"),
        task=JsonlOptions(path=str(tmp_path / "train.jsonl"), reward="support.rewards:digit", eval_rows=1),
        verifier=VerifierOptions(),
        rollout=ROLLOUT,
        engine=ENGINE,
        layout=blocks.layout,
        probe=(PROBE,),
        threads=1,
        origin=0.0,
        timeline=False,
        log="",
    )
    crew = Crew(LocalOptions(restarts=0), lambda name: WorkerProcess(spec, blocks.fd))
    yield crew, blocks, versions
    crew.close()
    blocks.close()


@pytest.mark.slow
def test_two_hundred_publications_under_load(crew: tuple[Crew, SharedBlocks, Versions]) -> None:
    people, blocks, versions = crew
    publisher = Publisher(people, blocks, 60.0, 1e-3)
    people.start()
    groups: list[Group] = []
    assigned, published = 0, -1
    deadline = time.monotonic() + 240
    while published < PUBLICATIONS or not publisher.idle:
        assert time.monotonic() < deadline, "not in time"
        [member] = people
        if member.ready and publisher.idle and published < PUBLICATIONS:
            published += 1
            weights = versions.weights(published)
            publisher.publish(publisher.prepare(Version(0, published), weights, [versions.score(published, PROBE).tolist()]))
        while member.held >= 0 and member.room > 0:
            member.room, member.assigned = member.room - 1, member.assigned + 1
            people.send(member, Assign(Slot(0, assigned), assigned % 40, 0))
            assigned += 1
        for speaker, message in people.listen(0.05):
            _hear(publisher, speaker, message, groups)

    assert [m.held for m in people] == [PUBLICATIONS]
    assert len(publisher.done) == PUBLICATIONS + 1
    segments = [s for g in groups for r in g.rollouts for s in r.segments]
    sampled = [s.versions[s.action_mask] for s in segments]
    assert len(segments) > 100
    assert all((np.diff(v) >= 0).all() for v in sampled)
    assert sum(v[0] != v[-1] for v in sampled) > 20  # weights were swapped in the middle of rollouts
    for segment, named in list(zip(segments, sampled, strict=True))[:: len(segments) // 40]:
        for version in np.unique(named):
            expected = versions.score(int(version), segment)
            np.testing.assert_allclose(segment.behavior_logp[segment.action_mask][named == version], expected[named == version], atol=1e-4)


def _hear(publisher: Publisher, member: CrewMember, message: object, groups: list[Group]) -> None:
    match message:
        case Ready(_, room):
            member.ready, member.room = True, room
            publisher.welcome(member)
        case Pulse():
            member.heard(message)
        case Done(group):
            groups.append(group)
        case Staged():
            publisher.staged(member, message)
        case Committed():
            publisher.committed(member, message)
        case _:
            raise AssertionError(message)

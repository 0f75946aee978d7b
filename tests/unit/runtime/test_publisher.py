"""How a version reaches the workers that are there, and those that come up while it is on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
import torch

from trimtab.engines.digest import weights_digest
from trimtab.records import Version
from trimtab.rollout.messages import Commit, Committed, Stage, Staged
from trimtab.runtime.crew import Crew, CrewMember
from trimtab.runtime.publisher import Publisher
from trimtab.weights.publish import PublishError
from trimtab.weights.shared import SharedBlocks


@dataclass
class Post:
    """A crew that keeps the letters: ``sent[name]`` is what a worker was told."""

    members: dict[str, CrewMember] = field(default_factory=dict)
    sent: dict[str, list[str]] = field(default_factory=dict)

    def __iter__(self):
        return iter(self.members.values())

    def get(self, name: str) -> CrewMember | None:
        return self.members.get(name)

    def send(self, member: CrewMember, message: object) -> None:
        assert isinstance(message, Stage | Commit)
        words = f"stage {message.version} from {message.block}" if isinstance(message, Stage) else f"commit {message.version}"
        self.sent.setdefault(member.name, []).append(words)

    def up(self, name: str) -> CrewMember:
        member = self.members[name] = CrewMember(name, cast("object", None), 0.0, ready=True)  # type: ignore[arg-type]
        return member


class World:
    def __init__(self, *names: str) -> None:
        self.post = Post()
        self.blocks = SharedBlocks.create(self.weights(0))
        self.publisher = Publisher(cast(Crew, self.post), self.blocks, 10.0, 1e-3)
        for name in names:
            self.post.up(name)

    @staticmethod
    def weights(version: int) -> dict[str, torch.Tensor]:
        return {"w": torch.full((8,), float(version))}

    def publish(self, version: int) -> None:
        self.publisher.publish(self.publisher.prepare(Version(0, version), self.weights(version), [[0.0]]))

    def up(self, name: str) -> None:
        self.publisher.welcome(self.post.up(name))

    def staged(self, name: str, version: int, digest: str = "") -> None:
        answer = Staged(version, digest or weights_digest(self.weights(version)), 0.1)
        self.publisher.staged(self.post.members[name], answer)

    def committed(self, name: str, version: int) -> None:
        self.publisher.committed(self.post.members[name], Committed(version, 0.01, (0.0,)))

    def serve(self, name: str, version: int) -> None:
        self.staged(name, version)
        self.committed(name, version)


def test_blocks_are_written_in_turn_and_everyone_is_told_to_stage_then_to_commit() -> None:
    world = World("a", "b")
    for version in (0, 1, 2):
        world.publish(version)
        world.staged("a", version)
        assert not any("commit" in words for words in (world.post.sent["a"][-1], world.post.sent["b"][-1]))
        world.staged("b", version)
        world.committed("a", version)
        assert not world.publisher.idle
        world.committed("b", version)
        assert world.publisher.idle
    assert world.post.sent["a"] == world.post.sent["b"]
    assert world.post.sent["a"] == ["stage 0 from 0", "commit 0", "stage 1 from 1", "commit 1", "stage 2 from 0", "commit 2"]
    assert [m.held for m in world.post] == [2, 2]
    assert len(world.publisher.done) == 3


def test_before_the_first_version_a_newcomer_waits() -> None:
    world = World()
    world.up("a")
    assert world.post.sent == {}
    world.publish(0)
    assert world.post.sent == {"a": ["stage 0 from 0"]}


def test_a_newcomer_after_a_publication_gets_the_newest_version() -> None:
    world = World()
    world.publish(0)  # nobody is there yet
    assert world.publisher.idle
    world.up("a")
    assert not world.publisher.idle  # a next version would have to wait
    world.serve("a", 0)
    assert (world.post.sent["a"], world.post.members["a"].held) == (["stage 0 from 0", "commit 0"], 0)
    assert world.publisher.idle


def test_a_newcomer_while_others_stage_commits_with_them() -> None:
    world = World("a")
    world.publish(1)
    world.up("b")
    world.staged("b", 1)
    assert world.post.sent["b"] == ["stage 1 from 0"]  # not before a's digest is in
    world.staged("a", 1)
    assert world.post.sent["a"] == world.post.sent["b"] == ["stage 1 from 0", "commit 1"]


def test_a_newcomer_while_others_commit_ends_up_with_the_newest_version_too() -> None:
    world = World("a")
    world.publish(1)
    world.staged("a", 1)
    world.up("b")  # a has its commit, and has not answered
    world.committed("a", 1)
    assert not world.publisher.idle
    with pytest.raises(RuntimeError, match="version 1 is under way"):
        world.publish(2)
    world.serve("b", 1)
    assert world.publisher.idle
    assert [m.held for m in world.post] == [1, 1]


def test_a_newcomer_that_staged_other_bytes_never_serves_them() -> None:
    world = World()
    world.publish(1)
    world.up("b")
    with pytest.raises(PublishError, match="b staged bytes with digest 0000"):
        world.staged("b", 1, digest="0" * 32)
    assert world.post.sent["b"] == ["stage 1 from 0"]
    assert world.post.members["b"].held == -1


def test_a_worker_that_dies_and_comes_up_again_under_its_name_starts_afresh() -> None:
    world = World("a", "b")
    world.publish(1)
    world.staged("a", 1)
    world.publisher.lost(world.post.members.pop("a"))
    world.up("a")
    world.staged("b", 1)
    assert world.post.sent["b"] == ["stage 1 from 0"]  # the new a has not staged
    world.staged("a", 1)
    assert world.post.sent["a"] == ["stage 1 from 0", "stage 1 from 0", "commit 1"]
    world.committed("a", 1)
    world.committed("b", 1)
    assert world.publisher.idle


def test_when_the_only_worker_is_lost_nothing_is_under_way() -> None:
    world = World("a")
    world.publish(1)
    world.publisher.lost(world.post.members.pop("a"))
    assert world.publisher.idle
    assert world.publisher.done == []  # nobody was reached, so nothing was timed

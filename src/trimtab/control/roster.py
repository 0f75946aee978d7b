"""The methods of a chain, or of one side of it: what they declare, and their state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from trimtab.control.method import M
from trimtab.control.protocol import (
    AligningMethod,
    CreditMethod,
    Method,
    Need,
    NormCreditMethod,
    NormEstimator,
    ObjectiveMethod,
    Point,
    SequenceNorms,
    State,
    StepResult,
    SurveyMethod,
    TermMethod,
)
from trimtab.control.registry import ChainMember
from trimtab.records import TrimtabError


@dataclass(slots=True)
class Roster:
    """Methods in loop order."""

    members: list[ChainMember]

    @property
    def methods(self) -> list[Method]:
        return [m.method for m in self.members]

    def acting(self, base: type[M]) -> list[M]:
        """The methods that inherit this base, in loop order."""
        return [m for m in self.methods if isinstance(m, base)]

    @property
    def credit_alone(self) -> bool:
        """Is an advantage all that moves a token? Not with an additive term, nor under an objective with a pull of its own."""
        return not self.terms and self.objective_owner.advantage_only

    @property
    def credit_owner(self) -> CreditMethod:
        return self.acting(CreditMethod)[0]

    @property
    def objective_owner(self) -> ObjectiveMethod:
        return self.acting(ObjectiveMethod)[0]

    @property
    def terms(self) -> list[TermMethod]:
        """What adds to the owner's loss."""
        return self.acting(TermMethod)

    @property
    def aligner(self) -> AligningMethod | None:
        """The method that compares each gradient with the previous one, if there is one."""
        return next(iter(self.acting(AligningMethod)), None)

    def surveying(self, point: Point) -> list[SurveyMethod]:
        """Methods of this point (weigh or objective) that need to see the whole update first."""
        return [m for m in self.acting(SurveyMethod) if m.surveys and point in m.points()]

    @property
    def needs(self) -> Need:
        return reduce(lambda a, b: a | b, (m.needs for m in self.methods), Need.NOTHING)

    @property
    def sequence_norms(self) -> SequenceNorms | None:
        """The per-rollout gradient norms that the learner measures for the credit owner, if it reads any."""
        owner = self.credit_owner
        return owner.norms if isinstance(owner, NormCreditMethod) else None

    @property
    def norm_estimator(self) -> NormEstimator:
        """What such norms are of."""
        return (self.sequence_norms or SequenceNorms()).estimator


@dataclass(slots=True)
class ChainSide(Roster):
    """The methods of one side: together they are told what happened, and have a state, keyed by their names."""

    def after(self, result: StepResult) -> None:
        for m in self.methods:
            m.after(result)

    def state_dict(self) -> dict[str, State]:
        return {m.name: m.state_dict() for m in self.methods}

    def load_state_dict(self, state: dict[str, State]) -> None:
        mine = {m.name for m in self.methods}
        if mine != set(state):
            raise TrimtabError.field("methods", sorted(mine), f"the checkpoint was made with {sorted(state)}; use the same list to resume")
        for m in self.methods:
            m.load_state_dict(state[m.name])

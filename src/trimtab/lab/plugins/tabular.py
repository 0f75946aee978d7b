"""Options of the critic that is told the right answer: ``learner.critic.kind = "tabular"``. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab.lab.plugins.running_totals import separator_of
from trimtab.learner.critic_options import CriticOptions
from trimtab.records import TrimtabError
from trimtab.tasks.options import PromptOptions


class TabularCriticOptions(CriticOptions):
    """A privileged critic, for experiments on ``chain_sum``: an upper bound for learned ones."""

    made_by = "trimtab.lab.plugins.tabular_critic:make"
    remark = "the critic is privileged: it is told the right answer (learner.critic.kind = tabular)"

    kind: Literal["tabular"] = Field("tabular", description="a table that knows the right answer")  # type: ignore[assignment]

    def check_task(self, task: PromptOptions) -> None:
        if separator_of(task) is None:
            remedy = "it is told the running totals of chain_sum, with task.answer_after between them; use model or head"
            raise TrimtabError.field("learner.critic.kind", "tabular", remedy)
        if self.bootstrap:
            raise TrimtabError.field("learner.critic.bootstrap", True, "a tabular critic has no value after the last token; set false")

"""Options of tasks and of the verifier. Imports no torch; the data and the scorer are looked at when the task is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator, model_validator

from trimtab.extras import require
from trimtab.plugins import Kinds
from trimtab.tasks.shaping import ShapingOptions

EVAL_SEED = 3_000_000_000  # reasoning-gym seeds entry i with seed + i: far above every training seed, below NumPy's limit of 2**32
NoneWord = BeforeValidator(lambda value: None if value == "none" else value)  # TOML has no null
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# arguments of apply_chat_template that are not the template's
_OURS = frozenset(
    ["conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize", "tokenizer_kwargs"]
) | frozenset(["padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"])


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


ShapingChoice = Annotated[ShapingOptions, Kinds("trimtab.shapings", "task.shaping", (ShapingOptions,), default="final")]


class PromptOptions(Options):
    """How a row becomes a prompt, which part of the response is its answer, and how the score becomes a reward.

    What the options of every kind of task have. ``made_by`` and ``scored_by`` name (``module:function``) what makes the
    :class:`~trimtab.tasks.protocol.Task` and the specification of its scorer from them.
    """

    model_config = ConfigDict(defer_build=True)

    made_by: ClassVar[str]
    scored_by: ClassVar[str]
    extra: ClassVar[str | None] = None  # of Trimtab, that this kind of task needs

    kind: str
    template: str = Field(description="prompt text; {field} is filled from the row")
    compact: bool = Field(False, description="strip all white space from what is filled in")
    chat: bool = Field(False, description="send the text as a user message through the model's chat template")
    system: str | None = Field(None, description="system message before it (chat only)")
    template_args: dict[str, JsonValue] = Field(
        default_factory=dict, description="what the chat template is given beside the conversation, such as enable_thinking = false"
    )
    skip_special_tokens: bool = Field(True, description="special tokens are no part of the response that a reward sees")
    keep_stop: bool = Field(False, description="the string of rollout.stop that ended a response is part of what a reward sees")
    answer_after: str | None = Field(None, min_length=1, description="the answer is the text after the last occurrence of this")
    threshold: float = Field(1.0, allow_inf_nan=False, description="a score of at least this is correct")
    shaping: ShapingChoice = ShapingOptions()
    seed: int = Field(0, ge=0, description="of the rows: which are made (reasoning_gym), which are held out (jsonl)")

    def anchored(self) -> Self:
        """The same for a reader who stands elsewhere: relative paths are made absolute."""
        return self

    @model_validator(mode="after")
    def _system_needs_chat(self) -> Self:
        if self.system is not None and not self.chat:
            raise ValueError("task.system needs task.chat = true: plain text prompts have no system message")
        return self

    def require_extra(self) -> None:
        """MissingExtra where this kind of task needs a package that is not installed."""
        if self.extra is not None:
            require(self.extra, f"task.kind = {self.kind!r}")

    @field_validator("template_args")
    @classmethod
    def _not_ours(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        ours = sorted(_OURS & value.keys())
        if ours:
            raise ValueError(f"{', '.join(ours)}: set by Trimtab, which needs the ids of a prompt that waits for a response; leave it out")
        return value

    @model_validator(mode="after")
    def _args_need_chat(self) -> Self:
        if self.template_args and not self.conversational:
            raise ValueError("task.template_args needs task.chat = true or whole conversations: plain text passes through no template")
        return self

    @property
    def conversational(self) -> bool:
        """Prompts go through the model's chat template."""
        return self.chat

    @model_validator(mode="after")
    def _can_be_shaped(self) -> Self:
        self.shaping.check(self)
        return self


class ReasoningGymOptions(PromptOptions):
    """A family of reasoning-gym by name, with the family's own settings in ``config``."""

    made_by = "trimtab.tasks.reasoning:ReasoningGymTask"
    scored_by = "trimtab.tasks.reasoning:ReasoningGymScorer"
    extra = "environments"

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    name: str = Field("chain_sum", description="the family, as reasoning-gym calls it")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="the family's own settings; default: those of reasoning-gym")
    template: str = Field("{question}", description="filled from the entry's metadata and question")
    partial: bool = Field(False, description="keep the family's partial credit; otherwise below the threshold is 0")
    size: int = Field(10_000, ge=1, le=2**26, description="training rows")
    eval_size: int = Field(512, ge=1, le=2**20, description="held-out rows, of seeds that training never reaches")


class Columns(Options):
    """Which column of a JSONL row holds what."""

    prompt: str = Field("prompt", description="column with the text of the prompt")
    messages: str | None = Field(None, description="column with a conversation, a list of {role, content}; it takes the place of prompt")
    answer: Annotated[str | None, NoneWord] = Field("answer", description='column with the right answer; "none": the rows have none')
    source: str | None = Field(None, description="column that says where a row comes from; default: the name of its file")


class PromptFile(Options):
    """One of several files of training prompts."""

    path: str = Field(description="file with one JSON object a line")
    weight: float | None = Field(None, gt=0.0, allow_inf_nan=False, description="its share of the prompts drawn is weight / sum of weights")


class JsonlOptions(PromptOptions):
    """Prompts from a file of one JSON object a line; every column can be filled in and reaches the reward function as ``data``."""

    made_by = "trimtab.tasks.jsonl:JsonlTask"
    scored_by = "trimtab.tasks.reward:spec"

    kind: Literal["jsonl"] = "jsonl"
    path: str | None = Field(None, description="file of training prompts")
    prompts: tuple[PromptFile, ...] = Field((), description="several files instead of path, with weights or without")
    bad_rows: Literal["refuse", "set_aside"] = Field(
        "refuse", description="rows that are no prompts (null or empty cells, wrong types, an answer at the end): refuse the file, or go on"
    )
    columns: Columns = Columns()
    template: str = Field("{prompt}", description="filled from the row's columns; {prompt} is the prompt column")
    eval_path: str | None = Field(None, description="rows for evaluation; without it some rows of path are held out")
    eval_rows: int | None = Field(None, ge=1, description="number of rows held out")
    eval_fraction: float = Field(0.1, gt=0.0, lt=1.0, description="fraction held out where eval_rows is not set, at most 512 rows")
    reward: str = Field("exact", description='"exact" or "module:function", called with (prompt, response, answer, data)')

    @field_validator("reward")
    @classmethod
    def _reward_form(cls, value: str) -> str:
        if value != "exact" and not _FUNCTION.fullmatch(value):
            raise ValueError('must be "exact" or "module:function"')
        return value

    @model_validator(mode="after")
    def _one_way_each(self) -> Self:
        if self.eval_path is not None and self._changed("eval_rows", "eval_fraction"):
            raise ValueError("task.eval_path takes all rows of its file: leave out task.eval_rows and task.eval_fraction")
        if self.columns.messages is not None and self._changed("template", "chat", "system"):
            raise ValueError("task.columns.messages brings whole conversations: leave out task.template, task.chat and task.system")
        if self.reward != "exact" and self._changed("answer_after"):
            raise ValueError('task.answer_after is for task.reward = "exact": a reward function sees the whole response')
        if self.reward == "exact" and self.columns.answer is None:
            raise ValueError('task.reward = "exact" compares with an answer: set task.columns.answer')
        return self

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.path is None and not self.prompts:
            raise ValueError(
                "task.path is missing: it has no default, set it in the file or as task.path=VALUE, "
                'or give several files as task.prompts = [{path = "FILE", weight = 1.0}, ...]'
            )
        if self.path is not None and self.prompts:
            raise ValueError("task.path and task.prompts both name the prompts: leave one of them out")
        paths = [file.path for file in self.prompts]
        if len(set(paths)) < len(paths):
            raise ValueError(f"task.prompts names a file twice ({', '.join(paths)}): name it once, with the weight of both")
        if len({file.weight is None for file in self.prompts}) > 1:
            raise ValueError("task.prompts: give every file a weight, or none of them: without weights every row comes once an epoch")
        return self

    def anchored(self) -> Self:
        def absolute(path: str | None) -> str | None:
            return None if path is None else str(Path(path).absolute())

        prompts = tuple(file.model_copy(update={"path": absolute(file.path)}) for file in self.prompts)
        return self.model_copy(update={"path": absolute(self.path), "eval_path": absolute(self.eval_path), "prompts": prompts})

    @property
    def conversational(self) -> bool:
        return self.chat or self.columns.messages is not None

    @property
    def files(self) -> tuple[PromptFile, ...]:
        """The files of training prompts, however they are named."""
        return self.prompts if self.path is None else (PromptFile(path=self.path),)

    def _changed(self, *names: str) -> bool:
        """One of these differs from its default. What was *written* does not count: a resolved configuration writes everything."""
        return any(getattr(self, name) != type(self).model_fields[name].default for name in names)


class VerifierOptions(Options):
    """Scorers run in processes of their own, killed at the deadline."""

    workers: int = Field(1, ge=1, description="scorer processes of each rollout worker: as many responses are judged at once")
    deadline_s: float = Field(5.0, gt=0.0, description="seconds for one response; the process that needs longer is killed and replaced")
    first_deadline_s: float = Field(
        30.0,
        gt=0.0,
        description="seconds for the first response of a process, where it is longer: what a scorer imports when it is first used",
    )
    timeout: Literal["error", "zero"] = Field(
        "error", description='a response without a verdict in time: "error", it leaves its group; "zero", it gets a reward of 0'
    )
    start_s: float = Field(60.0, gt=0.0, description="seconds for a process to start and load the scorer")
    max_failures: int = Field(64, ge=1, description="errors and timeouts in a row that stop the run")
    memory_gib: Annotated[float | None, NoneWord] = Field(
        4.0, gt=0.0, description='address space a scorer may take beyond what loading it took; "none": all it wants'
    )

    isolate: bool = Field(
        True, description="scorers in a process namespace, where Linux allows one: they can signal nothing of the run, and none outlives it"
    )

    @property
    def first_s(self) -> float:
        """The deadline of a process's first response."""
        return max(self.deadline_s, self.first_deadline_s)

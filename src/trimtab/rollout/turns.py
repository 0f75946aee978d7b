"""What a chat template and a tokenizer say about turns: where one ends, and which arguments the template reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from trimtab.records import Json, TrimtabError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAID = "0"  # in every vocabulary of characters, and in no template beside the conversation
_TALK = ("1", _SAID, "2")


def end_of_turn(tokenizer: PreTrainedTokenizerBase, args: Mapping[str, Json]) -> tuple[str, int] | None:
    """The special token that the chat template puts after what the assistant says, and its id; None where there is none."""
    roles = ("user", "assistant", "user")
    talk = [{"role": role, "content": content} for role, content in zip(roles, _TALK, strict=True)]
    try:
        text = str(through(tokenizer, talk, args, tokenize=False, add_generation_prompt=False))
    except Exception:  # noqa: BLE001 - a template may refuse this conversation for any reason, and then nothing is known
        return None
    _, said, after = text.rpartition(_SAID)
    special = {str(token): i for token, i in tokenizer.get_added_vocab().items()}
    first = max((token for token in special if said and after.lstrip().startswith(token)), key=len, default=None)
    return None if first is None else (first, special[first])


def runs_past(tokenizer: PreTrainedTokenizerBase, args: Mapping[str, Json], stop_ids: Collection[int]) -> str:
    """The sentence about a chat template whose end of turn ends no response; "" where it does."""
    end = end_of_turn(tokenizer, args)
    if end is None or end[1] in stop_ids:
        return ""
    token, i = end
    ending = ", ".join(map(str, stop_ids))
    return (
        f"the chat template ends a turn with {token!r} (id {i}), which ends no response (those that do: {ending}): responses run past the "
        f'end of their turn; set rollout.stop = ["{token}"], or add {i} to eos_token_id in the generation_config.json of the model folder'
    )


def through(tokenizer: PreTrainedTokenizerBase, talk: Sequence[Mapping[str, str]], args: Mapping[str, Json], **ours: bool) -> object:
    """What the chat template makes of a conversation; ``args`` are the template's, ``ours`` those of ``apply_chat_template``."""
    apply = cast(Callable[..., object], tokenizer.apply_chat_template)
    return apply([dict(message) for message in talk], **ours, **args)


def check_args(tokenizer: PreTrainedTokenizerBase, args: Mapping[str, Json]) -> None:
    """Raises TrimtabError for an argument that the chat template does not read: it would change nothing, silently."""
    try:
        template = tokenizer.get_chat_template()
    except ValueError:  # there is none, which every prompt will say
        return
    for name, value in args.items():
        if not re.search(rf"\b{re.escape(name)}\b", template):
            remedy = "the model's chat template does not read it, so it would change nothing; take a name that stands in the template"
            raise TrimtabError.field(f"task.template_args.{name}", value, remedy)

"""Prompts to ids and back: nothing is silently lost, and what does not fit is named."""

import numpy as np
import pytest

from support.tiny import tiny_tokenizer
from trimtab.records import TrimtabError
from trimtab.rollout.render import Renderer
from trimtab.tasks.protocol import Prompt

BOS, EOS, FIRST = 1, 2, 3
CHAT = "{% for m in messages %}{{ '<bos>' if loop.first }}{{ m['content'] }}{{ '=' }}{% endfor %}{{ '-' if add_generation_prompt }}"


def prompt(text: str, **more: object) -> Prompt:
    return Prompt(row=5, text=text, answer="", source="", data={}, **more)


def renderer(context: int = 16, new: int = 4, chat: str | None = None, bos: bool = True) -> Renderer:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat
    if not bos:
        tokenizer.bos_token = None
    return Renderer(tokenizer, context=context, max_new_tokens=new, stop_ids=(EOS,))


def test_text_is_bos_and_its_characters() -> None:
    ids = renderer().ids(prompt("12+="))
    assert ids.dtype == np.int32
    assert ids.tolist() == [BOS, FIRST + 1, FIRST + 2, FIRST + 10, FIRST + 12]
    assert renderer(bos=False).ids(prompt("12")).tolist() == [FIRST + 1, FIRST + 2]


def test_a_conversation_goes_through_the_template_once() -> None:
    talk = ({"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"})
    ids = renderer(chat=CHAT).ids(prompt("3", messages=talk))
    assert ids.tolist() == [BOS, FIRST + 1, FIRST + 12, FIRST + 2, FIRST + 12, FIRST + 3, FIRST + 12, FIRST + 11], "one BOS: the template's"


def test_the_limit_is_exact_and_named() -> None:
    assert len(renderer().ids(prompt("1" * 11))) == 12
    with pytest.raises(TrimtabError, match=r"prompt of row 5 has 13 tokens; the context of 16 less rollout\.max_new_tokens = 4 leaves 12"):
        renderer().ids(prompt("1" * 12))


def test_what_cannot_be_rendered_is_one_sentence() -> None:
    with pytest.raises(TrimtabError, match="row 5 holds text the tokenizer has no token for: '1 plus 2'"):
        renderer().ids(prompt("1 plus 2"))
    with pytest.raises(TrimtabError, match="row 5 is empty and the tokenizer has no BOS"):
        renderer(bos=False).ids(prompt(""))
    talk = ({"role": "user", "content": "1"},)
    with pytest.raises(TrimtabError, match="conversation of row 5 does not go through the chat template"):
        renderer().ids(prompt("1", messages=talk))
    strict = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TrimtabError, match=r"row 5 does not go through the chat template \(roles must alternate\)"):
        renderer(chat=strict).ids(prompt("1", messages=talk))


def test_text_of_a_response() -> None:
    r = renderer()
    assert r.text(np.array([FIRST + 4, FIRST + 13, FIRST + 2, EOS], np.int32)) == "4,2"
    assert r.text(np.array([FIRST + 4, FIRST + 13, FIRST + 2], np.int32)) == "4,2", "a truncated response keeps its last token"
    assert r.text(np.array([BOS, FIRST + 4, EOS], np.int32)) == "4", "special tokens are no text"
    assert r.text(np.array([EOS], np.int32)) == ""
    stops_at_comma = Renderer(tiny_tokenizer(), context=16, max_new_tokens=4, stop_ids=(EOS, FIRST + 13))
    assert stops_at_comma.text(np.array([FIRST + 4, FIRST + 13], np.int32)) == "4", "whatever id ended it is not part of the answer"

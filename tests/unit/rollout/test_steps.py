"""Step-level rewards land on the token that completes their characters, whatever the tokenizer, and sum to the rollout's reward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support.tiny import tiny_tokenizer
from trimtab.records import I32, Outcome, Sampling, Segment
from trimtab.rollout.render import Renderer
from trimtab.rollout.steps import rewarded
from trimtab.tasks.protocol import Step, Verdict
from trimtab.tasks.shaping import ShapingOptions

PLAIN = ShapingOptions()
EOS = 0


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level pieces: digits in pairs, "=" with its comma, the bytes of anything else one by one. Id 0 is <eos>, 1 <pad>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in "0123456789" for b in "0123456789"] + [("=", ",")]
    vocabulary = {token: i for i, token in enumerate(["<eos>", "<pad>", *alphabet, *(a + b for a, b in pairs)])}
    backend = Tokenizer(models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


def blank_tokenizer() -> PreTrainedTokenizerFast:
    """Words that carry the blank before them; the first blank of a text is dropped, as SentencePiece models do."""
    vocabulary = {token: i for i, token in enumerate(["<eos>", "<pad>", "▁12", "▁7", "3", ",", "▁"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


BYTES, BLANKS = bytes_tokenizer(), blank_tokenizer()


def renderer(tokenizer: PreTrainedTokenizerFast) -> Renderer:
    return Renderer(tokenizer, context=256, max_new_tokens=64, stop_ids=(EOS,))


def first_agreeing(tokenizer: PreTrainedTokenizerFast, ids: list[int], end: int) -> int:
    """The first token from which on every decoded beginning has the same ``end`` characters as the whole: by brute force."""
    beginnings = [tokenizer.decode(ids[: n + 1], skip_special_tokens=True) for n in range(len(ids))]
    return min(n for n in range(len(ids)) if all(b[:end] == beginnings[-1][:end] for b in beginnings[n:]))


@given(text=st.text(alphabet="0123456789=,-+ é€𝛑", min_size=1, max_size=12), ended=st.booleans(), data=st.data())
def test_a_token_of_several_characters_and_a_character_of_several_tokens(text: str, ended: bool, data: st.DataObject) -> None:
    ids: list[int] = BYTES.encode(text, add_special_tokens=False)
    response = np.array([*ids, EOS] if ended else ids, np.int32)
    r = renderer(BYTES)
    assert r.text(response) == text
    ends = data.draw(st.lists(st.integers(1, len(text)), max_size=4))
    assert r.completing(response, ends) == [first_agreeing(BYTES, ids, end) for end in ends]
    assert r.completing(response, [None, len(text)]) == [len(response) - 1, len(ids) - 1]


@given(ids=st.lists(st.integers(2, len(BYTES) - 1), min_size=1, max_size=10), data=st.data())
def test_bytes_that_are_no_text(ids: list[int], data: st.DataObject) -> None:
    r, response = renderer(BYTES), np.array(ids, np.int32)
    ends = data.draw(st.lists(st.integers(1, len(r.text(response))), max_size=4))
    assert r.completing(response, ends) == [first_agreeing(BYTES, ids, end) for end in ends]


@given(ids=st.lists(st.integers(2, 6), min_size=1, max_size=8), data=st.data())
def test_a_leading_blank_that_the_text_lacks(ids: list[int], data: st.DataObject) -> None:
    r, response = renderer(BLANKS), np.array(ids, np.int32)
    if not r.text(response):
        return
    ends = data.draw(st.lists(st.integers(1, len(r.text(response))), max_size=4))
    assert r.completing(response, ends) == [first_agreeing(BLANKS, ids, end) for end in ends]


def test_known_places() -> None:
    response = np.array([*BYTES.encode("112=,€7", add_special_tokens=False), EOS], np.int32)
    assert [BYTES.convert_ids_to_tokens(int(i)) for i in response] == ["11", "2", "=,", "â", "Ĥ", "¬", "7", "<eos>"]
    assert renderer(BYTES).completing(response, [1, 2, 3, 4, 5, 6, 7, None]) == [0, 0, 1, 2, 2, 5, 6, 7]


def segment(tokens: list[int], mask: str, turns: str) -> Segment:
    acted = np.array([c == "a" for c in mask])
    return Segment(
        tokens=np.array(tokens, np.int32),
        action_mask=acted,
        behavior_logp=np.zeros(len(tokens), np.float32),
        versions=np.where(acted, 0, -1).astype(np.int32),
        turn=np.array([int(t) for t in turns], np.int16),
        sampling=Sampling(),
    )


def verdict(*steps: Step, score: float = 0.0) -> Verdict:
    return Verdict(score=score, outcome=Outcome.WRONG, steps=steps)


def test_turns_of_one_segment_and_of_several() -> None:
    tokenizer = tiny_tokenizer()
    ids = {c: tokenizer.convert_tokens_to_ids(c) for c in "0123456789=,"} | {"$": 2, "^": 1}
    one = segment([ids[c] for c in "^1=11,5$=7,33$"], "...aaaaa.aaaaa", "00000000011111")
    two = segment([ids[c] for c in "^=9,$"], "..aaa", "22222")
    parts, reward = rewarded(
        [one, two],
        verdict(
            Step(0.5, 2), Step(0.25, 4), Step(4.0, turn=0), Step(1.0, 1, turn=1), Step(2.0, turn=1), Step(8.0, 2, turn=2), Step(16.0, 2)
        ),
        ShapingOptions(offset=-3.0, scale=2.0),
        Renderer(tokenizer, context=64, max_new_tokens=8, stop_ids=(2,)).completing,
    )
    assert parts[0].reward is not None
    assert parts[1].reward is not None
    #                                  ^  1  =  1  1     ,  5    $    =  7    ,  3  3  $
    assert parts[0].reward.tolist() == [0, 0, 0, 0, 33.0, 0, 0.5, 8.0, 0, 2.0, 0, 0, 0, 4.0]
    assert parts[1].reward.tolist() == [0, 0, 0, 16.0, -3.0]
    assert reward == sum(float(p.reward.sum()) for p in parts if p.reward is not None)
    assert not any(p.reward[~p.action_mask].any() for p in parts if p.reward is not None)


@given(
    count=st.integers(1, 12),
    steps=st.lists(st.tuples(st.floats(-10, 10), st.none() | st.integers(1, 12)), max_size=6),
    scale=st.floats(0.1, 10),
    offset=st.floats(-10, 10),
)
def test_the_parts_sum_to_the_reward(count: int, steps: list[tuple[float, int | None]], scale: float, offset: float) -> None:
    one = segment([1, *[5] * count], "." + "a" * count, "0" * (count + 1))
    found = verdict(*(Step(r, None if end is None else min(end, count)) for r, end in steps))

    def by_character(response: I32, ends: list[int | None]) -> list[int]:
        return [len(response) - 1 if end is None else end - 1 for end in ends]

    (part,), reward = rewarded([one], found, ShapingOptions(scale=scale, offset=offset), by_character)
    assert part.reward is not None
    assert reward == part.reward.astype(np.float64).sum()
    assert reward == pytest.approx(offset + scale * sum(r for r, _ in steps), abs=1e-4)


def test_without_steps_the_score_is_shifted_and_stays() -> None:
    one = segment([1, 5], ".a", "00")
    for score, found in ((0.0, -1.0), (1.0, 1.0)):
        parts, reward = rewarded(
            [one], Verdict(score=score, outcome=Outcome.WRONG), ShapingOptions(offset=-1.0, scale=2.0), lambda r, e: []
        )
        assert (parts, reward) == ((one,), found)
    assert rewarded([one], Verdict(score=1.0, outcome=Outcome.CORRECT), PLAIN, lambda r, e: [])[1] is None, "the reward is the score"
    assert rewarded([one], Verdict(score=1.0, outcome=Outcome.CORRECT, reward=0.5), PLAIN, lambda r, e: [])[1] == 0.5
    timeout = Verdict(score=0.0, outcome=Outcome.TIMEOUT)
    assert rewarded([one], timeout, ShapingOptions(offset=1.0), lambda r, e: [])[1] == 1.0, "as every wrong answer"


def test_no_step_is_a_reward_of_zero_whatever_the_score() -> None:
    (part,), reward = rewarded([segment([1, 5], ".a", "00")], verdict(score=1.0), PLAIN, lambda r, e: [])
    assert part.reward is not None
    assert (part.reward.tolist(), reward) == ([0.0, 0.0], 0.0)

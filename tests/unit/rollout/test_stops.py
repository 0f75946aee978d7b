"""Stop strings are found where the text has them, whatever the tokens' borders; turns that end nothing are said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny import BYTE_TEXTS, TURN, bytes_tokenizer, tiny_policy, tiny_tokenizer
from trimtab.engines.options import TorchEngineOptions
from trimtab.records import TrimtabError
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.sampler import make_renderer
from trimtab.rollout.stops import StopStrings
from trimtab.rollout.turns import check_args, end_of_turn, runs_past
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import Prompt

STOPS = ["</answer>", "</答>", "\n\nQ", " "]


def ids_of(*pieces: str) -> np.ndarray:
    tokenizer = bytes_tokenizer()
    return np.array([i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)], np.int32)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from([*STOPS, *BYTE_TEXTS, "a", "</", "answer", ">", "数", TURN]), max_size=6),
    st.lists(st.integers(0, 329), max_size=6),
    st.lists(st.sampled_from(STOPS), min_size=1, max_size=3, unique=True),
)
def test_a_response_ends_with_the_token_that_completes_a_stop_string(pieces: list[str], noise: list[int], stops: list[str]) -> None:
    tokenizer = bytes_tokenizer()
    rule = StopStrings(tokenizer, stops)
    size = len(tokenizer)
    ids = np.concatenate([ids_of(*pieces), np.array([n for n in noise if n < size], np.int32)]).astype(np.int32)
    texts = [
        tokenizer.decode(ids[: n + 1].tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False) for n in range(len(ids))
    ]
    expected = next((n for n, text in enumerate(texts) if any(s in text for s in stops)), None)
    found = next((n for n in range(len(ids)) if rule.ends(ids[: n + 1])), None)
    assert found == expected


def shown(ids: np.ndarray, stops: list[str], **options: bool) -> str:
    tokenizer = bytes_tokenizer()
    return Renderer(tokenizer, context=64, max_new_tokens=32, stop_ids=(0,), stops=StopStrings(tokenizer, stops), **options).text(ids)


def test_a_reward_sees_the_text_up_to_the_stop_string_or_through_it() -> None:
    ids = ids_of("<answer>12", "</answer>.\n")
    assert shown(ids, ["</answer>"]) == "<answer>12"
    assert shown(ids, ["</answer>"], keep_stop=True) == "<answer>12</answer>"
    assert shown(ids, ["</nothing>"]) == "<answer>12</answer>.\n"
    assert shown(ids, ["</answer>", "12<"]) == "<answer>", "the first of them in the text"
    assert shown(ids_of("a", TURN, "b", "</answer>"), ["</answer>"]) == "ab"
    assert shown(ids_of("a", TURN, "b", "</answer>"), ["</answer>"], skip_special=False) == f"a{TURN}b"
    assert shown(ids_of("数字", "</答>"), ["</答>"]) == "数字"


def test_special_tokens_reach_a_reward_that_asks_for_them() -> None:
    tokenizer = bytes_tokenizer()
    ids = np.append(ids_of("a", TURN, "b"), 0).astype(np.int32)
    assert Renderer(tokenizer, context=64, max_new_tokens=32, stop_ids=(0,)).text(ids) == "ab"
    seen = Renderer(tokenizer, context=64, max_new_tokens=32, stop_ids=(0,), skip_special=False)
    assert seen.text(ids) == f"a{TURN}b", "without the id that ended it"
    assert seen.completing(ids, [1, 1 + len(TURN), 2 + len(TURN), None]) == [0, 1, 2, 3]


def test_step_rewards_stand_where_they_did_before_the_stop_string() -> None:
    tokenizer, ids = bytes_tokenizer(), ids_of("a", "b", "</answer>")
    renderer = Renderer(tokenizer, context=64, max_new_tokens=32, stop_ids=(0,), stops=StopStrings(tokenizer, ["</answer>"]))
    assert renderer.completing(ids, [1, 2, None]) == [0, 1, len(ids) - 1]


# ------------------------------------------------------------------------------------------------------------------------- turns

CHATML = (
    "{% if thinking is defined and not thinking %}-{% endif %}"
    "{% for m in messages %}{{ m['role'][0] | replace('u', '+') | replace('a', '=') }}{{ m['content'] }}{{ '<eos>' }}{% endfor %}"
)


def test_the_end_of_turn_that_ends_nothing_is_said_with_the_remedy() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML.replace("<eos>", "<bos>\\n")
    assert end_of_turn(tokenizer, {}) == ("<bos>", 1)
    said = runs_past(tokenizer, {}, (2,))
    assert said.startswith("the chat template ends a turn with '<bos>' (id 1), which ends no response (those that do: 2)")
    assert 'set rollout.stop = ["<bos>"], or add 1 to eos_token_id in the generation_config.json' in said
    assert runs_past(tokenizer, {}, (2, 1)) == ""
    for template in ("{% for m in messages %}{{ m['content'] }}={% endfor %}", "{{ raise_exception('no') }}", "{{ 1 // 0 }}"):
        tokenizer.chat_template = template
        assert end_of_turn(tokenizer, {}) is None


def test_a_run_s_renderer_knows_turns_stops_and_arguments() -> None:
    policy = tiny_policy(context=64)
    policy.tokenizer.chat_template = CHATML.replace("<eos>", "<bos>")
    chat = JsonlOptions(path="a.jsonl", chat=True)

    def made(task: JsonlOptions = chat, **rollout: object) -> Renderer:
        return make_renderer(policy, task, RolloutOptions(max_new_tokens=8, **rollout), TorchEngineOptions())

    assert "rollout.stop" in made().notes[0]
    assert made(JsonlOptions(path="a.jsonl")).notes == ()
    stopping = made(stop=["<bos>", 5, "1+"])
    assert (stopping.stop_ids, stopping.notes) == ((2, 1, 5), ())
    assert stopping.stops is not None
    assert stopping.stops.ends(np.array([4, 13], np.int32))
    with pytest.raises(TrimtabError, match=r"rollout\.stop = 99: the tokenizer has no such id"):
        made(stop=[99])
    with pytest.raises(TrimtabError, match=r"task\.template_args\.thinkin = False: the model's chat template does not read it"):
        made(JsonlOptions(path="a.jsonl", chat=True, template_args={"thinkin": False}))


def test_arguments_reach_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML
    talk = ({"role": "user", "content": "1"},)
    asked = Prompt(row=0, text="1", answer="", source="", data={}, messages=talk)
    for args, minus in (({}, False), ({"thinking": True}, False), ({"thinking": False}, True)):
        check_args(tokenizer, args)
        ids = Renderer(tokenizer, context=16, max_new_tokens=4, stop_ids=(2,), template_args=args).ids(asked)
        assert (14 in ids.tolist()) is minus


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"template_args": {"thinking": False}}, "needs task.chat = true or whole conversations"),
        ({"chat": True, "template_args": {"tokenize": False}}, "tokenize: set by Trimtab"),
    ],
)
def test_arguments_that_cannot_be_given(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        JsonlOptions(path="a.jsonl", **options)
    JsonlOptions(path="a.jsonl", columns={"messages": "m"}, template_args={"thinking": False})


@pytest.mark.parametrize("stop", [[""], [-1], [True], [1.5], [["a"]], [None]])
def test_what_is_no_stop(stop: list[object]) -> None:
    with pytest.raises(ValueError, match="ends no response; give token ids and strings"):
        RolloutOptions(max_new_tokens=4, stop=stop)
    assert RolloutOptions(max_new_tokens=4, stop="</answer>").stop == ("</answer>",)

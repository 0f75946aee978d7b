"""The embedded engine against transformers: log-probs, tokens, independence of the batch, and how requests end."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.oracle import sample_alone, score_whole
from tests.support.tiny import tiny_policy

from trimtab import keyed
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Completion, Request
from trimtab.engines.rows import Rows
from trimtab.engines.torch_engine import TorchEngine
from trimtab.engines.waiting import ReadyRequest
from trimtab.records import Sampling, Segment, StopReason, TrimtabError

EOS = 2
WIDE = TorchEngineOptions(slots=8, dtype="float64")


def requests(n: int, *, sampling: Sampling = Sampling(), seed: int = 0, stop: bool = False, longest: int = 40) -> list[Request]:
    """Prompts of 1 to 20 tokens, some of them shared, and 1 to ``longest`` new tokens."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(3, 17, draw.integers(1, 21)).astype(np.int32) for _ in range(n)]
    return [
        Request(
            id=i,
            prompt=prompts[i - i % 2] if i % 3 else prompts[i],
            max_new_tokens=int(draw.integers(1, longest + 1)),
            sampling=sampling,
            key=keyed.stream(seed, 0, i, 0, 0),
            turn=i % 2,
            stop_ids=(EOS,) if stop else (),
        )
        for i in range(n)
    ]


def drain(engine: TorchEngine, n: int) -> dict[int, Completion]:
    """Step until ``n`` requests have completed; each exactly once."""
    done: dict[int, Completion] = {}
    for _ in range(100 * n):
        for completion in engine.step():
            assert completion.id not in done
            done[completion.id] = completion
        if len(done) == n:
            assert engine.step() == []
            return done
    raise AssertionError(f"only {len(done)} of {n} requests completed")


def generate(engine: TorchEngine, batch: list[Request]) -> dict[int, Completion]:
    for request in batch:
        engine.submit(request)
    return drain(engine, len(batch))


def segment(request: Request, completion: Completion) -> Segment:
    prompt, new = len(request.prompt), len(completion.tokens)
    mask = np.arange(prompt + new) >= prompt
    return Segment(
        tokens=np.concatenate([request.prompt, completion.tokens]),
        action_mask=mask,
        behavior_logp=np.concatenate([np.zeros(prompt, np.float32), completion.logp]),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn=np.zeros(prompt + new, np.int16),
        sampling=request.sampling,
        kept=completion.kept,
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "gap"), [("float32", 1e-6), ("float64", 1e-12)])
def test_log_probs_equal_a_full_forward_of_transformers(
    tied: bool, kv_heads: int, dtype: str, gap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy(tied, kv_heads=kv_heads, dtype=getattr(torch, dtype), sharpness=0.1)  # an untrained head: logits well below 1
    exact: list[dict[int, float]] = []  # what the engine computed, before it is recorded as float32
    record = Rows.record

    def spy(rows: Rows, tokens: np.ndarray, logp: np.ndarray, due: np.ndarray) -> np.ndarray:
        exact.append({running.request.id: float(v) for running, v in zip(rows.running, logp, strict=False) if running is not None})
        return record(rows, tokens, logp, due)

    monkeypatch.setattr(Rows, "record", spy)
    batch = requests(20)
    done = generate(TorchEngine(policy, TorchEngineOptions(slots=8, dtype=dtype)), batch)
    for request in batch:
        whole = score_whole(policy.model, request.prompt, done[request.id].tokens)
        computed = np.array([step[request.id] for step in exact if request.id in step])
        np.testing.assert_allclose(computed, whole, rtol=0, atol=gap)
        np.testing.assert_array_equal(done[request.id].logp, computed.astype(np.float32))


def test_engine_and_scorer_agree_at_temperature_0_6() -> None:
    policy = tiny_policy()
    engine = TorchEngine(policy, TorchEngineOptions(slots=8))
    batch = requests(24, sampling=Sampling(temperature=0.6))
    done = generate(engine, batch)
    scored = engine.score([segment(r, done[r.id]) for r in batch])
    for request, logp in zip(batch, scored, strict=True):
        np.testing.assert_allclose(logp, done[request.id].logp, rtol=0, atol=1e-5)
        np.testing.assert_allclose(logp, score_whole(policy.model, request.prompt, done[request.id].tokens, 0.6), rtol=0, atol=1e-5)


def test_tokens_equal_sampling_alone_without_a_cache() -> None:
    policy = tiny_policy(dtype=torch.float64)
    batch = requests(12, sampling=Sampling(temperature=0.8), stop=True, longest=20)
    done = generate(TorchEngine(policy, replace_slots(WIDE, 3)), batch)
    for request in batch:
        tokens, logp = sample_alone([policy.model], request)
        assert done[request.id].tokens.tolist() == tokens
        np.testing.assert_allclose(done[request.id].logp, logp, rtol=1e-6)


def replace_slots(options: TorchEngineOptions, slots: int) -> TorchEngineOptions:
    return options.model_copy(update={"slots": slots})


def test_slot_batch_and_order_of_submission_do_not_matter() -> None:
    policy = tiny_policy(dtype=torch.float64)
    mixed = [Sampling(), Sampling(temperature=0.7, top_k=4), Sampling(top_p=0.8), Sampling(allowed=tuple(range(2, 10)))]
    batch = [replace(r, sampling=mixed[r.id % 4]) for r in requests(40, stop=True)]
    one_by_one = {r.id: generate(TorchEngine(policy, replace_slots(WIDE, 1)), [r])[r.id] for r in batch}
    shuffled = [batch[i] for i in np.random.default_rng(1).permutation(len(batch))]
    for slots, order in ((3, batch), (64, batch), (7, shuffled), (40, shuffled[::-1])):
        done = generate(TorchEngine(policy, replace_slots(WIDE, slots)), order)
        for i, alone in one_by_one.items():
            assert done[i].tokens.tolist() == alone.tokens.tolist()
            np.testing.assert_allclose(done[i].logp, alone.logp, rtol=2e-7)  # one rounding to float32
            assert (done[i].kept is None) == (i % 4 == 0)
            if alone.kept is not None and done[i].kept is not None:
                np.testing.assert_array_equal(done[i].kept.ids, alone.kept.ids)


def test_requests_that_come_late_change_nothing() -> None:
    policy = tiny_policy(dtype=torch.float64)
    batch = requests(20)
    at_once = generate(TorchEngine(policy, replace_slots(WIDE, 4)), batch)
    engine = TorchEngine(policy, replace_slots(WIDE, 4))
    done: dict[int, Completion] = {}
    late = list(batch)
    while len(done) < len(batch):
        if late:
            engine.submit(late.pop(0))
        done.update((c.id, c) for c in engine.step())
    assert {i: c.tokens.tolist() for i, c in done.items()} == {i: c.tokens.tolist() for i, c in at_once.items()}


def test_a_freed_place_is_refilled_before_the_next_token() -> None:
    engine = TorchEngine(tiny_policy(), TorchEngineOptions(slots=4))
    lengths = [3, 9, 5, 2, 7, 4, 6, 8, 1, 5]
    for i, length in enumerate(lengths):
        engine.submit(replace(requests(10)[i], max_new_tokens=length))
    steps, tokens = 0, 0
    while tokens < sum(lengths):
        tokens += sum(len(c.tokens) for c in engine.step())
        steps += 1
        # A place stays empty only once nobody waits.
        assert engine.running <= 4
    # The same requests on four places, each taking the next request the moment it is free.
    places = [0] * 4
    for length in lengths:
        places[places.index(min(places))] += length
    assert steps == max(places)


def test_a_rollout_begins_with_the_step_that_computes_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(tiny_policy(), TorchEngineOptions(slots=4))
    take = engine._waiting.take

    def slowly(wanted: int) -> list[ReadyRequest]:
        time.sleep(0.05)
        return take(wanted)

    monkeypatch.setattr(engine._waiting, "take", slowly)
    engine.submit(replace(requests(1)[0], max_new_tokens=1))
    (done,) = engine.step()
    assert done.finished - done.started >= 0.05


def test_why_a_row_ends() -> None:
    policy = tiny_policy()
    batch = requests(30, longest=60)
    free = generate(TorchEngine(policy, TorchEngineOptions(slots=8)), batch)
    stopped = generate(TorchEngine(policy, TorchEngineOptions(slots=8)), [replace(r, stop_ids=(EOS, 7)) for r in batch])
    seen = set()
    for request in batch:
        tokens = free[request.id].tokens.tolist()
        assert free[request.id].stop is StopReason.LENGTH
        assert len(tokens) == request.max_new_tokens
        end = next((i for i, t in enumerate(tokens) if t in (EOS, 7)), None)
        expected = StopReason.LENGTH if end is None else StopReason.EOS if tokens[end] == EOS else StopReason.STOP
        assert stopped[request.id].stop is expected
        assert stopped[request.id].tokens.tolist() == tokens[: None if end is None else end + 1]  # the stop token is kept
        seen.add(expected)
    assert seen == {StopReason.LENGTH, StopReason.EOS, StopReason.STOP}


def test_a_rule_ends_a_row_with_the_token_it_asks_about_and_changes_no_log_prob() -> None:
    """Two ids in a row, whatever was before them: tokens and log-probs are those of the row that goes on, up to and with the last."""
    policy = tiny_policy(dtype=torch.float64)
    batch = requests(30, longest=60)
    free = generate(TorchEngine(policy, WIDE), batch)

    def twice(tokens: np.ndarray) -> bool:
        return len(tokens) > 1 and tokens[-1] == tokens[-2]

    ruled = [replace(r, stop_ids=(EOS,), stop_rule=twice if r.id % 3 else None) for r in batch]
    stopped = generate(TorchEngine(policy, WIDE), ruled)
    seen = set()
    for request in ruled:
        tokens, done = free[request.id].tokens.tolist(), stopped[request.id]
        ends = [i for i, t in enumerate(tokens) if t == EOS or (request.stop_rule and i and t == tokens[i - 1])]
        made = tokens[: ends[0] + 1] if ends else tokens
        expected = StopReason.LENGTH if not ends else StopReason.EOS if made[-1] == EOS else StopReason.STOP
        assert (done.stop, done.tokens.tolist()) == (expected, made)
        np.testing.assert_allclose(done.logp, free[request.id].logp[: len(made)], rtol=1e-6)
        seen.add(expected)
    assert seen == {StopReason.LENGTH, StopReason.EOS, StopReason.STOP}


def test_cancel_frees_the_place_and_changes_nobody_else() -> None:
    policy = tiny_policy(dtype=torch.float64)
    batch = [replace(r, max_new_tokens=20 if r.id else 3) for r in requests(12)]
    whole = generate(TorchEngine(policy, replace_slots(WIDE, 4)), batch)
    engine = TorchEngine(policy, replace_slots(WIDE, 4))
    for request in batch:
        engine.submit(request)
    assert [c.id for _ in range(5) for c in engine.step()] == [0]
    assert engine.running == 4
    engine.cancel(1)  # running
    engine.cancel(5)  # waiting, made ready together with 4, which took the place of 0
    engine.cancel(9)  # waiting
    engine.cancel(0)  # has ended
    engine.cancel(99)  # never was here
    assert engine.running == 3
    rest = drain(engine, 8)
    assert set(rest) == set(range(12)) - {0, 1, 5, 9}
    assert all(rest[i].tokens.tolist() == whole[i].tokens.tolist() for i in rest)
    for request in batch:
        engine.submit(request)
    engine.step()
    for request in batch:
        engine.cancel(request.id)
    assert engine.step() == []
    assert engine.running == 0


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.7), Sampling(temperature=0.6, top_k=3), Sampling(allowed=(2, 3, 4, 5), top_p=0.9)])
@torch.no_grad()
def test_kept_sets_are_sound(sampling: Sampling) -> None:
    policy = tiny_policy()
    engine = TorchEngine(policy, TorchEngineOptions(slots=8))
    batch = requests(16, sampling=sampling, stop=True)
    done = generate(engine, batch)
    segments = [segment(r, done[r.id]) for r in batch]  # refuses a kept set too many or too few
    for request, scored in zip(batch, engine.score(segments), strict=True):
        completion = done[request.id]
        assert completion.kept is not None
        np.testing.assert_allclose(scored, completion.logp, rtol=0, atol=1e-5)
        ids = torch.from_numpy(np.concatenate([request.prompt, completion.tokens]).astype(np.int64))
        z = policy.model(ids[None]).logits[0, len(request.prompt) - 1 : -1] / sampling.temperature
        for i, token in enumerate(completion.tokens):
            kept = completion.kept.ids[completion.kept.indptr[i] : completion.kept.indptr[i + 1]].astype(np.int64)
            assert token in kept
            assert list(kept) == sorted(set(kept))
            assert sampling.top_k == 0 or len(kept) == sampling.top_k
            inside = z[i, kept].logsumexp(-1)
            assert float(z[i, token] - inside) == pytest.approx(float(completion.logp[i]), abs=1e-5)
            allowed = list(sampling.allowed) if sampling.allowed else list(range(17))
            if sampling.top_p < 1:
                assert float((inside - z[i, allowed].logsumexp(-1)).exp()) >= sampling.top_p - 1e-6
    # A cut that was recorded without its kept sets is made again: the same, under the same weights.
    again = engine.score([replace(s, kept=None) for s in segments])
    for scored, request in zip(again, batch, strict=True):
        np.testing.assert_allclose(scored, done[request.id].logp, rtol=0, atol=1e-5)


def test_score_takes_action_tokens_wherever_they_stand() -> None:
    policy = tiny_policy()
    engine = TorchEngine(policy, TorchEngineOptions(slots=2))
    tokens = np.array([1, 5, 9, 4, 13, 2, 8, 8], np.int32)
    mask = np.array([0, 0, 1, 1, 0, 0, 1, 0], bool)
    two_turns = Segment(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.zeros(8, np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn=np.zeros(8, np.int16),
        sampling=Sampling(),
    )
    nothing = replace(two_turns, action_mask=np.zeros(8, bool))
    scored, empty = engine.score([two_turns, nothing])
    np.testing.assert_allclose(scored, score_whole(policy.model, tokens[:1], tokens[1:])[mask[1:]], atol=1e-6)
    assert scored.dtype == np.float32
    assert empty.shape == (0,)


def test_long_responses_grow_the_cache() -> None:
    policy = tiny_policy(dtype=torch.float64)
    request = replace(requests(1)[0], max_new_tokens=150)
    other = replace(requests(2)[1], max_new_tokens=5)
    done = generate(TorchEngine(policy, WIDE), [request, other])
    np.testing.assert_allclose(done[0].logp, score_whole(policy.model, request.prompt, done[0].tokens), rtol=0, atol=1e-6)


def test_bfloat16_is_served_close_to_float32() -> None:
    policy = tiny_policy(sharpness=1.0)
    batch = requests(10)
    done = generate(TorchEngine(policy, TorchEngineOptions(slots=4, dtype="bfloat16")), batch)
    for request in batch:
        np.testing.assert_allclose(done[request.id].logp, score_whole(policy.model, request.prompt, done[request.id].tokens), atol=0.1)


def test_training_the_original_changes_nothing_here() -> None:
    policy = tiny_policy(dtype=torch.float64)
    engine = TorchEngine(policy, WIDE)
    before = generate(engine, requests(4))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    after = generate(engine, requests(4))
    assert {i: c.tokens.tolist() for i, c in before.items()} == {i: c.tokens.tolist() for i, c in after.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": np.zeros(0, np.int32)}, "prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"prompt": np.full(250, 5, np.int32)}, "exceed the context of 256"),
        ({"sampling": Sampling(temperature=0.0)}, "temperature"),
        ({"sampling": Sampling(allowed=(17,))}, "vocabulary of 17"),
    ],
)
def test_requests_that_cannot_be_run_are_refused_at_once(change: dict[str, object], message: str) -> None:
    engine = TorchEngine(tiny_policy(), TorchEngineOptions(slots=2))
    request = replace(requests(1)[0], max_new_tokens=20)
    with pytest.raises(TrimtabError, match=message):
        engine.submit(replace(request, **change))
    assert engine.step() == []


def test_max_context_bounds_prompt_and_response() -> None:
    engine = TorchEngine(tiny_policy(), TorchEngineOptions(slots=2, max_context=30))
    request = replace(requests(1)[0], prompt=np.full(10, 5, np.int32), max_new_tokens=20)
    engine.submit(request)
    with pytest.raises(TrimtabError, match="context of 30"):
        engine.submit(replace(request, max_new_tokens=21))

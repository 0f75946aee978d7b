"""Policies on disk: exact round trips, and every bad folder refused in one sentence that names what is wrong."""

import json
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny import tiny_folder, tiny_policy
from transformers import AutoModelForCausalLM

from trimtab.engines.checkpoint import Policy, load_policy, save_policy
from trimtab.engines.folder import check_folder
from trimtab.engines.kv import install
from trimtab.records import TrimtabError


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("tied", [False, True])
def test_round_trip(tied: bool, tmp_path: Path) -> None:
    policy = tiny_policy(tied)
    folder = tiny_folder(tmp_path / "model", tied)
    loaded = load_policy(folder)
    assert {n: p.tolist() for n, p in loaded.model.named_parameters()} == {n: p.tolist() for n, p in policy.model.named_parameters()}
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert (loaded.eos_ids, loaded.context) == ((2,), 256)
    assert not loaded.model.training
    assert loaded.tokenizer("12+3=-4,").input_ids == [4, 5, 13, 6, 15, 14, 7, 16]
    assert loaded.tokenizer.decode([4, 5, 13, 6, 15]) == "12+3="
    assert len(loaded.tokenizer) == 17  # nothing was added to the vocabulary


def test_dtype_applies_to_weights_and_not_to_rotary_frequencies(tmp_path: Path) -> None:
    loaded = load_policy(tiny_folder(tmp_path / "model"), dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_what_an_engine_served_is_an_ordinary_folder(tmp_path: Path) -> None:
    policy = tiny_policy()
    install(policy.model)
    save_policy(policy.model, policy.tokenizer, tmp_path / "model")
    assert "trimtab" not in (tmp_path / "model" / "config.json").read_text()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[1, 5, 9, 4]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, tiny_policy().model(ids).logits)


def test_a_sharded_folder_loads(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.model.save_pretrained(tmp_path, max_shard_size="10KB")
    policy.tokenizer.save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    loaded = load_policy(tmp_path)
    assert torch.equal(loaded.model.lm_head.weight, policy.model.lm_head.weight)
    shards[1].unlink()
    with pytest.raises(TrimtabError, match=shards[1].name):
        load_policy(tmp_path)


def test_loading_and_saving_ask_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    load_policy(tiny_folder(tmp_path / "model"))


def test_saving_replaces_the_folder_whole(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", seed=0)
    (folder / "stale.txt").write_text("of the old model")
    tiny_folder(folder, seed=1)
    assert torch.equal(load_policy(folder).model.lm_head.weight, tiny_policy(seed=1).model.lm_head.weight)
    assert not (folder / "stale.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_failed_save_keeps_the_old_folder(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "model", seed=0)
    new = tiny_policy(seed=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    if failing == "write":
        monkeypatch.setattr(type(new.tokenizer), "save_pretrained", full)
    else:
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda self, target: full() if self.name == "new" else rename(self, target))
    with pytest.raises(TrimtabError, match="No space left on device"):
        save_policy(new.model, new.tokenizer, folder)
    monkeypatch.undo()
    assert torch.equal(load_policy(folder).model.lm_head.weight, tiny_policy(seed=0).model.lm_head.weight)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def corrupt(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


NORM = "model.layers.1.input_layernorm.weight"
BAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("not a model folder", lambda f: (f / "config.json").unlink(), "no config.json"),
    ("config is no JSON", lambda f: (f / "config.json").write_text("{"), "not JSON"),
    ("config is a list", lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    ("another architecture", lambda f: edit_config(f, architectures=["LlamaForCausalLM"]), "LlamaForCausalLM.*Qwen2 family"),
    ("no architecture", lambda f: edit_config(f, architectures=None), "Qwen2 family"),
    ("dropout", lambda f: edit_config(f, attention_dropout=0.1), "attention_dropout = 0.1"),
    ("sliding window", lambda f: edit_config(f, use_sliding_window=True, layer_types=None), "sliding-window"),
    ("a sliding layer", lambda f: edit_config(f, layer_types=["full_attention", "sliding_attention"]), "sliding-window"),
    ("dynamic rotary", lambda f: edit_config(f, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
    ("no tokenizer", lambda f: (f / "tokenizer.json").unlink(), "no tokenizer files"),
    ("no weights", lambda f: (f / "model.safetensors").unlink(), "lacks model.safetensors"),
    ("truncated weights", corrupt, "model.safetensors is corrupt"),
    ("empty weights", lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is corrupt"),
    ("corrupt index", lambda f: (f / "model.safetensors.index.json").write_text("{}"), "index.json is corrupt"),
]
BAD_WEIGHTS: list[tuple[str, Callable[[Path], object], str]] = [
    ("corrupt tokenizer", lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer"),
    ("a missing tensor", lambda f: edit_weights(f, lambda w: w.pop(NORM)), NORM),
    ("another shape", lambda f: edit_weights(f, lambda w: w.update({NORM: torch.ones(5)})), "do not fit config.json"),
    ("NaN", lambda f: edit_weights(f, lambda w: w[NORM].__setitem__(3, math.nan)), NORM + ".*NaN or inf"),
    ("inf", lambda f: edit_weights(f, lambda w: w["lm_head.weight"].__setitem__((2, 3), -math.inf)), r"lm_head\.weight.*NaN or inf"),
]


@pytest.mark.parametrize(("spoil", "message"), [case[1:] for case in BAD + BAD_WEIGHTS], ids=[case[0] for case in BAD + BAD_WEIGHTS])
def test_bad_folders_are_refused_in_one_sentence(spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    spoil(folder)
    with pytest.raises(TrimtabError, match=message) as caught:
        load_policy(folder)
    assert "\n" not in str(caught.value)
    assert "model" in str(caught.value)


@pytest.mark.parametrize(("spoil", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_shows_without_reading_weights_is_found_so(spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    check_folder(folder)
    spoil(folder)
    with pytest.raises(TrimtabError, match=message):
        check_folder(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"nowhere.*no such folder"):
        load_policy(tmp_path / "nowhere")


def test_a_policy_without_an_end_is_refused() -> None:
    policy = tiny_policy()
    policy.model.generation_config.eos_token_id = policy.model.config.eos_token_id = policy.tokenizer.eos_token = None
    with pytest.raises(TrimtabError, match="eos_token_id"):
        Policy.of(policy.model, policy.tokenizer)


def test_all_eos_ids_count() -> None:
    policy = tiny_policy()
    policy.model.generation_config.eos_token_id = [2, 16]
    assert Policy.of(policy.model, policy.tokenizer).eos_ids == (2, 16)


def test_dropout_is_refused_in_memory_too() -> None:
    policy = tiny_policy()
    policy.model.config.attention_dropout = 0.1
    with pytest.raises(TrimtabError, match="attention_dropout"):
        Policy.of(policy.model, policy.tokenizer)

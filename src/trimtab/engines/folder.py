"""What can be seen of a model folder without reading a weight. Imports neither torch nor transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path

from trimtab.records import Json, TrimtabError

ARCHITECTURE = "Qwen2ForCausalLM"
_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))


def check_folder(folder: Path) -> int:
    """Refuse what ``load_policy`` cannot load, as far as that shows without reading a weight; the number of values that are stored.

    Raises:
        TrimtabError: what is missing or not supported, by name.
    """
    if not folder.is_dir():
        raise TrimtabError.field("model", str(folder), "no such folder; name a local Hugging Face model folder")
    try:
        config: Json = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise TrimtabError.field("model", str(folder), "not a model folder, it has no config.json") from None
    except ValueError as error:
        raise TrimtabError.field("model", str(folder), f"its config.json is not JSON ({error})") from None
    if not isinstance(config, dict):
        raise TrimtabError.field("model", str(folder), "its config.json is not a JSON object")
    check_config(config, str(folder))
    if not any(all((folder / file).is_file() for file in files) for files in _TOKENIZER_FILES):
        raise TrimtabError.field("model", str(folder), "it has no tokenizer files; save the tokenizer beside the model (tokenizer.json)")
    return sum(_check_header(file) for file in _weight_files(folder))


def check_config(config: dict[str, Json], where: str) -> None:
    """Refuse an architecture, a dropout, a sliding window or a rotary embedding that engine and learner do not handle, by name."""
    architectures = config.get("architectures")
    if architectures != [ARCHITECTURE]:
        raise TrimtabError(
            f"{where}: architectures = {architectures!r} is not supported; this release trains the Qwen2 family ({ARCHITECTURE})"
        )
    for name, value in config.items():
        if "dropout" in name and isinstance(value, int | float) and value > 0:
            raise TrimtabError(f"{where}: {name} = {value} makes sampled and scored log-probs differ; set it to 0 in config.json")
    layer_types = config.get("layer_types")
    if config.get("use_sliding_window") or (isinstance(layer_types, list) and "sliding_attention" in layer_types):
        raise TrimtabError(f"{where}: sliding-window attention is not supported; set use_sliding_window = false in config.json")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    kind = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, dict) else None
    if kind in ("dynamic", "longrope"):
        raise TrimtabError(f"{where}: rope_type = {kind!r} makes a token's log-prob depend on the other rows of its batch; use a fixed one")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        files = [folder / "model.safetensors"]
    else:
        try:
            files = sorted({folder / shard for shard in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError) as error:
            raise TrimtabError(f"{index} is corrupt ({error}); copy the folder again") from None
    for file in files:
        if not file.is_file():
            raise TrimtabError(f"{folder} lacks {file.name}; only safetensors weights are read, export the model with save_pretrained")
    return files


def _check_header(file: Path) -> int:
    """The number of values in the file's tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise TrimtabError(f"{file} is corrupt ({error}); copy or export it again") from None

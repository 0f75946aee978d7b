"""What can be seen of a model folder without reading a weight. Imports neither torch nor transformers."""

from __future__ import annotations

import math
from pathlib import Path

from trimtab.foreign import parse_json, shown
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
    if not (folder / "config.json").exists():
        raise TrimtabError.field("model", str(folder), "not a model folder, it has no config.json")
    config = _object(folder, "config.json")
    check_code(folder)
    check_config(config, str(folder))
    if not any(all((folder / file).is_file() for file in files) for files in _TOKENIZER_FILES):
        raise TrimtabError.field("model", str(folder), "it has no tokenizer files; save the tokenizer beside the model (tokenizer.json)")
    return sum(_check_header(file) for file in _weight_files(folder))


def check_code(folder: Path) -> None:
    """Refuse a folder that brings its own Python code (``auto_map``), which transformers would offer to run.

    Raises:
        TrimtabError: naming the file and what it would run; or one of its files cannot be read.
    """
    for path in sorted(folder.glob("*config.json")):
        if wanted := _object(folder, path.name).get("auto_map"):
            remedy = f"{path.name} has auto_map = {shown(wanted)}: it wants Python code of its own to be run, which Trimtab never does"
            raise TrimtabError.field("model", str(folder), f"{remedy}; export the model with a class that transformers has")


def _object(folder: Path, name: str) -> dict[str, Json]:
    try:
        found = parse_json((folder / name).read_bytes())
    except OSError as error:
        raise TrimtabError.field("model", str(folder), f"its {name} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TrimtabError.field("model", str(folder), f"its {name} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise TrimtabError.field("model", str(folder), f"its {name} is not a JSON object")
    return found


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
        named = _object(folder, index.name).get("weight_map")
        shards = list(named.values()) if isinstance(named, dict) else []
        files = sorted({folder / shard for shard in shards if isinstance(shard, str) and Path(shard).name == shard})
        if not shards or len(files) != len({str(shard) for shard in shards}):
            raise TrimtabError(f"{index} is corrupt (no weight_map that names files of the folder); copy the folder again")
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

"""State as JSON, tensors and groups: what a checkpoint part is made of, and its exact round trip without pickle.

A tree is nested dicts, lists and tuples of JSON scalars; its leaves may also be NumPy arrays and scalars, torch tensors and
groups. The skeleton goes to JSON with a mark where a leaf was taken out; arrays and tensors go to one safetensors file, groups
to one parquet table. Tensors come back on the CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard, Union, cast

import numpy as np
import numpy.typing as npt
import safetensors.numpy as numpy_front

from trimtab.records import Group, Json

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[np.generic]
Leaf = Union[None, bool, int, float, str, np.generic, Array, "Tensor", Group]
StateTree = Union[Leaf, Sequence["StateTree"], Mapping[str, "StateTree"], Mapping[int, "StateTree"]]  # noqa: UP007  (X | "Y" fails at run time)

_DTYPES = frozenset(np.dtype(t) for t in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"))
_MARK = "$"  # a dict with the one key "$..." stands for something JSON does not have


@dataclass(slots=True)
class Flat:
    """A tree taken apart."""

    skeleton: Json = None
    arrays: dict[str, Array | Tensor] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)


def flatten(tree: StateTree, where: str) -> Flat:
    """Take a tree apart. ``where`` names the tree in errors.

    Raises:
        TypeError: a leaf of a kind that cannot be stored exactly; the message names its place.
    """
    flat = Flat()
    flat.skeleton = _flatten(tree, flat, where)
    return flat


def unflatten(flat: Flat) -> StateTree:
    """The tree again; tuples, int keys, dtypes and shapes included."""
    return _unflatten(flat.skeleton, flat)


def _flatten(tree: object, flat: Flat, where: str) -> Json:
    if isinstance(tree, np.generic | np.ndarray):  # before float: np.float64 is one
        if tree.dtype not in _DTYPES:
            raise TypeError(f"{where} is a NumPy array of dtype {tree.dtype}, which a checkpoint cannot hold exactly")
        kind = "array" if isinstance(tree, np.ndarray) else "scalar"
        return {f"{_MARK}{kind}": _put(flat, "array", where, np.asarray(tree, order="C"))}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, Group):
        flat.groups.append(tree)
        return {f"{_MARK}group": len(flat.groups) - 1}
    if isinstance(tree, Mapping):
        if all(isinstance(k, str) and not k.startswith(_MARK) for k in tree):
            return {str(k): _flatten(v, flat, f"{where}.{k}") for k, v in tree.items()}
        if bad := [k for k in tree if type(k) not in (str, int)]:
            raise TypeError(f"{where} has the key {bad[0]!r}; keys are str or int")
        return {f"{_MARK}items": [[k, _flatten(v, flat, f"{where}.{k}")] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        items = [_flatten(v, flat, f"{where}[{i}]") for i, v in enumerate(tree)]
        return {f"{_MARK}tuple": items} if isinstance(tree, tuple) else items
    if is_tensor(tree):
        return {f"{_MARK}tensor": _put(flat, "tensor", where, tree)}
    raise TypeError(f"{where} is a {type(tree).__name__}; a checkpoint holds JSON values, NumPy arrays, torch tensors and groups")


def _put(flat: Flat, kind: str, where: str, array: Array | Tensor) -> str:
    """Keep an array under a name that a person finds it by, e.g. ``tensor:learner.weights.lm_head.weight``."""
    name = f"{kind}:{where}"
    while name in flat.arrays:  # {"a.b": x, "a": {"b": y}}
        name += "+"
    flat.arrays[name] = array
    return name


def _unflatten(node: Json, flat: Flat) -> StateTree:
    if isinstance(node, list):
        return [_unflatten(v, flat) for v in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1 and (mark := next(iter(node))).startswith(_MARK):
        value = node[mark]
        match mark[1:], value:
            case "group", int():
                return flat.groups[value]
            case "tuple", list():
                return tuple(_unflatten(v, flat) for v in value)
            case "items", list():
                return {k: _unflatten(v, flat) for k, v in cast("list[tuple[int, Json]]", value)}
            case "scalar", str():
                return flat.arrays[value][()]
            case "array" | "tensor", str():
                return flat.arrays[value]
    return {k: _unflatten(v, flat) for k, v in node.items()}


def pack(arrays: Mapping[str, Array | Tensor]) -> bytes:
    """One safetensors file. torch is imported only where a tensor is there."""
    plain = {name: a for name, a in arrays.items() if isinstance(a, np.ndarray)}
    if len(plain) == len(arrays):
        return numpy_front.save(plain)
    import torch
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, array in arrays.items():
        tensor = array.detach().cpu().contiguous() if isinstance(array, torch.Tensor) else torch.from_numpy(_writable(array))
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory (tied weights, views): each is stored by its own bytes
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return save(tensors)


def unpack(data: bytes) -> dict[str, Array | Tensor]:
    """The arrays of :func:`pack`, each of its kind, in memory of their own."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    if not any(name.startswith("tensor:") for name in header):
        return dict(numpy_front.load(data))
    from safetensors.torch import load

    return {name: t if name.startswith("tensor:") else t.numpy() for name, t in load(data).items()}


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()  # torch warns about memory it could write to


def is_tensor(x: object) -> TypeGuard[Tensor]:
    """Whether ``x`` is a torch tensor, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)

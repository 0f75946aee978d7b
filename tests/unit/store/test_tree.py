"""What goes into a checkpoint comes out of it: kinds, dtypes, shapes, bits."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trimtab.store.tree import Flat, flatten, pack, unflatten, unpack


def round_trip(tree: object) -> object:
    flat = flatten(tree, "part")
    arrays = unpack(pack(flat.arrays)) if flat.arrays else {}
    return unflatten(Flat(skeleton=json.loads(json.dumps(flat.skeleton)), arrays=arrays, groups=flat.groups))


numpy_dtypes = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"]).map(np.dtype)
torch_dtypes = st.sampled_from(
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    ]
)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def numpy_arrays(draw: st.DrawFn) -> np.ndarray:
    array = draw(hnp.arrays(draw(numpy_dtypes), draw(shapes)))
    return array.T if draw(st.booleans()) else array


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(torch_dtypes), draw(shapes)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = draw(hnp.arrays(np.uint8, int(np.prod(shape)) * size))
    if dtype is torch.bool:
        raw = raw % 2
    tensor = torch.from_numpy(raw.copy()).view(dtype).reshape(shape) if raw.size else torch.empty(shape, dtype=dtype)
    return tensor.transpose(0, -1) if tensor.ndim > 1 and draw(st.booleans()) else tensor


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | numpy_arrays()
    | numpy_arrays().filter(lambda a: a.size > 0).map(lambda a: a.reshape(-1)[0])
)
keys = st.text(max_size=4) | st.sampled_from(["$array", "$tuple", "a.b"]) | st.integers(-5, 5)


def trees(leaf: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(
        leaf,
        lambda t: st.lists(t, max_size=3) | st.lists(t, max_size=3).map(tuple) | st.dictionaries(keys, t, max_size=3),
        max_leaves=8,
    )


@settings(max_examples=100, deadline=None)
@given(trees(leaves))
def test_numpy_trees(same, tree: object) -> None:
    assert same(round_trip(tree), tree)


@settings(max_examples=100, deadline=None)
@given(trees(leaves | tensors()))
def test_trees_with_tensors(same, tree: object) -> None:
    assert same(round_trip(tree), tree)


def test_what_json_cannot_say(same) -> None:
    tree = {"nan": float("nan"), "inf": -float("inf"), "zero": -0.0, "clash": {"a.b": np.zeros(1), "a": {"b": np.ones(1)}}}
    assert same(round_trip(tree), tree)


def test_tied_weights_and_views_keep_their_own_bytes(same) -> None:
    base = torch.arange(6.0)
    array = np.arange(4)
    tree = {"embed": base, "head": base, "part": base[2:4], "column": base.view(2, 3)[:, 1], "a": array, "b": array}
    assert same(round_trip(tree), tree)


def test_read_only_arrays_beside_tensors(same) -> None:
    """They come from the codec and from memory maps; torch would warn."""
    array = np.arange(3)
    array.flags.writeable = False
    with pytest.WarningsRecorder() as warned:
        assert same(round_trip([array, torch.zeros(1)]), [array, torch.zeros(1)])
    assert not warned.list


def test_what_is_loaded_can_be_written_to() -> None:
    array, tensor = round_trip([np.zeros(2), torch.zeros(2)])
    array += 1
    tensor += 1
    assert array.sum() == tensor.sum() == 2


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [0, {1, 2}]}, r"part\.a\[1\] is a set"),
        ({"rng": np.array(["x"])}, r"part\.rng is a NumPy array of dtype <U1"),
        ({"o": np.array([object()])}, r"part\.o is a NumPy array of dtype object"),
        ({"x": {(0, 1): 2}}, r"part\.x has the key \(0, 1\)"),
        (b"", "part is a bytes"),
    ],
)
def test_what_cannot_be_stored_exactly_is_named(tree: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flatten(tree, "part")


def test_numpy_state_needs_no_torch(tmp_path) -> None:
    code = """
import sys, numpy as np
from pathlib import Path
from trimtab.store import checkpoint, resume, rollout_log, options
folder = Path(sys.argv[1])
checkpoint.save(folder, 1, {"pool": {"x": np.arange(3)}}, keep=2)
assert checkpoint.load_latest(folder).parts["pool"]["x"].tolist() == [0, 1, 2]
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60).returncode == 0

"""Keyed randomness: every random number is a pure function of *what it is for*, never of who draws it or when.

One uniform a token, ``u(seed, epoch, prompt, attempt, rollout, turn, position)``; the engine turns it into a token by
inverse CDF. Worker, slot, batch composition and restart do not matter; a retry raises ``attempt`` (a restart never).

The mixer is the finalizer of SplitMix64 (Steele, Lea & Flood 2014), folded over the key: ``h <- mix((h ^ x) + golden)``.
"""

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
# Stream tags keep the draws for different purposes apart even where their numbers coincide.
ROLLOUT, ORDER, EVAL = 1, 2, 3
SELECT, ENGINE = 6, 7  # 4 and 5 are free; a tag's number is part of every draw made under it


def _mix(h: U64) -> U64:
    h = (h ^ (h >> np.uint64(30))) * _M1
    h = (h ^ (h >> np.uint64(27))) * _M2
    return h ^ (h >> np.uint64(31))


def fold(key: U64 | int, *parts: npt.ArrayLike) -> U64:
    """Fold integers into a key; arguments broadcast. ``fold(fold(a, b), c) == fold(a, b, c)``. uint64, shape of the broadcast."""
    h = np.asarray(key, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            x = np.asarray(part, dtype=np.int64).astype(np.uint64)
            h = _mix((h ^ x) + _GOLDEN)
    return h


def stream(seed: int, epoch: int, prompt: int, attempt: int, rollout: int, tag: int = ROLLOUT) -> int:
    """The key of one rollout's stream of uniforms, as a Python int (fits in 64 bits)."""
    return int(fold(tag, seed, epoch, prompt, attempt, rollout))


def uniform(key: npt.ArrayLike, turn: npt.ArrayLike, position: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1) with 53 random bits, one for each (stream key, turn, position of the token in the turn)."""
    bits = fold(np.asarray(key, dtype=np.uint64), turn, position) >> np.uint64(11)
    return np.asarray(bits.astype(np.float64) * 2.0**-53)


def permutation(seed: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
    """The order in which epoch ``epoch`` visits ``n`` prompts: argsort of keyed hashes (ties are impossible in practice)."""
    return np.argsort(fold(ORDER, seed, epoch, np.arange(n)), kind="stable").astype(np.int64)

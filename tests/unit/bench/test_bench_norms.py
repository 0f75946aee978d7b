"""The benchmark measures what it says: every case is there, and both sides make the same kind of update."""

from trimtab.bench.bench_norms import SIZES, Size, run


def test_rows_of_a_tiny_size() -> None:
    rows = {r.case: r for r in run(4, [Size("tiny", 16, 1, 20, 8), Size("tiny", 16, 1, 36, 8, ragged=True)])}
    sides = ["best", "plain", "padded", "bookkeeping", "two_pass", "two_buffer", "sketch", "last_layer"]
    assert list(rows) == [f"{side}/tiny/{tokens}" for tokens in ("20", "~36") for side in sides]
    for tokens in ("20", "~36"):
        best = rows[f"best/tiny/{tokens}"]
        assert best.ratio == min(rows[f"{route}/tiny/{tokens}"].ratio for route in sides[3:6])
        assert rows[f"plain/tiny/{tokens}"].ratio == 1.0
        assert all(rows[f"{side}/tiny/{tokens}"].cpu_s > 0 for side in sides)


def test_the_sizes_are_those_of_the_targets() -> None:
    assert {s.case("best") for s in SIZES} >= {"best/0.1M/41", "best/3M/41", "best/0.6M/256"}

"""``calibrate``."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.records import TrimtabError

METHODS = ("gac",)
NOISY = 0.5  # above it the mean cosine is more than a third signal


def calibrate(method: str, source: str, overrides: Sequence[str], batches: int) -> None:
    """Print the cosines of a synchronous stretch and the thresholds that follow, as a line for the configuration."""
    if method not in METHODS:
        raise TrimtabError.field("calibrate", method, f"there is {', '.join(METHODS)}")
    from trimtab.config.load import load
    from trimtab.runtime.calibrate import cosines, thresholds

    found = thresholds(cosines(load(source, overrides), batches))
    print(f"{found.cosines} cosines of consecutive gradients at lag 0: mean {found.mean:.3f}, sd {found.sd:.3f}")
    print(f'{{ name = "gac", c_low = {found.c_low:.2f}, c_high = {found.c_high:.2f} }}')
    print(f"caution: a mean of SNR / (1 + SNR) puts the signal-to-noise ratio of one update at about {found.snr:.2f};", end=" ")
    if found.snr > NOISY:
        print("aligned gradients are no sign of staleness here, and projecting gives up about the mean cosine of the progress")
    else:
        print("it rises with the batch and falls as the policy learns: calibrate at the batch size and stage that you train")

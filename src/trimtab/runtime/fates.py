"""What is said of groups that did not come to be."""

from __future__ import annotations

import logging

from trimtab.pool.results import Delivery, Fate

log = logging.getLogger(__name__)

_TOLD = 3


class FateLog:
    """Warns of what is retried, failed or refused. Rows that cannot be run are many or none: of those the first few, then every tenfold."""

    def __init__(self) -> None:
        self._hopeless = 0

    def note(self, who: str, delivery: Delivery, *, retry: bool = True) -> None:
        """``retry``: as in ``pool.fail``."""
        if delivery.fate not in (Fate.RETRIED, Fate.FAILED, Fate.REFUSED):
            return
        slot, so_far = delivery.slot, ""
        if not retry and delivery.fate is Fate.FAILED:
            self._hopeless += 1
            n = self._hopeless
            if n > _TOLD and n != 10 ** (len(str(n)) - 1):
                return
            so_far = f" (rows that cannot be run so far: {n})" if n > _TOLD else ""
        log.warning("%s: slot (%d, %d) %s: %s%s", who, slot.epoch, slot.index, delivery.fate.value, delivery.reason, so_far)

"""IcePop: token-level masked importance sampling with its published band."""

from __future__ import annotations

from pydantic import Field

from trimtab.methods.seq_mis import BandOptions
from trimtab.methods.tok_mis import TokenMIS


class IcePopOptions(BandOptions):
    high: float = Field(5.0, gt=0, description="largest ratio kept")
    low: float = Field(0.5, ge=0, description="smallest ratio kept; 0: no lower bound")


class IcePop(TokenMIS):
    """w_t = pi/mu where .5 <= w_t <= 5, else the token is masked (it still counts in the denominator): `tok_mis` with a lower bound.

    Made for the mismatch of two engines at the same weights, where both bounds are rarely met. Several updates per batch: the ratio is
    to the policy of the update at hand.
    """

    name = "icepop"
    source = "IcePop (Ling team 2025); veRL rollout correction `token_icepop`, band .5-5"
    summary = "token-level masking on both sides"
    formula = "w_it = pi/mu if .5 <= pi/mu <= 5 else 0"
    Options = IcePopOptions
    options: IcePopOptions

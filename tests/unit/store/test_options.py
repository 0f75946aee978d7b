"""What a user may set about storing."""

import pytest
from pydantic import ValidationError

from trimtab.store.options import StoreOptions


def test_defaults() -> None:
    assert StoreOptions() == StoreOptions(every=50, keep=2, rollouts=True)


@pytest.mark.parametrize("bad", [{"every": 0}, {"keep": 0}, {"interval": 5}])
def test_what_makes_no_sense_is_refused_by_name(bad: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        StoreOptions.model_validate(bad)

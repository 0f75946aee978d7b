"""The fixtures of pools."""

from support.pool_fixtures import admit_all, deliver, make_group, make_pool

__all__ = ["admit_all", "deliver", "make_group", "make_pool"]

"""Trimtab: asynchronous reinforcement-learning post-training that stays stable when rollouts are stale."""

__version__ = "0.1.0"

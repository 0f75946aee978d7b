"""The version of what a configuration computes.

Raise it with every change after which the same configuration gives other numbers: stored cells of the laboratory then no longer
count as run. A test trains 20 batches and compares what was sampled and measured with the digest it keeps for this number.
"""

NUMERICS = 1

"""Full batch or mini-batch."""

from __future__ import annotations

from bdl.tune.choice import Choice

FULL = 2048  # items up to which every step sees all of them
LARGEST_BATCH = 1024  # items of a mini-batch
BATCHES_IN_DATA = 20  # N over the batch size
LARGE_NETWORK = 100_000  # weights of one network
BATCH_OF_LARGE = 128  # the batch of a network whose step costs more than the data


def choose_batch(num_data: int, weights: int) -> Choice:
    """The batch size by N and by the weights of one network.

    A step on all the data has no batch noise, and lr may be as large as the curvature allows. Batch noise heats the
    chain by lr Var(g) / (2 a tau), which is in proportion to lr N / B: with a batch of a fixed share of N, the lr that
    the heat allows is the same for all N. McCandlish et al. 2018 call the batch at which noise and curvature allow the
    same lr the critical one; smaller batches cost as much per distance, larger ones more.
    """
    if weights > LARGE_NETWORK:
        size = min(num_data, BATCH_OF_LARGE)
        return Choice("batch_size", size, f"a network of {weights:,} weights takes small batches")
    if num_data <= FULL:
        return Choice("batch_size", num_data, f"all {num_data:,} items, which is few, so no batch noise")
    size = max(100, min(LARGEST_BATCH, round(num_data / BATCHES_IN_DATA)))
    return Choice("batch_size", size, f"{num_data:,} items are many; the larger a batch, the larger lr may be")

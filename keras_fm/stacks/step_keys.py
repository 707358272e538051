"""The key of a step, as a part of its batch.

A compiled step of JAX sees what it is called with and nothing else, and what
its state holds is among the variables of the model, where a checkpoint would
find it. So the key comes with the batch, and is no variable.
"""

import functools

KEY, BATCH = "key", "batch"


def are_with(data):
    """Whether a key comes with a batch."""
    return isinstance(data, dict) and set(data) == {KEY, BATCH}


def given_to(step, noise):
    """A step of JAX each of whose batches has a key of its own.

    Args:
        step: function of state and an iterator of batches.
        noise: the `StepNoise` of the model.
    """
    if getattr(step, "gives_keys", False):
        return step

    @functools.wraps(step)
    def keyed(state, batches):
        return step(
            state,
            ({KEY: noise.key_of_batch(), BATCH: data} for data in batches),
        )

    keyed.gives_keys = True
    return keyed

"""Requests answered: from the store where they are there, else by a pool."""

import logging


def answer_all(requests, store, pool, progress=None):
    """Answers of all requests; what was not in the store is in it now.

    Args:
        requests: dict from keys of the store to requests.
        store: a `Store`.
        pool: function from a dict of requests to `(key, answer)` as they
            come; only asked for what is missing.
        progress: `None`, or the `Progress` that is told of each.

    Returns:
        list of answers in the order of the requests, and the number of
        those that were missing.

    Raises:
        KeyboardInterrupt: saying what is kept.
    """
    missing = {k: r for k, r in requests.items() if k not in store}
    if progress and missing:
        progress.start(len(requests), len(requests) - len(missing))
    # Every job builds its own model, which TensorFlow reports as retracing;
    # dp_accounting warns of every order that it leaves out.
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        for key, answer in pool(missing) if missing else ():
            store.add(key, answer)
            if progress:
                progress.done()
    except KeyboardInterrupt:
        done = sum(key in store for key in requests)
        raise KeyboardInterrupt(
            f"{done} of {len(requests)} runs are finished; {store.kept()}"
        ) from None
    finally:
        if progress:
            progress.end()
    return [store[key] for key in requests], len(missing)

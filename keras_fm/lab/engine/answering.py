"""Requests answered: from the store where they are there, else by a pool."""

import logging

import keras


def answer_all(requests, store, pool, progress="", shown=None):
    """Answers of all requests; what was not in the store is in it now.

    Args:
        requests: dict from keys of the store to requests.
        store: a `Store`.
        pool: function from a dict of requests to `(key, answer)` as they
            come; only asked for what is missing.
        progress: word beside a progress bar; "" shows none.
        shown: `None`, or function from an answer to `(name, value)` pairs
            for the bar.

    Returns:
        list of answers in the order of the requests, and the number of
        those that were missing.
    """
    missing = {k: r for k, r in requests.items() if k not in store}
    bar = None
    done = len(requests) - len(missing)
    if progress and missing:
        bar = keras.utils.Progbar(len(requests), unit_name=progress)
        bar.update(done)
    # Every job builds its own model, which TensorFlow reports as retracing;
    # dp_accounting warns of every order that it leaves out.
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if missing:
        for key, answer in pool(missing):
            store.add(key, answer)
            done += 1
            if bar:
                bar.update(done, shown(answer) if shown else None)
    return [store[key] for key in requests], len(missing)

"""A worker: one request in JSON per line of standard input, one answer per
line of standard output. Started by `workers.Processes`."""

import json
import logging
import os
import sys

import numpy as np

from keras_fm.lab.compare import workers
from keras_fm.lab.compare.comparison import Comparison
from keras_fm.lab.compare.task import ARRAYS, Task


def main(folder):
    """Serves requests from standard input until it ends."""
    # Answers go where standard output went; what libraries print does not.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with open(os.path.join(folder, "spec.json")) as f:
        spec = Comparison.from_config(json.load(f))
    arrays = {
        name: np.load(os.path.join(folder, f"{name}.npy"), allow_pickle=False)
        for name in ARRAYS
    }
    task = Task(spec, **arrays)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"answer": workers.answer(task, request)}
        except Exception as e:  # To the parent, which knows what to do.
            job = request.get("job") or request
            reply = {"error": f"{job.get('method')}: {type(e).__name__}: {e}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])

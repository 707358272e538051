"""A model and records of one's own, trained in every way that fits them."""

from keras_fm.lab.compare import records
from keras_fm.lab.compare.comparison import Comparison
from keras_fm.lab.compare.runs import run


def compare(
    build,
    data,
    test=None,
    *,
    epsilons=(1.0, 8.0),
    columns=None,
    classes=None,
    out=None,
    progress=True,
    **settings,
):
    """Trains your model on your records in every way that fits both.

    All layers by noisy steps; an output layer, by one release and by rounds,
    on the frozen body of the model and on public features of the records;
    DP-SGD by tensorflow-privacy; no privacy. Learning rate and steps of
    methods with steps are chosen for each epsilon on a fifth of the training
    records, and no epsilon covers that choice, nor the accuracies.

    Args:
        build: function that returns a new Keras model of one input and one
            output for classes. It may take the shape of a record, and the
            number of classes.
        data: `(x, y)` to train on: arrays, or a data frame and labels.
        test: `(x, y)` to test on; `None` holds a fifth of the rows out.
        epsilons: budgets to train at.
        columns: what is public of the columns of a data frame, as
            `keras_fm.estimators.PrivateClassifier` takes it, or the path of a
            schema (`keras-fm schema`).
        classes: list of all labels; `None`: those that occur.
        out: folder for table, plot, TensorBoard and finished runs, which a
            second call goes on from; `None` writes nothing.
        progress: whether it says what runs now.
        **settings: fields of a `keras_fm.lab.compare.Comparison`:
            `methods`, `delta`, `seeds`, `epochs`, `batch_size`, `features`.

    Returns:
        `Outcomes`: print it for a table.

    Raises:
        ValueError: if model, records and settings do not fit each other;
            nothing was trained then.

    Example:

    ```python
    def build(shape, classes):
        return keras.Sequential(
            [
                keras.Input(shape),
                keras.layers.Dense(64, "relu"),
                keras.layers.Dense(classes),
            ]
        )

    print(fm.compare(build, (x, y), epsilons=(1, 8)))
    ```
    """
    name = getattr(build, "__name__", type(build).__name__)
    named = {"dataset": "your records", "model": name, "epsilons": epsilons}
    spec = Comparison(**(named | settings))
    given = records.of_arrays(data, test, columns=columns, classes=classes)
    return run(spec, out, progress, build=build, given=given)

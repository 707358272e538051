import keras

from keras_fm.datasets.behavior_windows import column_range
from keras_fm.papers.dpa.deep_private_autoencoder import DeepPrivateAutoencoder
from keras_fm.papers.paper_model import OfWindows


@keras.saving.register_keras_serializable(package="keras_fm")
class BehaviorAutoencoder(OfWindows, DeepPrivateAutoencoder):
    """dPAH: prediction of a person's behaviour from a window of records.

    Phan, Wang, Wu and Dou, AAAI 2016. A record is one (user, time) window.
    It holds the attributes now, those of the N time steps before
    (self-motivation), the friends' influence `sum psi_t(v, u) / |F_u|` and
    environmental events. `keras_fm.datasets.HealthNetwork.windows` makes such
    windows. The code of the first auto-encoder is

        h_t = sigmoid(W^T x_t + sum_k A_k^T x_{t-k} + eta^T social + ...)

    Its decoder reconstructs only the attributes now; the other inputs
    condition the code. (The paper has one eta for each user; here every unit
    has its own, and users share them.) The output is one logit: does the
    behaviour happen?

    Args:
        columns: dict of slices or `(start, stop)` pairs; the inputs of
            `"present"` are reconstructed.
        bounds: public `(low, high)` of the window's features.
        hidden: units of the encoders: `None` is (200, 200) in the published
            form, as printed, and (100,) in the proven one.
        units, guarantee and others: see `DeepPrivateAutoencoder`.

    Input shape: `(batch, features)`. Output shape: `(batch, units)`.

    Example:

    ```python
    train, test = fm.datasets.load("health_network").windows().split(0.8)
    model = fm.models.BehaviorAutoencoder.of(train)
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    private = fm.callbacks.PrivateModel(
        epsilon=1.0, delta=1e-6,
        data=(train.x, train.y),
        notes=(train.note,),
    )
    model.fit(train.x, train.y, callbacks=[private])
    ```
    """

    def __init__(
        self,
        input_shape,
        columns,
        bounds,
        hidden=None,
        units=1,
        guarantee="proven",
        **kwargs,
    ):
        columns = {name: column_range(part) for name, part in columns.items()}
        kwargs.pop("visible", None)
        if hidden is None:
            hidden = (100,) if guarantee == "proven" else (200, 200)
        super().__init__(
            input_shape,
            hidden=hidden,
            units=units,
            guarantee=guarantee,
            bounds=bounds,
            visible=columns["present"],
            **kwargs,
        )
        self._columns = columns

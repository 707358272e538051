import keras
import numpy as np

from keras_fm.core import layer_arguments
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.papers.batch_standardization import BatchStandardization
from keras_fm.papers.dpa.private_encoder import PrivateEncoder
from keras_fm.papers.paper_model import PaperModel, flatten
from keras_fm.papers.pcdbn.chebyshev_crbm import ChebyshevCRBM
from keras_fm.papers.pcdbn.claims import PublishedCDBN
from keras_fm.papers.pcdbn.energy_model import EnergyModel
from keras_fm.preprocessing import pretraining
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.random_features import RandomFeatures

# The published polynomial is close to sigmoid(5 X).
_GAIN = 5.0
# Printed degrees: x - x^3 / 3 + 2 x^5 / 15, and one line.
_DEGREES = {"tanh": 5, "piecewise": 1}
_DEGREE = 7
# Probability of a unit that is mostly inactive, a public constant.
_RESTING = 0.1
# Standard deviation below which a map of one record counts as flat.
_FLAT = 0.02


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivateCDBN(PaperModel):
    """pCDBN: convolutional RBMs in a stack, with an output layer on top.

    Phan, Wu and Dou, Machine Learning 2017. An ordinary functional model
    from images to logits: `compile`, `fit`, `save`. It trains under a
    `keras_fm.callbacks.PrivateModel` of the same `guarantee`. With
    `unprotected=True` it is the non-private twin.

    * `guarantee="proven"`: a proof covers epsilon. `fit` with `PrivateModel`
      makes releases, noisy statistics of the records. They are the patch
      moments of every convolutional RBM, from the input upwards (5 % of the
      budget each), the moments of the dense layer's inputs (30 %), and the
      output layer's objective. `private.plan(model)` prints them before any
      budget is used. Each layer is fixed after its release.
    * `guarantee="published"`: the paper's algorithm, whose epsilon is
      claimed, not proven. `pretrain` trains one RBM after the other by
      contrastive divergence on the records, with fixed noise on the
      polynomial's coefficients (Lemma 2). `fit` then trains the dense layers
      with noise on the output layer's coefficients.

    `polynomial`, and the callback or `unprotected=True`, select the paper's
    variants:

    | | `polynomial` | callback |
    |---|---|---|
    | CDBN | `"exact"` | no, `unprotected=True` |
    | TCDBN | `"chebyshev"` | no, `unprotected=True` |
    | pCDBN | `"chebyshev"` or `"published"` | yes |
    | pCDBN_TE | `"tanh"` | yes |
    | pCDBN_PW | `"piecewise"` | yes |

    The defaults are the paper's model for digits.

    Args:
        input_shape: `(height, width, channels)` of one record.
        units: int, classes (1 for a binary label), or `None`: no labels, and
            the topmost maps are the output.
        maps: tuple with `(filters, kernel_size)` of every convolutional RBM.
        pooling: int, size of the pooling after every RBM: 2 pools 2 x 2
            neighbours, 1 does not pool.
        dense: int, units of the dense layer; 0 for none. Proven: the layer
            is a `PrivateEncoder` on a public random projection of the maps,
            with at most as many units as the maps have values.
        guarantee: `"proven"`, `"published"`, or a
            `keras_fm.models.PublishedCDBN`.
        bounds: public `(low, high)` of the inputs, mapped to [0, 1].
        polynomial: see `ChebyshevCRBM`.
        degree: see `ChebyshevCRBM`. `None` is 7; in the published form it is
            5 for `"tanh"` and 1 for `"piecewise"`, as printed.
        gain: see `ChebyshevCRBM`. `None` is 5 in the proven form (1 with
            `polynomial="published"`) and 1 in the published one.
        strides: strides of the convolutions.
        padding: padding of the convolutions, `"valid"` or `"same"`. `None`
            is `"valid"` in the published form with `form="paper"`, else
            `"same"`.
        moment_order: proven form only: 2, or 4 for the first layer, see
            `ChebyshevCRBM`.
        sparsity: proven form only, see `ChebyshevCRBM`.
        unprotected: `True` for the non-private twin, trained on records
            without noise.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`.

    Raises:
        ValueError: if an argument is unknown or belongs to the other form.

    Example:

    ```python
    model = fm.models.PrivateCDBN((28, 28, 1), 10)
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    private = fm.callbacks.PrivateModel(
        epsilon=0.5, delta=1e-5, data=(x, y)
    )
    model.fit(x, y, callbacks=[private])
    ```
    """

    _settings = PublishedCDBN
    # As printed.
    _dropout = 0.0

    def __init__(
        self,
        input_shape,
        units=10,
        maps=((32, 5), (64, 5)),
        pooling=2,
        dense=1024,
        guarantee="proven",
        bounds=(0.0, 1.0),
        polynomial="chebyshev",
        degree=None,
        gain=None,
        strides=1,
        padding=None,
        moment_order=2,
        sparsity=1.5,
        unprotected=False,
        **kwargs,
    ):
        guarantee = self._form(guarantee)
        layer_arguments.belongs(
            guarantee,
            "proven",
            moment_order=(moment_order, 2),
            sparsity=(sparsity, 1.5),
        )
        if not maps:
            raise ValueError("`maps` must hold at least one layer.")
        dense = checks.natural("dense", dense)
        low, high = bounds_lib.checked_pair("bounds", bounds)
        self._arguments = {
            "input_shape": layer_arguments.sizes("input_shape", input_shape),
            "units": units,
            "maps": tuple(
                (count, layer_arguments.pair("kernel_size", kernel))
                for count, kernel in maps
            ),
            "pooling": checks.count("pooling", pooling),
            "dense": dense,
            "guarantee": guarantee,
            "bounds": (low.tolist(), high.tolist()),
            "polynomial": polynomial,
            "degree": degree,
            "gain": gain,
            "strides": strides,
            "padding": padding,
            "moment_order": moment_order,
            "sparsity": sparsity,
            "unprotected": unprotected,
        }
        inputs = keras.Input(tuple(input_shape), name="records")
        outputs, conditions = self._visible(inputs, (low, high))
        tops = []
        for index, (count, kernel) in enumerate(self._arguments["maps"]):
            layer = self._rbm(
                index, count, kernel, outputs.shape[1:3], conditions
            )
            given = outputs if layer.conditions == 0 else [outputs, conditions]
            outputs = layer(given)
            tops.append(outputs)
            if pooling > 1:
                outputs = self._pooling(index)(outputs)
        if units is not None:
            if self._proven:
                outputs = self._contrast(outputs)
            outputs = flatten()(outputs)
            top = self._proven_top if self._proven else self._published_top
            for layer in top(outputs.shape[-1]):
                outputs = layer(outputs)
            outputs = self._output(units, outputs, conditions)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        # Hidden from Keras, which would save tracked objects a second time.
        self.__dict__["_tops"] = tops

    # The layers ----------------------------------------------------------

    def _visible(self, inputs, bounds):
        """Visible units in [0, 1], and their conditions (here none)."""
        box = NormalizationLayer(bounds, "linf", name="box")
        return box(inputs), None

    def _rbm(self, index, count, kernel, sizes, conditions):
        given = self._arguments
        gain, degree = given["gain"], given["degree"]
        padding, printed = given["padding"], not (self._proven or self._code)
        if degree is None:
            printed_degrees = {} if self._proven else _DEGREES
            degree = printed_degrees.get(given["polynomial"], _DEGREE)
        if padding is None:
            padding = "valid" if printed else "same"
        if self._proven:
            # The published polynomial has a gain of its own.
            usual = 1.0 if given["polynomial"] == "published" else _GAIN
            form = {
                "gain": usual if gain is None else gain,
                "moment_order": given["moment_order"] if index == 0 else 2,
                "sparsity": given["sparsity"],
                "clip": True,
                # More patches of a record add little information.
                "moment_strides": 4
                if index == 0
                else [max(k, size // 2) for k, size in zip(kernel, sizes)],
            }
            if index:
                form["centre"] = _RESTING
        else:
            form = {
                "gain": 1.0 if gain is None else gain,
                "normalization": "batch" if self._code else "local",
                "guarantee": "published",
            }
            if index == 0 and conditions is not None:
                form["conditions"] = conditions.shape[-1]
        return ChebyshevCRBM(
            count,
            kernel,
            strides=given["strides"],
            polynomial=given["polynomial"],
            degree=degree,
            padding=padding,
            name=f"crbm_{index + 1}",
            unprotected=given["unprotected"],
            **form,
        )

    def _pooling(self, index):
        size, name = self._arguments["pooling"], f"pooling_{index + 1}"
        kind = keras.layers.MaxPooling2D
        if self._proven:
            # Averages keep a record's features above the noise.
            kind = keras.layers.AveragePooling2D
        return kind(
            size, padding="same", data_format="channels_last", name=name
        )

    def _published_top(self, size):
        settings, dense = self.published_settings, self._arguments["dense"]
        if dense:
            yield keras.layers.Dense(
                dense,
                kernel_regularizer=keras.regularizers.L1(settings.l1),
                name="dense",
            )
        if settings.is_code:
            yield BatchStandardization(momentum=1.0, name="standardization")
            yield keras.layers.ReLU(max_value=1.0, name="relu")
        else:
            yield keras.layers.ReLU(name="relu")
            yield NormalizationLayer(
                norm="linf", mode="batch", name="normalization"
            )
        dropout = settings.dropout
        if dropout is None:
            dropout = self._dropout
        if dropout:
            yield keras.layers.Dropout(dropout, name="dropout")
            # Kept units stay in [0, 1], as the claim assumes.
            yield keras.layers.Rescaling(1 - dropout, name="kept")

    def _contrast(self, maps):
        # Each map of a record is centred and scaled on its own. Otherwise the
        # part that all records share would fill the unit ball.
        return keras.layers.GroupNormalization(
            groups=maps.shape[-1],
            epsilon=_FLAT**2,
            center=False,
            scale=False,
            name="contrast",
        )(maps)

    def _proven_top(self, size):
        dense = min(self._arguments["dense"], size)
        if dense and size > dense:
            yield RandomFeatures(dense, kind="projection", name="projected")
        yield NormalizationLayer(name="unit_maps")
        if dense:
            yield PrivateEncoder(
                dense,
                whitening=0.5,
                clip=True,
                unprotected=self._arguments["unprotected"],
                name="dense",
            )
            yield keras.layers.Rescaling(2.0, offset=-1.0, name="centred")
            yield NormalizationLayer(name="unit_dense")

    def _output(self, units, outputs, conditions):
        return self._head(units)(outputs)

    @property
    def rbms(self):
        """The `ChebyshevCRBM` layers, from the input upwards."""
        return [
            layer for layer in self.layers if isinstance(layer, ChebyshevCRBM)
        ]

    # Use -----------------------------------------------------------------

    def energy_model(self, depth=None, contrast=None):
        """The model that trains the RBM at `depth`, as a Keras model.

        It shares its layers with this model. `compile` it without a loss and
        `fit` it on records alone. (The biases of the visible units train too
        after `rbm.set_pretraining(True)`; `pretrain` calls this.)

        Args:
            depth: int, 1 to the number of RBMs (the default).
            contrast: see `EnergyModel`. `None` is `"absolute"` with
                `form="code"`, else `"energy"`.

        Returns:
            an `EnergyModel`.
        """
        rbms = pretraining.lowest(self.rbms, depth)
        if contrast is None:
            contrast = "absolute" if self._code else "energy"
        return EnergyModel(
            keras.Model(self.inputs[0], self._tops[len(rbms) - 1]),
            rbms,
            part_of=self,
            contrast=contrast,
        )

    def pretrain(
        self,
        x,
        private=None,
        epochs=10,
        batch_size=32,
        optimizer="adam",
        contrast=None,
        verbose=0,
    ):
        """Trains one RBM after the other, without labels.

        Proven: releases the patch moments of every RBM that has none yet, and
        computes its filters from them; `epochs` and `optimizer` are not used.
        Published and non-private: compiles and fits each
        `energy_model(depth)` as usual; the layers below stay fixed.
        Afterwards the RBMs are fixed too, unless `fine_tune=True`.

        Args:
            x: the records, `(n, *input_shape)`; proven: `private`'s `data`.
            private: a `PrivateModel`, or `None` for the non-private twin.
            epochs, batch_size, optimizer, verbose: as in `compile`, `fit`.
            contrast: see `energy_model`.

        Returns:
            list of `keras.callbacks.History`, one for each fit.
        """
        histories = pretraining.fit_stack(
            lambda depth: self.energy_model(depth, contrast),
            len(self.rbms),
            x,
            private,
            proven=self._proven,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            verbose=verbose,
        )
        if not (self._proven or self.published_settings.fine_tune):
            self._rest()
        return histories

    def _rest(self):
        for layer in self.rbms:
            layer.trainable = False

    def reconstruct(self, x):
        """The records, reconstructed from the first RBM's maps in the public
        bounds, NumPy `(n, *input_shape)`."""
        visible = self.energy_model(1).predict(x, verbose=0)
        low, high = (np.asarray(b) for b in self._arguments["bounds"])
        return low + np.clip(visible, 0.0, 1.0) * (high - low)

    def get_config(self):
        # RBMs that are fixed after pre-training must stay so when loaded.
        resting = not (self._proven or any(r.trainable for r in self.rbms))
        return {**super().get_config(), "resting": resting}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        resting = config.pop("resting", False)
        model = super().from_config(config)
        if resting:
            model._rest()
        return model

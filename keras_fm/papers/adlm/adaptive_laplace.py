import dataclasses

import keras

from keras_fm.core import layer_arguments
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.papers.adlm.claims import PublishedAdLM
from keras_fm.papers.adlm.perturbed_layers import (
    PerturbedAffine,
    PerturbedConv2D,
)
from keras_fm.papers.adlm.relevance_scaling import RelevanceScaling
from keras_fm.papers.batch_standardization import BatchStandardization
from keras_fm.papers.paper_model import PaperModel, flatten
from keras_fm.public import features as features_lib
from keras_fm.public.local_response_normalization import (
    LocalResponseNormalization,
)
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.random_features import RandomFeatures


@keras.saving.register_keras_serializable(package="keras_fm")
class AdaptiveLaplace(PaperModel):
    """AdLM: less noise where a feature's relevance is larger.

    Phan, Wu, Hu and Dou, ICDM 2017. An ordinary functional model: `compile`,
    `fit`, `save`. It trains under a `keras_fm.callbacks.PrivateModel` of the
    same `guarantee`. With `unprotected=True` it is the truncated twin: the
    same model without noise, and not private.

    * `guarantee="proven"`: a proof covers epsilon. The model is public
      features -> `RelevanceScaling` -> unit norm -> (public random Fourier
      features -> unit norm) -> `PrivateDense`. `PrivateModel` makes three
      releases, noisy sums over the records. They give a first model, the
      relevance of its features, and the model that is kept. The last one
      uses features scaled by their relevance.
    * `guarantee="published"`: the paper's Algorithm 1, whose epsilon is
      claimed, not proven. In training the first layer's inputs and bias and
      the coefficients of the loss carry noise. Every layer is trained on the
      records. The relevances (step 1) come from a trained
      `keras_fm.models.unprotected_twin(model)`: pass it to
      `model.guarantee(lot=..., relevance_of=twin)`. The last hidden layer is
      normalised over the batch, also in `predict`. Predictions therefore
      depend on the batch: predict a whole test set in large batches.

    Args:
        input_shape: shape of one record.
        units: int, classes (1 for a binary label).
        guarantee: `"proven"`, `"published"`, or a
            `keras_fm.models.PublishedAdLM`.
        adaptive: `False` ignores the relevance. Proven: the output layer
            alone. Published: ILM, the same noise on every feature.
        hidden: int. Published: units of the dense architecture's layer.
            Proven: random Fourier features above the scaling, 0 for none.
        features: proven form only: a name from
            `keras_fm.features.FEATURES`, or a public layer or model from
            records to vectors; `None` flattens.
        top: proven form only: `None`, or a public layer or model that
            replaces `hidden`. It gets the scaled features (unit norm), and
            its outputs must have L2 norm at most 1.
        bounds: the public `(low, high)` of the inputs. Proven: inputs are
            first mapped to [-1, 1]; `None` leaves them as they are.
            Published: inputs are mapped to [0, 1], as the claims assume;
            `None` is `(0, 1)`. Inputs outside are clipped.
        power: proven form only: exponent of the relevance, see
            `RelevanceScaling`.
        unprotected: `True` for the non-private twin, trained on records
            without noise.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`.

    Raises:
        ValueError: if an argument is unknown or belongs to the other form.

    Example:

    ```python
    model = fm.models.AdaptiveLaplace((30,), 1, bounds=(low, high))
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    private = fm.callbacks.PrivateModel(
        epsilon=1.0, delta=1e-5, data=(x, y)
    )
    model.fit(x, y, callbacks=[private])
    ```
    """

    _settings = PublishedAdLM

    def __init__(
        self,
        input_shape,
        units,
        guarantee="proven",
        adaptive=True,
        hidden=0,
        features=None,
        top=None,
        bounds=None,
        power=1.0,
        unprotected=False,
        **kwargs,
    ):
        guarantee = self._form(guarantee)
        proven = guarantee == "proven"
        layer_arguments.belongs(
            guarantee,
            "proven",
            features=(features, None),
            top=(top, None),
            power=(power, 1.0),
        )
        if bounds is not None:
            low, high = bounds_lib.checked_pair("bounds", bounds)
            bounds = (low.tolist(), high.tolist())
        self._arguments = {
            "input_shape": layer_arguments.sizes("input_shape", input_shape),
            "units": units,
            "guarantee": guarantee,
            "adaptive": bool(adaptive),
            "hidden": hidden,
            "bounds": bounds,
            "power": power,
            "unprotected": unprotected,
        }
        if isinstance(features, str):
            features = features_lib.build(features, tuple(input_shape))
        # Only names: some backends track layers that are set as attributes.
        self._public_names = {
            name: layer.name
            for name, layer in (("features", features), ("top", top))
            if layer is not None
        }
        inputs = keras.Input(tuple(input_shape))
        if proven:
            layers = self._proven_layers(features, top)
        else:
            made = self._dense_layers
            if guarantee.architecture != "dense":
                made = self._convolutional_layers
            box = NormalizationLayer(bounds or (0.0, 1.0), "linf", name="box")
            layers = [box, *made(guarantee)]
        outputs = inputs
        for layer in [*layers, self._head(units)]:
            outputs = layer(outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    # Proven --------------------------------------------------------------

    def _proven_layers(self, features, top):
        given = self._arguments
        layers = []
        if given["bounds"] is not None:
            layers += [
                NormalizationLayer(given["bounds"], "linf", name="box"),
                keras.layers.Rescaling(2.0, offset=-1.0, name="centred"),
            ]
        if features is not None:
            layers.append(features)
        elif len(given["input_shape"]) > 1:
            layers.append(flatten())
        if given["adaptive"]:
            layers.append(RelevanceScaling(given["power"], name="scaling"))
        layers.append(NormalizationLayer(name="unit_norm"))
        if top is not None:
            layers.append(top)
        if given["hidden"]:
            layers.append(
                RandomFeatures(given["hidden"], "fourier", name="hidden")
            )
            layers.append(NormalizationLayer(name="unit_hidden"))
        return layers

    # Published -----------------------------------------------------------

    @property
    def published_settings(self):
        settings = super().published_settings
        if settings is None:
            return None
        given, positions = self._arguments, settings.feature_map
        if settings.architecture == "mnist" and positions is None:
            # The authors count the positions of the map after pooling.
            positions = [-(-s // 2) for s in given["input_shape"][:2]]
        return dataclasses.replace(
            settings, adaptive=given["adaptive"], feature_map=positions
        )

    def guarantee(self, lot=None, relevance_of=None, **fields):
        """The `guarantee` to pass to `PrivateModel` for this model.

        Args:
            lot: published form only: the batch size of `fit`.
            relevance_of: published form only: a trained unprotected twin.
            **fields: arguments of `keras_fm.Proven` or `keras_fm.Published`.

        Returns:
            `Proven` or `Published`.
        """
        if relevance_of is not None:
            fields["settings"] = dataclasses.replace(
                self.published_settings, relevance_of=relevance_of
            )
        return super().guarantee(lot, **fields)

    def _perturbed(self, kind, *args, **kwargs):
        """The first layer, whose inputs carry noise."""
        return kind(
            *args,
            activation="relu",
            unprotected=self._arguments["unprotected"],
            name="perturbed",
            **kwargs,
        )

    @staticmethod
    def _before_output(settings):
        """Layers that bring the last hidden layer into the unit cube."""
        if settings.is_code:
            return [
                BatchStandardization(momentum=1.0),
                keras.layers.ReLU(max_value=1.0),
            ]
        return [
            keras.layers.ReLU(),
            NormalizationLayer(norm="linf", mode="batch"),
        ]

    def _dense_layers(self, settings):
        given = self._arguments
        return [
            *([flatten()] if len(given["input_shape"]) > 1 else []),
            self._perturbed(PerturbedAffine, given["hidden"]),
            *self._before_output(settings),
        ]

    def _convolutional_layers(self, settings):
        mnist = settings.architecture == "mnist"

        def maps(count):
            return max(1, round(count * settings.width))

        def normalised():
            return [] if settings.is_code else [LocalResponseNormalization()]

        def convolution(count):
            return [
                keras.layers.Conv2D(
                    maps(count),
                    5,
                    padding="same",
                    activation="relu",
                    data_format="channels_last",
                ),
                *normalised(),
            ]

        def pooling():
            return keras.layers.MaxPooling2D(
                2, padding="same", data_format="channels_last"
            )

        if mnist:
            first = self._perturbed(PerturbedConv2D, maps(32), 5)
            others = [pooling(), *convolution(64), pooling()]
        else:
            first = self._perturbed(PerturbedConv2D, maps(128), 3, strides=2)
            others = [
                *convolution(128),
                *convolution(256),
                keras.layers.AveragePooling2D(2, data_format="channels_last"),
            ]
        return [
            first,
            *normalised(),
            *others,
            keras.layers.Flatten(data_format="channels_last"),
            keras.layers.Dense(25 if mnist else 30),
            *self._before_output(settings),
        ]

    # Use and saving ------------------------------------------------------

    def get_config(self):
        public = {
            name: keras.saving.serialize_keras_object(self.get_layer(layer))
            for name, layer in self._public_names.items()
        }
        return super().get_config() | public

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("features", "top"):
            config[name] = keras.saving.deserialize_keras_object(
                config.get(name), custom_objects=custom_objects
            )
        return super().from_config(config)

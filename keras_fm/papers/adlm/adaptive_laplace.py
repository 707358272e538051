import keras

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.papers.adlm.perturbed_affine import PerturbedAffine
from keras_fm.papers.adlm.perturbed_conv2d import PerturbedConv2D
from keras_fm.papers.adlm.relevance_scaling import RelevanceScaling
from keras_fm.papers.batch_standardization import BatchStandardization
from keras_fm.papers.paper_model import PaperModel, flatten
from keras_fm.parts import layer_arguments
from keras_fm.parts.step import NOISE
from keras_fm.public import features as features_lib
from keras_fm.public.local_response_normalization import (
    LocalResponseNormalization,
)
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.random_features import RandomFeatures

ARCHITECTURES = ("dense", "mnist", "cifar10")
FORMS = ("paper", "code")
_PERTURBED = "perturbed"


@keras.saving.register_keras_serializable(package="keras_fm")
class AdaptiveLaplace(PaperModel):
    """AdLM: less noise where a feature's relevance is larger.

    Phan, Wu, Hu and Dou, ICDM 2017. An ordinary functional model: `compile`,
    `fit`, `save`. It trains under a `keras_fm.callbacks.PrivateModel` of the
    same `guarantee`, or with `unprotected=True` as the non-private truncated
    twin.

    * `guarantee="proven"`: public features -> `RelevanceScaling` -> unit
      norm -> (public random Fourier features -> unit norm) ->
      `PrivateDense`. `PrivateModel` reads the records three times: a first
      model, the relevance of its features, and the model that is kept, in
      features scaled by their relevance.
    * `guarantee="published"`: Algorithm 1. The first layer's inputs and
      bias and the coefficients of the loss carry noise while training; every
      layer is trained on the records. The relevances (step 1) are those of a
      trained `keras_fm.models.unprotected_twin(model)`, named by
      `model.get_layer("perturbed").relevance_of(twin)`. The last hidden layer
      is normalised over the batch, also when predicting, so predictions
      depend on the batch: predict a whole test set in large batches.

    Args:
        input_shape: shape of one record.
        units: int, classes (1 for a binary label).
        guarantee: `"proven"` or `"published"`.
        adaptive: `False` leaves the adaptation out: the proven output layer
            alone, or ILM (identical noise).
        architecture: of the published form: `"dense"` (one hidden layer),
            `"mnist"` (convolutions 5x5x32 and 5x5x64, dense 25) or
            `"cifar10"` (3x3x128, 5x5x128, 5x5x256, dense 30).
        hidden: int, units of the dense architecture's layer (published), or
            random Fourier features above the scaling (proven, 0 for none).
        features: of the proven form: a name of
            `keras_fm.features.FEATURES`, or a public layer or model from
            records to vectors; `None` flattens.
        top: of the proven form: `None`, or a public layer or model between
            the scaled features (unit norm) and the output layer, in the
            place of `hidden`; its outputs must have L2 norm at most 1.
        bounds: the public `(low, high)` of the inputs. Proven: they are
            first mapped to [-1, 1]; `None` leaves them as they are.
            Published: mapped to [0, 1], which the claims are for; `None` is
            `(0, 1)`. Inputs outside are clipped.
        power: of the proven form: exponent of the relevance, see
            `RelevanceScaling`.
        form: of the published form: `"paper"` as printed (2 |h0| d, noise
            drawn once, local response normalisation, min-max normalisation
            before the output) or `"code"` as the authors' code (positions x
            patch, noise drawn at every step, inputs clipped to [-10, 10],
            batch normalisation and clipping before the output).
        noise: of the published form: `None` (as `form` has it), `"once"` or
            `"per_step"`, see `PerturbedAffine`.
        unprotected: `True` for the non-private twin, trained on records
            without noise.
        width: float > 0, multiplies the maps of the convolutional
            architectures; 1 is the paper's size.

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

    def __init__(
        self,
        input_shape,
        units,
        guarantee="proven",
        adaptive=True,
        architecture="dense",
        hidden=0,
        features=None,
        top=None,
        bounds=None,
        power=1.0,
        form="paper",
        noise=None,
        width=1.0,
        unprotected=False,
        **kwargs,
    ):
        checks.one_of("guarantee", guarantee, ("proven", "published"))
        checks.one_of("architecture", architecture, ARCHITECTURES)
        checks.one_of("form", form, FORMS)
        checks.one_of("noise", noise, (None, *NOISE))
        layer_arguments.belongs(
            guarantee,
            "proven",
            features=(features, None),
            top=(top, None),
            power=(power, 1.0),
        )
        layer_arguments.belongs(
            guarantee,
            "published",
            architecture=(architecture, "dense"),
            form=(form, "paper"),
            noise=(noise, None),
            width=(width, 1.0),
        )
        checks.number("width", width, above=0, wanted="greater than 0")
        if guarantee == "published" and architecture == "dense" and not hidden:
            raise ValueError(
                "The dense published architecture needs `hidden`, the units "
                "of its perturbed layer. Received: hidden=0"
            )
        if bounds is not None:
            low, high = bounds_lib.checked_pair("bounds", bounds)
            bounds = (low.tolist(), high.tolist())
        self._arguments = {
            "input_shape": layer_arguments.sizes("input_shape", input_shape),
            "units": units,
            "guarantee": guarantee,
            "adaptive": bool(adaptive),
            "architecture": architecture,
            "hidden": hidden,
            "bounds": bounds,
            "power": power,
            "form": form,
            "noise": noise,
            "width": width,
            "unprotected": unprotected,
        }
        if isinstance(features, str):
            features = features_lib.build(features, tuple(input_shape))
        if top is not None and hidden:
            raise ValueError(
                "`top` stands in the place of `hidden`: give one of them. "
                f"Received: hidden={hidden}"
            )
        # Names only: some backends track layers set as attributes.
        self._public_names = {
            name: layer.name
            for name, layer in (("features", features), ("top", top))
            if layer is not None
        }
        inputs = keras.Input(tuple(input_shape))
        if guarantee == "proven":
            layers = self._proven_layers(features, top)
        else:
            made = self._dense_layers
            if architecture != "dense":
                made = self._convolutional_layers
            box = NormalizationLayer(bounds or (0.0, 1.0), "linf", name="box")
            layers = [box, *made()]
        # The papers' Delta_F counts the features only: no bias.
        head = PrivateDense(
            units,
            use_bias=guarantee == "proven",
            unprotected=unprotected,
            name="output",
        )
        outputs = inputs
        for layer in [*layers, head]:
            outputs = layer(outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    # Proven --------------------------------------------------------------

    def _proven_layers(self, features, top):
        given = self._arguments
        layers = []
        if given["bounds"] is not None:
            layers.append(
                NormalizationLayer(given["bounds"], "linf", name="box")
            )
            layers.append(
                keras.layers.Rescaling(2.0, offset=-1.0, name="centred")
            )
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

    def _perturbation(self):
        noise = "per_step" if self._code else "once"
        return {
            "adaptive": self._arguments["adaptive"],
            "noise": self._arguments["noise"] or noise,
            "input_bound": 10.0 if self._code else None,
            "relevance_form": self._arguments["form"],
            "activation": "relu",
            "unprotected": self._arguments["unprotected"],
            "name": _PERTURBED,
        }

    def _before_output(self):
        """What brings the last hidden layer into the unit cube."""
        if self._arguments["form"] == "paper":
            return [
                keras.layers.ReLU(),
                NormalizationLayer(norm="linf", mode="batch", running=False),
            ]
        return [
            BatchStandardization(momentum=1.0),
            keras.layers.ReLU(max_value=1.0),
        ]

    def _dense_layers(self):
        given = self._arguments
        layers = []
        if len(given["input_shape"]) > 1:
            layers.append(flatten())
        return [
            *layers,
            PerturbedAffine(given["hidden"], **self._perturbation()),
            *self._before_output(),
        ]

    def _convolutional_layers(self):
        given = self._arguments
        paper = given["form"] == "paper"

        def maps(count):
            return max(1, round(count * given["width"]))

        def normalised():
            return [LocalResponseNormalization()] if paper else []

        def convolution(count, size):
            return [
                keras.layers.Conv2D(
                    maps(count),
                    size,
                    padding="same",
                    activation="relu",
                    data_format="channels_last",
                ),
                *normalised(),
            ]

        if given["architecture"] == "mnist":
            # The authors count positions of the map after pooling.
            positions = tuple(-(-s // 2) for s in given["input_shape"][:2])
            return [
                self._perturbed_convolution(32, 5, 1, positions, maps),
                *normalised(),
                keras.layers.MaxPooling2D(
                    2, padding="same", data_format="channels_last"
                ),
                *convolution(64, 5),
                keras.layers.MaxPooling2D(
                    2, padding="same", data_format="channels_last"
                ),
                keras.layers.Flatten(data_format="channels_last"),
                keras.layers.Dense(25),
                *self._before_output(),
            ]
        return [
            self._perturbed_convolution(128, 3, 2, None, maps),
            *normalised(),
            *convolution(128, 5),
            *convolution(256, 5),
            keras.layers.AveragePooling2D(2, data_format="channels_last"),
            keras.layers.Flatten(data_format="channels_last"),
            keras.layers.Dense(30),
            *self._before_output(),
        ]

    def _perturbed_convolution(self, count, size, strides, positions, maps):
        paper = self._arguments["form"] == "paper"
        return PerturbedConv2D(
            maps(count),
            size,
            strides=strides,
            sensitivity="paper" if paper else "patch",
            feature_map=None if paper else positions,
            **self._perturbation(),
        )

    # Use and saving ------------------------------------------------------

    def get_config(self):
        return {
            **super().get_config(),
            **{
                name: keras.saving.serialize_keras_object(self.get_layer(layer))
                for name, layer in self._public_names.items()
            },
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("features", "top"):
            if config.get(name) is not None:
                config[name] = keras.saving.deserialize_keras_object(
                    config[name], custom_objects=custom_objects
                )
        return super().from_config(config)

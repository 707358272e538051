"""Base classes and checks that the models of several papers share."""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_fm.core import dtype_scope, model_graph, model_inputs, sealed
from keras_fm.core.guarantee import PaperSettings, Proven, Published
from keras_fm.core.planned_release import NOISE
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks

_BATCH = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperOrCode(PaperSettings):
    """Settings of a paper whose text and authors' code differ.

    Args:
        form: `"paper"`, as printed, or `"code"`, as in the authors' code.
        noise: `None` (as `form` has it), `"once"` or `"per_step"`.
    """

    form: str = "paper"
    noise: str | None = None

    def __post_init__(self):
        checks.one_of("form", self.form, ("paper", "code"))
        checks.one_of("noise", self.noise, (None, *NOISE))

    @property
    def is_code(self):
        """Whether the form is that of the authors' code."""
        return self.form == "code"

    @property
    def noise_per_step(self):
        """Whether noise is drawn again at every step."""
        return (self.noise or NOISE[self.is_code]) == "per_step"


class PaperModel(keras.Model):
    """A functional model that has a proven and a published form.

    A subclass keeps its arguments in `_arguments` and builds its layers from
    them. The argument `"guarantee"` is kept as `_form` returns it.
    """

    # Class of the published form's settings.
    _settings: type
    # Default `lot` of the published form.
    _lot: str | None = None

    @classmethod
    def _form(cls, guarantee):
        """`"proven"`, or the settings of the published form.

        Raises:
            ValueError: if it is neither.
        """
        if isinstance(guarantee, str) and guarantee == "published":
            return cls._settings()
        if guarantee == "proven" or isinstance(guarantee, cls._settings):
            return guarantee
        raise ValueError(
            '`guarantee` must be "proven", "published" or '
            f"keras_fm.models.{cls._settings.__name__}(...). "
            f"Received: guarantee={guarantee!r}"
        )

    @property
    def _proven(self):
        return self._arguments["guarantee"] == "proven"

    @property
    def published_settings(self):
        """The settings of the published form, or `None`."""
        return None if self._proven else self._arguments["guarantee"]

    @property
    def _code(self):
        """Whether the published form is that of the authors' code."""
        return getattr(self.published_settings, "form", None) == "code"

    def guarantee(self, lot=None, **fields):
        """The `guarantee` to pass to `PrivateModel` for this model.

        Args:
            lot: published form only: the batch size of `fit`, or `"data"`
                to divide noise by n, which is the auto-encoders' default.
            **fields: arguments of `keras_fm.Proven` or `keras_fm.Published`.

        Returns:
            `Proven` or `Published`. With `form="code"`, only the linear
            coefficients carry noise, as in the authors' code.
        """
        if self._proven:
            return Proven(**fields)
        if self._code:
            fields.setdefault("orders", ("linear",))
        return Published(lot=self._lot if lot is None else lot, **fields)

    def _head(self, units):
        return PrivateDense(
            units,
            # No bias if published: the paper's Delta_C counts only features.
            use_bias=self._proven,
            unprotected=self._arguments["unprotected"],
            name="output",
        )

    def get_config(self):
        guarantee = self._arguments["guarantee"]
        return {
            **self._arguments,
            "guarantee": keras.saving.serialize_keras_object(guarantee),
            "name": self.name,
            **dtype_scope.config(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        if isinstance(config.get("guarantee"), dict):
            config["guarantee"] = keras.saving.deserialize_keras_object(
                config["guarantee"]
            )
        with dtype_scope.of(config):
            return cls(**config)


class OfWindows:
    """What models of `keras_fm.datasets.Windows` have in common: the places
    of their columns."""

    @classmethod
    def of(cls, windows, **kwargs):
        """A model for these `keras_fm.datasets.Windows`."""
        return cls(
            windows.x.shape[1:],
            windows.columns,
            (windows.low, windows.high),
            **kwargs,
        )

    def get_config(self):
        return {**super().get_config(), "columns": self._columns}


class StackView(keras.Model):
    """The lowest layers of a stack, as a model without labels.

    `fit` on records alone trains the topmost of these layers. The output is
    that layer's reconstruction of its inputs.

    Args:
        encoding_model: functional model from records to the topmost output.
        stack: the stack's layers in it, from the input upwards.
        part_of: `None`, or the model that this is a part of. That model
            decides its share of the budget.
    """

    # Name of the whole model's class.
    _whole: str | None = None

    def __init__(self, encoding_model, stack, part_of=None, **kwargs):
        super().__init__(**kwargs)
        self.encoding_model = encoding_model
        # Hidden from Keras: the whole model must not be tracked as a part.
        self.__dict__["part_of"] = part_of
        self.stack = list(stack)
        found = model_graph.layer_inputs(encoding_model, self.stack[-1].name)
        self._below = keras.Model(
            encoding_model.inputs[0], model_inputs.single(found)
        )
        self.built = True

    def below(self, inputs):
        """Inputs of the topmost layer; the layers below it are fixed."""
        found = self._below(inputs, training=False)
        # The layers below may be trainable in the whole model.
        return keras.tree.map_structure(ops.stop_gradient, found)

    def make_train_function(self, force=False):
        if self.stack[-1].is_released:
            # Nothing is trained, and metrics on the records are not shown.
            sealed.seal(self, [])
        super().make_train_function(force=force)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        # Only the loss knows the target: there is nothing here to compare
        # `y_pred` with.
        return self.get_metrics_result()

    def encode(self, x):
        """The topmost layer's output for every record, NumPy."""
        return self.encoding_model.predict(x, batch_size=_BATCH, verbose=0)

    def get_config(self):
        name = type(self).__name__
        raise NotImplementedError(
            f"An {name} is a view of a {self._whole}: save that model."
        )


def flatten():
    """A layer from images to vectors, channels last."""
    return keras.layers.Flatten(data_format="channels_last", name="flatten")


def check_labels(y, units):
    """Refuses labels that do not belong to a class.

    Args:
        y: array `(n,)`, `(n, 1)` or `(n, units)`.
        units: int, outputs of the classifier. One is the logit of class 1.

    Raises:
        ValueError: if a class index is not an integer in `[0, units)`, or a
            target is outside `[0, 1]`.
    """
    y = np.asarray(y)
    bounds_lib.check_numbers(y.dtype)
    index = units > 1 and (y.ndim == 1 or y.shape[1:] == (1,))
    if index:
        fits = (y == np.floor(y)) & (y >= 0) & (y < units)
    else:
        fits = (y >= 0) & (y <= 1)
    if not np.all(fits):
        wanted = f"whole numbers in [0, {units})" if index else "in [0, 1]"
        raise ValueError(f"Labels must be {wanted}. At least one is not.")

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.papers.dpa.claims import PublishedDPA
from keras_fm.papers.dpa.perturbed_reconstruction import PerturbedReconstruction
from keras_fm.papers.dpa.private_encoder import PrivateEncoder
from keras_fm.papers.paper_model import PaperModel, StackView, flatten
from keras_fm.preprocessing import pretraining
from keras_fm.public.normalization_layer import NormalizationLayer


@keras.saving.register_keras_serializable(package="keras_fm")
class DeepPrivateAutoencoder(PaperModel):
    """dPA: private auto-encoders in a stack, with an output layer on top.

    Phan, Wang, Wu and Dou, AAAI 2016. An ordinary functional model from
    records to logits (or, with `units=None`, to the code): `compile`, `fit`,
    `save`. It trains under a `keras_fm.callbacks.PrivateModel` of the same
    `guarantee`. With `unprotected=True` it is the non-private twin (TdA).

    * `guarantee="proven"`: a proof covers epsilon. `fit` with `PrivateModel`
      releases every auto-encoder, from the input upwards, then the output
      layer's objective. A release is a noisy statistic of the records; all
      of them share one budget. `private.plan(model)` prints the plan before
      any budget is used. The encoders are fixed after their release: features
      that train on records would need a new release at every step.
    * `guarantee="published"`: the paper's algorithm, whose epsilon is
      claimed, not proven. `pretrain` trains one auto-encoder after the other
      on the perturbed reconstruction. Between them, layers are normalised
      over the batch (Eq. 13). `fit` then trains all layers with noise on the
      output layer's coefficients (Lemma 3).

    Args:
        input_shape: shape of one record.
        hidden: tuple of ints, units of the encoders; in the proven form an
            entry may be `(units, components)`, see `PrivateEncoder`.
        units: int, classes (1 for a binary label), or `None`: no labels.
        guarantee: `"proven"`, `"published"`, or a
            `keras_fm.models.PublishedDPA`.
        bounds: the public `(low, high)` of the inputs, mapped to [0, 1].
        input_bound: proven form only: public L2 bound of a mapped record;
            `None` for `sqrt(inputs) / 3`, a third of the norm of the farthest
            corner. Longer records are scaled back.
        source, rounds: proven form only, see `PrivateEncoder`.
        visible: `None`, or `(start, stop)`: the inputs that the first
            auto-encoder reconstructs; the others only condition its code.
        unprotected: `True` for the non-private twin, trained on records
            without noise.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`, or
    `(batch, hidden[-1])` without labels.

    Raises:
        ValueError: if an argument is unknown or belongs to the other form.

    Example:

    ```python
    model = fm.models.DeepPrivateAutoencoder((8, 8, 1), hidden=(20,))
    private = fm.callbacks.PrivateModel(
        epsilon=1.0, delta=1e-5, data=x
    )
    model.pretrain(x, private)            # no labels needed
    picture = model.reconstruct(x_test)
    ```
    """

    _settings, _lot = PublishedDPA, "data"

    def __init__(
        self,
        input_shape,
        hidden=(200,),
        units=None,
        guarantee="proven",
        bounds=(0.0, 1.0),
        input_bound=None,
        source="moments",
        rounds=1,
        visible=None,
        unprotected=False,
        **kwargs,
    ):
        guarantee = self._form(guarantee)
        layer_arguments.belongs(
            guarantee,
            "proven",
            input_bound=(input_bound, None),
            source=(source, "moments"),
            rounds=(rounds, 1),
        )
        hidden = tuple(_hidden(entry) for entry in hidden)
        if not hidden:
            raise ValueError("`hidden` must hold at least one layer.")
        low, high = bounds_lib.checked_pair("bounds", bounds)
        self._arguments = {
            "input_shape": layer_arguments.sizes("input_shape", input_shape),
            "hidden": hidden,
            "units": units,
            "guarantee": guarantee,
            "bounds": (low.tolist(), high.tolist()),
            "input_bound": input_bound,
            "source": source,
            "rounds": rounds,
            "visible": visible,
            "unprotected": unprotected,
        }
        inputs = keras.Input(tuple(input_shape), name="records")
        outputs = NormalizationLayer((low, high), "linf", name="box")(inputs)
        if len(input_shape) > 1:
            outputs = flatten()(outputs)
        codes = []
        build = self._proven_layers if self._proven else self._published_layers
        for layers, encoder in build(outputs.shape[-1]):
            for layer in layers:
                outputs = layer(outputs)
            outputs = encoder(outputs)
            codes.append(outputs)
        if units is not None:
            for layer in self._top(units, encoder):
                outputs = layer(outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        # Hidden from Keras, which would save tracked objects a second time.
        self.__dict__["_codes"] = codes

    # The stack -----------------------------------------------------------

    def _proven_layers(self, inputs):
        given = self._arguments
        encoder = None
        for index, (units, components) in enumerate(given["hidden"]):
            first = index == 0
            layers = [] if first else _centred(encoder, "ball", f"_{index}")
            bound = given["input_bound"]
            if not first:
                bound = 1.0
            elif bound is None:
                bound = inputs**0.5 / 3
            encoder = PrivateEncoder(
                units,
                components=components,
                source=given["source"],
                rounds=given["rounds"],
                input_bound=bound,
                clip=first,
                visible=given["visible"] if first else None,
                seed=index,
                unprotected=given["unprotected"],
                name=f"encoder_{index + 1}",
            )
            encoder.build((None, inputs))
            inputs = units
            yield layers, encoder

    def _published_layers(self, inputs):
        given = self._arguments
        for index, (units, components) in enumerate(given["hidden"]):
            if components is not None:
                raise ValueError(
                    '`components` belong to guarantee="proven". Received: '
                    f"hidden={given['hidden']}"
                )
            yield (
                [_of_batch(f"_{index}")] if index else [],
                PrivateEncoder(
                    units,
                    guarantee="published",
                    visible=given["visible"] if index == 0 else None,
                    unprotected=given["unprotected"],
                    name=f"encoder_{index + 1}",
                ),
            )

    def _top(self, units, encoder):
        layers = [_of_batch("")]
        if self._proven:
            layers = _centred(encoder, "unit", "")
        return [*layers, self._head(units)]

    @property
    def encoders(self):
        """The `PrivateEncoder` layers, from the input upwards."""
        return [
            layer for layer in self.layers if isinstance(layer, PrivateEncoder)
        ]

    def autoencoder(self, depth=None):
        """The auto-encoder of the first `depth` encoders as a Keras model.

        It shares its layers with this model. `compile` it with
        `PerturbedReconstruction` and `fit` it on records alone. It trains
        the topmost encoder to reconstruct that encoder's inputs. (Its decoder
        trains too after `encoder.set_pretraining(True)`; `pretrain` calls
        this.)

        Args:
            depth: int, 1 to the number of encoders (the default).

        Returns:
            an `Autoencoder`.
        """
        encoders = pretraining.lowest(self.encoders, depth)
        model = keras.Model(self.inputs[0], self._codes[len(encoders) - 1])
        return Autoencoder(model, encoders, part_of=self)

    # Use -----------------------------------------------------------------

    def pretrain(
        self,
        x,
        private=None,
        epochs=10,
        batch_size=32,
        optimizer="adam",
        loss=None,
        verbose=0,
    ):
        """Trains one auto-encoder after the other, without labels.

        Proven: releases the moments of every encoder that has none yet, and
        computes its weights from them; `epochs` and `optimizer` are not used.
        Published and non-private: compiles and fits each
        `autoencoder(depth)` as usual; the layers below stay fixed.

        Args:
            x: the records, `(n, *input_shape)`; proven: `private`'s `data`.
            private: a `PrivateModel`, or `None` for the non-private twin.
            epochs, batch_size, optimizer, verbose: as in `compile`, `fit`.
            loss: `None` for `PerturbedReconstruction`, or a loss for the
                non-private twin (dA: the exact cross-entropy of logits).

        Returns:
            list of `keras.callbacks.History`, one for each fit.
        """
        if loss is not None and private is not None:
            raise ValueError(
                "`loss` is for the non-private twin: leave it out of a private "
                "fit, which uses `PerturbedReconstruction`."
            )
        return pretraining.fit_stack(
            self.autoencoder,
            len(self.encoders),
            x,
            private,
            proven=self._proven,
            loss=loss or (lambda top: PerturbedReconstruction(top.form)),
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            verbose=verbose,
        )

    def encode(self, x):
        """The code of every record, `(n, hidden[-1])`, NumPy."""
        return self.autoencoder().encode(x)

    def decode(self, code):
        """Records from codes, in the public bounds, NumPy."""
        return self._to_records(self.autoencoder().decode(code))

    def reconstruct(self, x):
        """`decode(encode(x))`: the records, or their visible inputs."""
        return self.decode(self.encode(x))

    def _to_records(self, visible):
        low, high = (np.asarray(b) for b in self._arguments["bounds"])
        shape = self._arguments["input_shape"]
        low, high = (np.broadcast_to(b, shape).ravel() for b in (low, high))
        start, stop = self.encoders[0].visible_range
        low, high = low[start:stop], high[start:stop]
        values = low + np.clip(visible, 0.0, 1.0) * (high - low)
        if (start, stop) == (0, len(np.empty(shape).ravel())):
            values = values.reshape(len(values), *shape)
        return values


class Autoencoder(StackView):
    """Encoders of a `DeepPrivateAutoencoder` with their decoders.

    The output is the topmost encoder's reconstruction of its inputs (logits
    if its form is `"cross_entropy"`). Those inputs are the target of the
    loss, so `fit(x)` needs no labels. Only the loss is logged. Save the model
    that this view belongs to, not the view.

    Args:
        encoding_model: functional model from records to the topmost code.
        stack: its `PrivateEncoder` layers, from the input upwards.
        part_of: `None`, or the model that this is a part of. That model
            decides its share of the budget.
    """

    _whole = "DeepPrivateAutoencoder"

    def call(self, inputs, training=False):
        top = self.stack[-1]
        code = top(self.below(inputs), training=training)
        noise = top.noise_loss() if training else None
        if noise is not None:
            self.add_loss(noise)
        return top.decode(code, logits=True)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        start, stop = self.stack[-1].visible_range
        target = self.below(x)[:, start:stop]
        return super().compute_loss(x, target, y_pred, sample_weight, training)

    def decode(self, code):
        """Decodes the topmost code down to the first encoder's inputs."""
        code = ops.convert_to_tensor(np.asarray(code, "float32"))
        for layer in reversed(self.stack):
            values = layer.decode(code)
            if layer is not self.stack[0]:
                below, code = self.stack[self.stack.index(layer) - 1], values
                # Published: the batch normalises codes, which keep the
                # cube's scale.
                if not below.is_published:
                    code = (values / _scale(below) + 1) / 2
                    code = ops.clip(code, 0.0, 1.0)
        return ops.convert_to_numpy(values)


def _hidden(entry):
    """Units and components of a hidden layer."""
    return tuple(entry) if isinstance(entry, (list, tuple)) else (entry, None)


def _scale(encoder):
    return 1 / (encoder.code_scale * encoder.units**0.5)


def _centred(encoder, mode, suffix):
    """Maps codes in [0, 1]^b into the unit ball, by public constants."""
    scale = _scale(encoder)
    return [
        keras.layers.Rescaling(
            2 * scale, offset=-scale, name=f"centred{suffix}"
        ),
        NormalizationLayer(mode=mode, name=f"normalization{suffix}"),
    ]


def _of_batch(suffix):
    return NormalizationLayer(mode="batch", name=f"normalization{suffix}")

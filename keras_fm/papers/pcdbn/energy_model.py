import keras
from keras import ops

from keras_fm.core import replicas
from keras_fm.kernel import checks
from keras_fm.papers.paper_model import StackView

CONTRASTS = ("energy", "absolute")


class EnergyModel(StackView):
    """Contrastive divergence of the topmost RBM of a stack, as a Keras model.

    It is a view of a model with `keras_fm.layers.ChebyshevCRBM` layers, and
    shares them. `compile` it without a loss and `fit` it on records alone: it
    trains its topmost layer. (The biases of that layer's visible units train
    too after its `set_pretraining(True)`; they have no gradient in any other
    model.) The output is that layer's reconstruction of its inputs. v' is the
    end of one Gibbs step from the record, held constant. The loss per record
    is

    * `contrast="energy"`: E(v) - E(v') with the layer's own energy (CD-1);
    * `contrast="absolute"`: the authors' code, mean |P(h | v') - P(h | v)| +
      mean |v' - v|, where v' is the reconstruction and not held constant.

    The first is not a likelihood and may be negative. The mean squared error
    of a reconstructed unit is logged as `reconstruction_error`.

    Save the model that this view belongs to, not the view.

    Args:
        encoding_model: functional model from records to the topmost maps.
        stack: its `ChebyshevCRBM` layers, from the input upwards.
        part_of: `None`, or the model that this is a part of. That model
            decides its share of the budget.
        contrast: see above.
        seed: int or `None`, of the Gibbs chain.

    Raises:
        ValueError: if an argument is outside its range, or the model is
            compiled with a loss.
    """

    _whole = "PrivateCDBN"

    def __init__(
        self,
        encoding_model,
        stack,
        part_of=None,
        contrast="energy",
        seed=None,
        **kwargs,
    ):
        super().__init__(encoding_model, stack, part_of, **kwargs)
        self.contrast = checks.one_of("contrast", contrast, CONTRASTS)
        self._draws = keras.random.SeedGenerator(seed)
        self._error = keras.metrics.Mean(name="reconstruction_error")

    def call(self, inputs, training=False):
        return self.stack[-1].reconstruct(self.below(inputs), training)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        top = self.stack[-1]
        given = self.below(x)
        v, conditions = top.parts(given)
        missed = ops.cast(v, "float32") - ops.cast(y_pred, "float32")
        self._error.update_state(ops.mean(ops.square(missed)))

        def beside(visible):
            return visible if conditions is None else [visible, conditions]

        if self.contrast == "absolute":
            after = top(beside(y_pred), training=training)
            before = top(given, training=training)
            drift = ops.cast(after - before, "float32")
            loss = ops.mean(ops.abs(drift)) + ops.mean(ops.abs(missed))
            return replicas.share(loss)
        end = top.chain(given, 1, self._draws, training)
        end = beside(ops.stop_gradient(end))
        before, after = (top.energy(v, training=training) for v in (given, end))
        return replicas.share(ops.mean(before - after))

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts import layer_arguments
from keras_fm.stacks import (
    first_weights,
    layer_stack,
    output_losses,
    record_graph,
)
from keras_fm.stacks.back_propagation import BackPropagation
from keras_fm.stacks.coefficient_model import (
    LEARNED,
    CoefficientModel,
    thresholds_of,
)
from keras_fm.stacks.step_noise import StepNoise


@keras.saving.register_keras_serializable(package="keras_fm")
class GradientNet(CoefficientModel):
    """An ordinary network, all of whose layers learn by clipped noisy steps.

    The first-order Taylor coefficient of a record's loss about the current
    weights is its gradient. A step sums the gradients of a Poisson sample,
    each clipped to the norm `clip`, adds Gaussian noise, and hands the sum to
    the optimizer: DP-SGD. Of each layer a record's gradient is an outer
    product of what the layer reads and what comes back to it, so the norm of
    the whole gradient is known from two norms for each layer ("ghost
    clipping"; Gram matrices or blocks for a convolution), and the clipped sum
    is one matrix product or one gradient by a kernel: no gradient of a record
    is formed but for a convolution of few weights, or of unusual kind, one
    place of its kernel at a time.

    `keras_fm.callbacks.PrivateModel` gives the noise, charges all steps
    before the first, and without it there is no step. `loss` in the logs of a
    private fit is a function of what was released, of no meaning otherwise.
    Averages of the weights over steps cost nothing:
    `keras.optimizers.SGD(..., use_ema=True)`. With `unprotected=True` this
    is plain training.

    Args:
        input_shape: shape of one record.
        layers: the layers that are trained, as a list, a `keras.Sequential`
            or a functional model of one input and one output, which may
            branch and join: `Dense`, convolutions (depthwise, separable and
            transposed ones too), `LayerNormalization`, `RMSNormalization`
            and `GroupNormalization` of the last axis, `PReLU`,
            `MultiHeadAttention`, `Embedding`;
            between them layers without weights that treat records one by
            one, and dropout (docs/gradient_net.md lists them); the last a
            `Dense` that gives logits. Activations: "linear", "relu",
            "leaky_relu", "sigmoid", "tanh", "softplus", "elu", "silu",
            "gelu".
        loss: `"categorical_crossentropy"` (softmax, on logits),
            `"binary_crossentropy"` (per class, on logits) or
            `"squared_error"` (`1/2 ||output - y||^2`; without labels y is
            what the first of `layers` reads: an auto-encoder).
        clip: a float: L2 threshold of a record's gradient, all layers
            together. A list, one for each trained layer: each layer's part is
            clipped by itself. `"histogram"`: as a float, learned from a
            noisy histogram of norms when a private fit begins.
        clip_quantile: float in (0, 1), of `clip="histogram"`: the share of
            records whose gradients are not clipped.
        below: layers with public, frozen or already released weights that
            are applied first.
        input_bound: `None`, or public L2 bound on what the first of `layers`
            reads; longer inputs are scaled back.
        views: int K: each record is K rows of a batch, as
            `PoissonBatches(..., augment=..., views=K)` gives them. Its
            gradient is the mean of theirs and is clipped once, so views cost
            no privacy.
        planned_steps: `None`, or how many steps are paid for at the first
            private fit, if that is not to be the last.
        noise_multiplier: `None` for the noise that spends the budget, or the
            noise of the steps, in units of the sensitivity.
        unprotected: `True` for the non-private twin.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`:
    logits, or reconstructions.

    Raises:
        ValueError: if gradients of single records are not known for a layer
            (it is named), or an argument is outside its range.

    Example:

    ```python
    model = fm.models.GradientNet(
        (28, 28, 1),
        [
            keras.layers.Conv2D(16, 8, strides=2, activation="tanh"),
            keras.layers.MaxPooling2D(2, strides=1),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ],
        clip=0.1,
    )
    model.compile(keras.optimizers.SGD(2.0, momentum=0.9))
    batches = fm.datasets.PoissonBatches(x, y, batch_size=2000)
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
    model.fit(batches, epochs=20, callbacks=[private])
    ```

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016; the
    norms: Goodfellow, "Efficient Per-Example Gradient Computations", 2015,
    and Rochette et al., 2019, for convolutions.
    """

    def __init__(
        self,
        input_shape,
        layers,
        loss="categorical_crossentropy",
        clip=1.0,
        clip_quantile=0.5,
        below=(),
        input_bound=None,
        views=1,
        planned_steps=None,
        noise_multiplier=None,
        unprotected=False,
        **kwargs,
    ):
        if not record_graph.is_network(layers):
            layers = layer_stack.as_list(layers=layers)
        below = layer_stack.as_list(below=below)
        first = first_weights.are_first(layers)
        checks.one_of("loss", loss, output_losses.LOSSES)
        given = {
            "input_shape": layer_arguments.sizes("input_shape", input_shape),
            "loss": loss,
            "clip": clip,
            "clip_quantile": checks.number(
                "clip_quantile",
                clip_quantile,
                above=0,
                below=1,
                wanted="between 0 and 1",
            ),
            "input_bound": checks.optional(
                checks.norm_bound, "input_bound", input_bound
            ),
            "views": checks.count("views", views),
            "planned_steps": None,
            "noise_multiplier": None,
            "unprotected": unprotected,
        }
        if views > 1 and clip == LEARNED:
            raise ValueError(
                '`clip="histogram"` counts the norms of records as they are '
                f"given. Give a number. Received: views={views}"
            )
        inputs = keras.Input(tuple(input_shape), name="records")
        features = layer_stack.apply_public(below, inputs, input_bound)
        graph = record_graph.RecordGraph(layers, features, views)
        stages = graph.stages
        joint = np.ndim(clip) == 0
        count = len({id(stage.layer) for stage in stages})
        thresholds = thresholds_of("clip", clip, count, joint=joint)
        noise = StepNoise(
            name="step_noise",
            dtype=stages[-1].layer.dtype_policy,
            unprotected=unprotected,
        )
        outputs = noise(graph.outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        head = output_losses.LOSSES[loss](
            stages[-1].activation, outputs.shape[-1]
        )
        self.__dict__["_noise"] = noise
        self.__dict__["_steps"] = BackPropagation(graph, head, views)
        self.__dict__["_thresholds"] = {1: thresholds}
        self.__dict__["_joint"] = joint
        self._keep(given, layers, below, inputs, features, first)
        self.plan_steps(planned_steps, noise_multiplier)

    @property
    def clips_jointly(self):
        return self._joint

    @property
    def views(self):
        """How many rows of a batch are one record."""
        return self._given["views"]

    @property
    def draws_masks(self):
        return self._steps.graph.has_masks

    def _meet(self, features, y, weights, training=False):
        masks = None
        if training:
            # Before the records are looked at.
            masks = self._steps.graph.draw_masks(
                ops.shape(features)[0],
                self._noise if self.is_perturbed else None,
            )
        return self._steps.meetings(features, y, weights, masks)

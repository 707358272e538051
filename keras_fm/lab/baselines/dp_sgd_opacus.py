"""DP-SGD by Opacus, on the PyTorch backend of Keras.

Opacus computes the gradients of single records (`GradSampleModule`), clips them
and adds the noise (`DPOptimizer`). The model is the Keras 3 model itself, the
optimizer a Keras optimizer. Batches and noise multiplier come from a plan
(`dp_sgd_training`).

Opacus has rules for PyTorch's own layers. It differentiates any other module by
`torch.func`. A Keras model is given to it as one such module, whose parameters
are the model's variables. That runs the module twice and would draw a `Dropout`
inside twice. So the model is cut at each `Dropout`, and PyTorch's replaces it.
"""

import contextlib
import functools
import importlib
import itertools
import secrets
import warnings

import keras
import numpy as np

from keras_fm.lab.baselines.dp_sgd_training import (
    DPSGDTrainer,
    changing_state,
    in_a_row,
    loss_of,
    parts_of,
    with_weights,
    without_softmax,
)
from keras_fm.per_example.affine_maps import convolved

# Memory for gradients at a time.
_BYTES = 1e8


class OpacusClassifier(DPSGDTrainer):
    """A Keras 3 classifier trained by Opacus' DP-SGD.

    Needs `pip install opacus` and the PyTorch backend of Keras. Arguments and
    guarantee are those of `JaxDPSGDClassifier`, without `augment`.
    """

    _library = "Opacus"
    _generator = "PyTorch's generator"
    _form = "torch.func"
    _clipping = "gradients"

    def _import_library(self):
        return parts_of(
            "Opacus",
            "torch",
            "pip install opacus, with KERAS_BACKEND=torch",
            torch="torch",
            GradSampleModule="opacus:GradSampleModule",
            DPOptimizer="opacus.optimizers:DPOptimizer",
        )

    def _why_not(self, model, shape):
        return why_not(model, shape)

    def _train(self, library, x, y, plan, batches):
        if self._views:
            raise ValueError("Opacus takes one view of a record: `views=1`.")
        with without_softmax(self._model):
            self._take(_Step(self, library, plan, x, y), plan, batches)


def why_not(model, shape):
    """Why Opacus cannot train a Keras model on records of a shape, in words, or
    `None`."""
    rows = np.random.default_rng(0).random((3, *shape), np.float32)
    alone, among = (
        keras.ops.convert_to_numpy(model(rows[:n], training=False))
        for n in (1, 3)
    )
    if not np.allclose(alone[0], among[0], rtol=1e-3, atol=1e-5):
        return "a model whose outputs for a record depend on other records"
    for part, given in _parts(model, shape):
        if not _is_dropout(part):
            if found := changing_state(part, given) or _unmapped(part, given):
                return found
    return None


def _unmapped(part, shape):
    """PyTorch's error if it cannot map a model over records, or `None`."""
    if keras.backend.backend() != "torch":
        return None
    torch = importlib.import_module("torch")
    module = _as_module(torch, part)
    rows = torch.zeros((2, 1, *shape), device=module.device)
    try:
        torch.func.vmap(module)(rows)
    # A layer may raise anything.
    except Exception as e:
        lines = [line for line in str(e).splitlines() if "vmap" in line]
        return f"it: {(lines or [type(e).__name__])[0][:200]}"
    return None


def _parts(model, shape):
    """The model and its inputs; a sequential model with `Dropout` is cut into
    these layers and the parts between them."""
    row = in_a_row(model)
    layers = row.layers if isinstance(row, keras.Sequential) else []
    if not any(map(_is_dropout, layers)):
        return [(model, shape)]
    parts = []
    for cut, group in itertools.groupby(layers, key=_is_dropout):
        if cut:
            parts += [(layer, shape) for layer in group]
        else:
            made = keras.Sequential([keras.Input(shape), *group])
            parts.append((made, shape))
            shape = made.output_shape[1:]
    return parts


def _is_dropout(layer):
    return type(layer) is keras.layers.Dropout and layer.noise_shape is None


def _as_module(torch, part):
    """A part of the model as a module for Opacus."""
    if _is_dropout(part):
        return torch.nn.Dropout(part.rate)

    convolutions = [
        layer
        for layer in part._flatten_layers()
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Conv3D))
        and layer.data_format == "channels_last"
    ]

    class Whole(torch.nn.Module):
        device = part.variables[0].value.device if part.variables else None

        def __init__(self):
            super().__init__()
            for i, variable in enumerate(part.trainable_variables):
                self.register_parameter(f"weight_{i}", variable.value)

        def forward(self, x):
            # Opacus replaces parameters to compute gradients.
            with _channels_first(convolutions):
                return with_weights(part, self.parameters(), x)[0]

    return Whole()


@contextlib.contextmanager
def _channels_first(convolutions):
    """In the context, layers convolve in a way that PyTorch's `vmap`
    supports."""
    for layer in convolutions:
        layer.__dict__["convolution_op"] = functools.partial(
            convolved,
            keras.ops.conv,
            strides=list(layer.strides),
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
        )
    try:
        yield
    finally:
        for layer in convolutions:
            del layer.__dict__["convolution_op"]


class _Step:
    """One DP-SGD update: clip and sum, add the noise, apply."""

    def __init__(self, trainer, library, plan, x, y):
        torch, config = library.torch, trainer.config
        model = trainer._model
        self._variables = model.trainable_variables
        weights = [v.value for v in self._variables]
        held = 4 * sum(map(torch.numel, weights))
        self._rows = config.physical_batch_size or max(8, int(_BYTES // held))
        self._optimizer = config.keras_optimizer(plan.steps)
        self._loss = loss_of(model, x.shape[1:])
        device, self._torch = weights[0].device, torch
        self._x, self._y = (torch.as_tensor(v, device=device) for v in (x, y))
        parts = [_as_module(torch, p) for p, _ in _parts(model, x.shape[1:])]
        self._module = library.GradSampleModule(torch.nn.Sequential(*parts))
        # Not the global generator, which a caller may have seeded.
        noise = torch.Generator(device)
        noise.manual_seed(_seed(trainer.seed))
        # Keras' optimizer updates; the inner one never does.
        self._clipped = library.DPOptimizer(
            torch.optim.SGD(weights, 1.0),
            noise_multiplier=plan.noise_multiplier,
            max_grad_norm=config.l2_norm_clip,
            expected_batch_size=plan.expected_batch_size,
            generator=noise,
        )

    def __call__(self, batch):
        parts = np.array_split(batch, max(1, -(-len(batch) // self._rows)))
        for left, rows in reversed(list(enumerate(reversed(parts)))):
            self._clipped.zero_grad()
            self._clipped.signal_skip_step(left > 0)
            self._differentiate(rows)
            self._clipped.pre_step()
        gradients = [v.value.grad for v in self._variables]
        self._optimizer.apply(gradients, self._variables)

    def _differentiate(self, rows):
        if not len(rows):
            for v in self._variables:
                v.value.grad_sample = v.value.new_zeros((0, *v.shape))
            return
        rows = self._torch.as_tensor(rows, device=self._x.device)
        with warnings.catch_warnings():
            # The warning that no gradient of the records is needed.
            warnings.simplefilter("ignore", UserWarning)
            self._loss(self._y[rows], self._module(self._x[rows])).backward()

    def weights(self):
        """The weights after the last step."""
        return [keras.ops.convert_to_numpy(v) for v in self._variables]

    def assign(self, weights):
        """Sets the weights."""
        for variable, value in zip(self._variables, weights, strict=True):
            variable.assign(value)


def _seed(seed):
    if seed is None:
        return secrets.randbits(63)
    # Not the stream that draws the batches.
    return int(np.random.SeedSequence(seed).spawn(1)[0].generate_state(1)[0])

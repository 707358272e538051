"""Networks whose gradients are clipped, and the gradients of one record."""

import math

import keras
import numpy as np
from keras import layers as L
from keras import ops
from neighbours import Domain

import keras_fm as fm
from keras_fm.per_example.step_query import LayerCoefficientsQuery

BACKEND = keras.backend.backend()


def residual():
    """Branches that join, with normalisations that have weights and not."""
    x = keras.Input((8, 7, 2))
    y = L.Conv2D(4, 3, padding="same", use_bias=False)(x)
    y = L.GroupNormalization(2)(y)
    z = L.Conv2D(4, 3, padding="same", activation="tanh")(L.ReLU(6.0)(y))
    y = y + 0.5 * L.LayerNormalization(center=False)(z)
    z = L.Conv2D(3, 1, strides=2)(L.ELU()(y))
    y = L.Concatenate()([z, L.AveragePooling2D(2, padding="same")(y)])
    y = L.GroupNormalization(1, scale=False, center=False)(y)
    head = keras.Sequential([L.GlobalMaxPooling2D(), L.Dense(3)])
    return keras.Model(x, head(y))


def tokens(vocabulary=6):
    x = keras.Input((9,))
    h = L.Embedding(vocabulary, 5)(x)
    y = L.Conv1D(4, 3, strides=2, padding="same", activation="gelu")(h)
    y = L.LayerNormalization()(y)
    y = L.Dense(4, activation="sigmoid")(y)
    y = L.Multiply()([L.GlobalAveragePooling1D()(y), L.GlobalMaxPooling1D()(y)])
    return keras.Model(x, L.Dense(3)(y))


def mobile():
    """Depthwise, separable, apart, and trained vectors between them."""
    x = keras.Input((8, 8, 4))
    y = L.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2)(x)
    y = L.PReLU(shared_axes=[1, 2])(y)
    z = L.RMSNormalization()(L.Conv2D(8, 3, padding="same")(y))
    y = L.Add()([y, L.Rescaling(-1.0)(z)])
    y = L.SeparableConv2D(5, 3, padding="same", activation="softplus")(y)
    y = L.LayerNormalization(axis=[-2, -1])(y)
    y = L.Conv2D(3, 2, dilation_rate=2, activation="tanh")(y)
    return keras.Model(x, L.Dense(3)(L.Flatten()(y)))


def waves():
    """Convolutions of sequences and of volumes."""
    x = keras.Input((8, 3))
    y = L.Conv1D(4, 3, padding="causal", dilation_rate=2)(x)
    y = L.SeparableConv1D(5, 3, strides=2, activation="elu")(y)
    y = L.Conv1DTranspose(4, 3, strides=2, activation="tanh")(y)
    y = L.PReLU()(y)
    y = L.DepthwiseConv1D(2, use_bias=False)(y)
    y = L.Reshape((3, 2, 4, 1))(y)
    y = L.Conv3D(3, 2, padding="same", activation="tanh")(y)
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling3D()(y)))


def attention():
    """Of a sequence to itself, and to what it was."""
    x = keras.Input((5, 4))
    y = L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    y = L.LayerNormalization()(x + y)
    z = L.MultiHeadAttention(2, 3, output_shape=6, use_bias=False)(
        y, value=x, key=L.Dense(3)(x)
    )
    y = L.Concatenate()([y, z])
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(y)))


def volumes():
    """What stands between convolutions of volumes."""
    adaptive = []
    if hasattr(L, "AdaptiveAveragePooling2D"):
        adaptive = [
            L.AdaptiveAveragePooling2D((4, 2)),
            L.AdaptiveMaxPooling2D((3, 2)),
        ]
    return [
        L.Conv3D(2, 2, activation="tanh"),
        L.ZeroPadding3D(1),
        L.Cropping3D(((1, 0), (0, 1), (1, 0))),
        L.MaxPooling3D(2, strides=1),
        L.UpSampling3D((1, 1, 2)),
        L.AveragePooling3D((1, 1, 2)),
        L.Reshape((9, 3, 2)),
        *adaptive,
        L.Flatten(),
        L.RepeatVector(2),
        L.Identity(),
        L.GlobalMaxPooling1D(),
        L.Dense(3),
    ]


def masks():
    """Dropout and its kin, whose numbers are new in every step."""
    return [
        L.GaussianNoise(0.2),
        L.Dense(6, activation="tanh"),
        L.Dropout(0.5),
        L.GaussianDropout(0.2),
        L.Dense(4, activation="softplus"),
        L.AlphaDropout(0.4),
        L.Dense(3),
    ]


# Shape of a record, and layers.
NETWORKS = {
    "dense": (
        (7,),
        lambda: [
            L.Dense(4, activation="tanh"),
            L.Dense(5, use_bias=False),
            L.Activation("sigmoid"),
            L.Dense(3),
        ],
    ),
    "strides, same, no bias": (
        (8, 8, 2),
        lambda: [
            L.Conv2D(3, 3, strides=2, padding="same", activation="relu"),
            L.MaxPooling2D(2),
            L.Conv2D(4, 2, use_bias=False),
            L.ReLU(),
            L.Flatten(),
            L.Dense(3),
        ],
    ),
    "pools that overlap": (
        (11, 11, 1),
        lambda: [
            L.Conv2D(3, 3, activation="tanh"),
            L.MaxPooling2D(3, strides=2, padding="same"),
            L.Activation("gelu"),
            L.Conv2D(5, 2),
            L.AveragePooling2D((2, 3), strides=(1, 2)),
            L.AveragePooling2D(2, padding="same", strides=1),
            L.Reshape((-1,)),
            L.UnitNormalization(),
            L.Dense(3),
        ],
    ),
    "residual": ((8, 7, 2), residual),
    "tokens": ((9,), tokens),
    "mobile": ((8, 8, 4), mobile),
    "waves": ((8, 3), waves),
    "attention": ((5, 4), attention),
    "volumes": ((4, 4, 4, 1), volumes),
    "groups": (
        (6, 5, 4),
        lambda: [
            L.Conv2D(6, 3, groups=2, activation="tanh"),
            L.LayerNormalization(rms_scaling=True),
            L.Flatten(),
            L.Dense(3),
        ],
    ),
    "pools around": (
        (9, 8, 1),
        lambda: [
            L.MaxPooling2D((2, 3), strides=(3, 1)),
            L.Conv2D(
                3, 3, padding="same", strides=(1, 2), activation="softplus"
            ),
            L.GlobalAveragePooling2D(),
            L.Dense(6, activation="elu"),
            L.Dense(3),
        ],
    ),
}


# With those whose gradients are another's at every look.
MADE = {**NETWORKS, "masks": ((6,), masks)}


def network(case="dense", **kwargs):
    shape, layers = NETWORKS[case]
    keras.utils.set_random_seed(3)
    model = fm.models.GradientNet(shape, layers(), **kwargs)
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def records(case, n, seed=2):
    shape, _ = MADE[case]
    x = np.random.default_rng(seed).normal(size=(n, *shape))
    if case == "tokens":
        x = np.minimum(np.floor(3 * abs(x)), 5)
    return x.astype("float32")


def array(value):
    return ops.convert_to_numpy(value)


def gradients(model, x, y):
    """Of the loss of every record, by the backend's own differentiation of
    the layers themselves: one vector for each weight."""
    one = _gradient(model)
    y = np.eye(3, dtype="float32")[y]
    return [
        [array(part).ravel() for part in one(x[k : k + 1], y[k : k + 1])]
        for k in range(len(x))
    ]


def _gradient(model):
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    trained = model.trainable_variables
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def found(x, y):
            with tf.GradientTape() as tape:
                value = loss(y, model(x))
            return tape.gradient(value, [w.value for w in trained])

    elif BACKEND == "torch":

        def found(x, y):
            model.zero_grad()
            loss(y, model(x)).backward()
            return [w.value.grad for w in trained]

    else:
        import jax

        rest = [w.value for w in model.non_trainable_variables]

        def value(weights, x, y):
            return loss(y, model.stateless_call(weights, rest, x)[0])

        # Compiled once for all records.
        compiled = jax.jit(jax.grad(value))

        def found(x, y):
            return compiled([w.value for w in trained], x, y)

    return found


def by_layer(model, parts):
    """The vectors of every layer's weights together."""
    parts, found = list(parts), []
    for layer in model.private_layers:
        own = [parts.pop(0) for _ in layer.trainable_variables]
        found.append(np.concatenate(own))
    return found


def sums(model, x, y, **kwargs):
    return joined(model.coefficient_sums(x, y, **kwargs))


def longest(model, *records):
    """Norm of what the records add, at the size where it is largest: each of
    as many views as it has rows."""
    found, step = 0, step_of(model)
    for x in records:
        for size in (1e-30, 1e-3, 1, 1e3, 1e15, 1e30):
            made = step((size * x).astype("float32"), np.zeros(len(x)))
            whole = np.concatenate(joined(made)).astype("float64")
            found = max(found, np.linalg.norm(whole))
    return found


def joined(found):
    """One vector of each layer's parts."""
    return [
        np.concatenate([array(part).ravel() for part in parts])
        for parts in found
    ]


def compiled(step):
    """As a step of `fit` is, since a search takes hundreds."""
    if keras.backend.backend() == "torch":
        return step
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(step)
    import tensorflow as tf

    return tf.function(step)


def step_of(model):
    """What a step sums of its inputs and labels, compiled."""
    # Chosen outside of what is compiled, as before a fit.
    model._records()
    return compiled(
        lambda x, y: model._sums_of(x, y, sample_weight=None, clipped=True)
    )


class OneStep:
    """What one step sums, in units of its thresholds, as a query."""

    def __init__(self, model):
        self.model = model
        thresholds = tuple(t for _, _, t in model.partitions)
        self.units = np.broadcast_to(thresholds, len(model.private_layers))
        self.query = LayerCoefficientsQuery(
            thresholds=thresholds, joint=model.clips_jointly
        )
        self.known = {}
        self.sums = step_of(model)

    def sensitivity(self, norm, *, neighbours):
        if norm == "l1":
            return math.inf
        return self.query.sensitivity(norm, neighbours=neighbours)

    def zero(self):
        return None

    def accumulate(self, statistics, x, y):
        x = np.reshape(x, (-1, *self.model.input_shape[1:]))
        y = np.repeat(y, self.model.views)
        key = x.tobytes(), int(y[0])
        if key not in self.known:
            # A pair is asked for by norms.
            self.known = dict([*self.known.items()][-1:])
            self.known[key] = joined(self.sums(x, y))
        return self.known[key]

    def pack(self, parts, norm):
        scaled = [part / t for part, t in zip(parts, self.units)]
        return np.concatenate(scaled).astype("float64")


def searched(model):
    width = model.views * math.prod(model.input_shape[1:])

    def arguments(numbers):
        *x, size, label = numbers
        x = np.reshape(x, (1, model.views, *model.input_shape[1:]))
        # Of all lengths and classes.
        x = x * np.exp(np.clip(4 * size, -20, 20))
        label = int(np.clip((label + 1) / 2, 0, 0.99) * model.output_shape[1])
        return x.astype("float32"), np.array([label])

    return Domain(OneStep(model), width + 2, lambda numbers: numbers, arguments)


def opposite(model):
    """Two records of the same inputs and opposite gradients, where logits are
    zero: the pair of docs/proofs/gradient.md."""
    width = model.views * math.prod(model.input_shape[1:])
    numbers = np.ones(width + 2)
    return numbers, np.append(numbers[:-1], -1)


def private(epsilon=8.0, **kwargs):
    return fm.callbacks.PrivateModel(fm.PrivacyBudget(epsilon, 1e-5), **kwargs)

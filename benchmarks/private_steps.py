"""Steps of `make_private` and of other libraries, each beside plain ones."""

import itertools

import networks

# What all steps are part of: the search for their noise is measured, too (not
# tensorflow-privacy's).
RATE, EPOCHS = 1 / 8, 10  # of Poisson samples
EPSILON, DELTA = 8.0, 1e-6


def records(model, n):
    import numpy as np

    shape = tuple(model.input_shape[1:])
    rng = np.random.default_rng(0)
    if len(shape) == 1 and shape[0] == networks.LENGTH:
        x = rng.integers(0, networks.TOKENS, (n, *shape)).astype("int32")
    else:
        x = rng.random((n, *shape), np.float32)
    return x, (np.arange(n) % 10).astype("int32")


def keras_steps(method, name, build, batch):
    """A plain step, and what makes a private one and says its way."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    plain, network = build(), build()
    x, y = records(plain, round(batch / RATE))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(keras.optimizers.SGD(0.1), loss)
    # As `fit` does: rows in a shuffled order.
    shuffled = np.random.default_rng(2).permutation(len(x))
    batches = itertools.cycle(np.split(shuffled, round(1 / RATE)))

    def plain_step():
        rows = next(batches)
        plain.train_on_batch(x[rows], y[rows])

    return (
        plain_step,
        lambda: STEPS[method](network, loss, x, y, batch),
    )


def opacus_steps(method, name, build, batch):
    """The same of Opacus."""
    del build
    import opacus_steps as opacus

    return opacus.steps(method, name, batch)


def tensorflow_privacy_steps(method, name, build, batch):
    """The same of tensorflow-privacy."""
    del build
    import tensorflow_privacy_steps as privacy

    return privacy.steps(method, name, batch, records)


def private_steps(network, loss, x, y, batch):
    """Steps of `make_private`: the train function on samples of its fit."""
    import keras

    import keras_fm as fm

    private = fm.make_private(network)
    private.compile(keras.optimizers.SGD(0.1), loss)
    taken = {}

    class Stop(Exception):
        pass

    class Catch(keras.callbacks.Callback):
        """Takes the place of the loop that `fit` would run."""

        def on_epoch_begin(self, epoch, logs=None):
            taken["fit"] = self.model._fit
            raise Stop

    try:
        private.fit(
            x,
            y,
            batch_size=batch,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[
                fm.callbacks.PrivateModel(epsilon=EPSILON, delta=DELTA),
                Catch(),
            ],
        )
    except Stop:
        pass
    fit = private._fit = taken["fit"]

    def step():
        keras.Model.train_on_batch(private, *fit.samples[0])

    return step, f"{fit.map.way}, {len(fit.map.ghosts)} ghost layers"


def jax_privacy_steps(network, loss, x, y, batch):
    """jax-privacy's clipped gradients of the same network, its noise, SGD;
    samples padded as its own batch selection pads them: not at all here."""
    import jax
    import jax_privacy
    import numpy as np
    from jax_privacy import accounting

    def of_one(trainable, fixed, x, y):
        logits, _ = network.stateless_call(trainable, fixed, x, training=True)
        return loss(y, logits)

    clipped = jax_privacy.clipped_grad(
        of_one,
        argnums=0,
        batch_argnums=(2, 3),
        l2_clip_norm=1.0,
        keep_batch_dim=True,
    )

    sigma = accounting.calibrate_noise_multiplier(
        target_epsilon=EPSILON,
        target_delta=DELTA,
        accountant=accounting.DpsgdTrainingAccountant(
            accounting.PldAccountantConfig()
        ),
        batch_sizes=batch,
        num_updates=round(EPOCHS / RATE),
        num_samples=len(x),
    )

    @jax.jit
    def update(trainable, fixed, x, y, key):
        sums = clipped(trainable, fixed, x, y)
        keys = jax.random.split(key, len(trainable))
        return [
            w - 0.1 * (g + sigma * jax.random.normal(k, g.shape)) / batch
            for w, g, k in zip(trainable, sums, keys)
        ]

    state = [v.value for v in network.trainable_variables]
    fixed = [v.value for v in network.non_trainable_variables]
    rng = np.random.default_rng(1)

    def step():
        nonlocal state
        rows = rng.choice(len(x), batch, replace=False)
        key = jax.random.key(int(rng.integers(2**31)))
        state = update(state, fixed, x[rows], y[rows], key)
        jax.block_until_ready(state)

    return step, "clipped_grad"


STEPS = {"keras_fm": private_steps, "jax-privacy": jax_privacy_steps}
OTHERS = {
    "Opacus": opacus_steps,
    "tensorflow-privacy": tensorflow_privacy_steps,
}
PACKAGES = {
    "keras_fm": "keras_fm",
    "jax-privacy": "jax_privacy",
    "tensorflow-privacy": "tensorflow_privacy",
    "tensorflow-privacy; ghost clipping": "tensorflow_privacy",
    "Opacus": "opacus",
    "Opacus; ghost clipping": "opacus",
}
OF_BACKEND = {
    "tensorflow": [
        "keras_fm",
        "tensorflow-privacy",
        "tensorflow-privacy; ghost clipping",
    ],
    "jax": ["keras_fm", "jax-privacy"],
    "torch": ["keras_fm", "Opacus", "Opacus; ghost clipping"],
}


def maker(method):
    """The function that makes the steps of a method."""
    return OTHERS.get(method.partition(";")[0], keras_steps)

"""Steps of tensorflow-privacy on the networks of `record_alone.py`, built of
the layers of tf-keras, which it needs."""

import itertools
import os
import sys

# Both are read where TensorFlow and tensorflow-privacy are first used.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
sys.skip_tf_privacy_import = True

import networks  # noqa: E402
import numpy as np  # noqa: E402
import tf_keras  # noqa: E402
from tensorflow_privacy.privacy.fast_gradient_clipping import (  # noqa: E402
    layer_registry,
)
from tensorflow_privacy.privacy.keras_models.dp_keras_model import (  # noqa: E402
    make_dp_model_class,
)

for _name in ("Input", "Model", "Sequential", "layers"):
    setattr(networks, _name, getattr(tf_keras, _name))


def _compiled(model, reduction):
    loss = tf_keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction
    )
    model.compile(tf_keras.optimizers.legacy.SGD(0.1), loss)
    return model


def steps(method, name, batch, records):
    """A plain step, and what makes a private one and says its way; samples
    are of a fixed size, since other sizes are compiled anew.

    Args:
        records: a function of a model and a number, to x and y.
    """
    build = getattr(networks, name)
    plain = _compiled(build(), "sum_over_batch_size")
    x, y = records(plain, 8 * batch)
    rng = np.random.default_rng(1)
    batches = itertools.cycle(np.split(rng.permutation(len(x)), 8))

    def plain_step():
        rows = next(batches)
        plain.train_on_batch(x[rows], y[rows])

    def begun():
        # Ghost clipping takes a loss that is a mean, the other form none.
        known, reduction = None, "none"
        if "ghost" in method:
            known = layer_registry.make_default_layer_registry()
            reduction = "sum_over_batch_size"
        network = build()
        private = make_dp_model_class(tf_keras.Model)(
            l2_norm_clip=1.0,
            noise_multiplier=1.0,
            layer_registry=known,
            inputs=network.inputs,
            outputs=network.outputs,
        )
        _compiled(private, reduction)

        def step():
            rows = rng.choice(len(x), batch, replace=False)
            private.train_on_batch(x[rows], y[rows])

        return step, method

    return plain_step, begun

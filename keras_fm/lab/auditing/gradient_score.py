"""A white-box score: the gradient of a trained model's loss at a record.

If a model was trained on a record with one of two labels, the gradient of the
loss is near zero for that label and large for the other.

Keras has no operation for gradients, so this module calls the backends. The
other audit modules use arrays only and import it if needed.
"""

import numpy as np

_BATCH = 256
# Tolerance between outputs of a record alone and among others.
_TOLERANCE = 1e-3


def gradient_losses(model, x, labels):
    """Squared gradient norms of canaries under each of their labels.

    The gradient is that of the cross-entropy at the model's logits by its
    trainable weights, as at inference (no dropout). Records are evaluated one
    by one. If a model's outputs depend on the rest of the batch, all are
    evaluated in one batch, which takes longer.

    Args:
        model: a built Keras model with outputs `(m, classes)`, logits, or
            `(m, 1)`, the logit of class 1 of two. Its weights are needed: a
            function from records to logits is not enough.
        x: `(m, ...)` records.
        labels: `(m, forms)` classes, as `PlantedCanaries.canary_y`.

    Returns:
        `(m, forms)` floats, smaller for a label that fits better; NaN if the
        gradient is not finite.

    Raises:
        ValueError: if `model` is not a Keras model, has no trainable weights,
            or its outputs have no gradient by them (as in a released layer).

    Example:

    ```python
    from keras_fm.auditing.canaries import swap_scores

    losses = gradient_losses(model, planted.canary_x[:, 0], planted.canary_y)
    scores = swap_scores(losses)
    ```

    Source: Nasr, Shokri and Houmansadr, "Comprehensive privacy analysis of
    deep learning", IEEE S&P 2019, section III (white-box attacks).
    """
    import keras

    if not isinstance(model, keras.Model):
        raise ValueError(
            '`score="gradient"` uses the weights: `fit` and `control` must '
            "return a Keras model, not a function of predictions. Received: "
            f'{type(model).__name__}. Use `score` "loss" or "margin".'
        )
    if not model.trainable_weights:
        raise ValueError(
            '`score="gradient"` needs trainable weights, and the model has '
            'none. Use `score` "loss" or "margin".'
        )
    x = np.asarray(x)
    labels = np.asarray(labels)
    alone = _is_independent(model, x)
    # After `predict`, which may replace the weights' arrays.
    norm = _NORMS[keras.backend.backend()](model)
    losses = np.empty(labels.shape)
    for form in range(labels.shape[1]):
        own = labels[:, form].astype("int32")
        for row in range(len(x)):
            part, place = slice(None), row
            if alone:
                part, place = slice(row, row + 1), 0
            chosen = np.zeros(len(own[part]), "float32")
            chosen[place] = 1.0
            losses[row, form] = norm(x[part], own[part], chosen)
    if not losses.any():
        raise ValueError(
            "No trainable weight has a gradient: a released layer cuts it off, "
            'so no record moves it. Use `score` "loss" or "margin".'
        )
    return np.where(np.isfinite(losses), losses, np.nan)


def _is_independent(model, x):
    """Whether a record's outputs are the same alone and among others."""
    together = model.predict(x[:_BATCH], batch_size=_BATCH, verbose=0)
    alone = model.predict(x[:4], batch_size=1, verbose=0)
    return np.allclose(together[:4], alone, rtol=_TOLERANCE, atol=_TOLERANCE)


def _chosen_loss(logits, labels, chosen):
    """Cross-entropies, weighted by `chosen`, summed."""
    from keras import ops

    if logits.shape[-1] == 1:
        logits = ops.concatenate([ops.zeros_like(logits), logits], axis=-1)
    losses = ops.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    return ops.sum(losses * ops.cast(chosen, losses.dtype))


# Backends ----------------------------------------------------------------


def _norm_with_tensorflow(model):
    import tensorflow as tf

    weights = [weight.value for weight in model.trainable_weights]

    @tf.function(reduce_retracing=True)
    def norm(x, labels, chosen):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss = _chosen_loss(model(x, training=False), labels, chosen)
        total = tf.zeros((), loss.dtype)
        for slope in tape.gradient(loss, weights):
            if slope is not None:
                total += tf.reduce_sum(tf.square(tf.convert_to_tensor(slope)))
        return total

    return lambda *given: float(norm(*map(tf.convert_to_tensor, given)))


def _norm_with_jax(model):
    import jax
    from jax import numpy as jnp

    held = [
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
        )
    ]

    @jax.jit
    def norm(weights, others, x, labels, chosen):
        def loss(weights):
            logits, _ = model.stateless_call(weights, others, x, training=False)
            return _chosen_loss(logits, labels, chosen)

        slopes = jax.grad(loss)(weights)
        return sum(jnp.sum(jnp.square(slope)) for slope in slopes)

    return lambda *given: float(norm(*held, *given))


def _norm_with_torch(model):
    import torch
    from keras import ops

    weights = [weight.value for weight in model.trainable_weights]

    def norm(x, labels, chosen):
        x, labels, chosen = map(ops.convert_to_tensor, (x, labels, chosen))
        with torch.enable_grad():
            loss = _chosen_loss(model(x, training=False), labels, chosen)
            if not loss.requires_grad:
                return 0.0
            slopes = torch.autograd.grad(loss, weights, allow_unused=True)
        return sum(float(s.square().sum()) for s in slopes if s is not None)

    return norm


_NORMS = {
    "tensorflow": _norm_with_tensorflow,
    "jax": _norm_with_jax,
    "torch": _norm_with_torch,
}

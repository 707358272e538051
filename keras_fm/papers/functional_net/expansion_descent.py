"""How a `FunctionalNet` learns from the releases of its rounds."""

import numpy as np

from keras_fm.core.released import check_paid


class ExpansionDescent:
    """Steps to the minima of released quadratics, one for each round.

    Post-processing of the releases alone, so every process that has them
    comes to the same weights. A fit with `PrivateModel` does this by itself;
    by hand it is for records in several processes
    (`keras_fm.gathered_rounds`).

    Args:
        model: a `FunctionalNet`, at the public weights it begins with.
        ridge_factor: ridge in units of the noise's spectral edge.
        printed: whether steps are those of the paper, to the minimum of the
            released quadratic as it is: the published form.

    Example:

    ```python
    descent = ExpansionDescent(model)
    for _ in range(model.rounds):
        descent.learn(reads(model.augmented_weights()))
    descent.finish(ledger)
    ```
    """

    def __init__(self, model, ridge_factor=0.5, printed=False):
        self._model, self._ridge_factor = model, ridge_factor
        self._printed = printed
        self._momentum = None
        self._releases = []

    def learn(self, release, move=True):
        """One round.

        Args:
            release: a `NetworkExpansionRelease` at the model's weights.
            move: whether the model is moved.
        """
        model = self._model
        weights = model.augmented_weights()
        if self._momentum is None:
            self._momentum = [np.zeros_like(w) for w in weights]
        if self._printed:
            quadratic, momentum, size = release.printed(), 0.0, 1.0
        else:
            quadratic = release.quadratic(self._ridge_factor, model.damping)
            momentum, size = model.momentum, model.step_size
        self._momentum = [
            momentum * before - size * g / h
            for before, (g, h) in zip(self._momentum, quadratic)
        ]
        self._curvatures = [h for _, h in quadratic]
        self._minimiser = [w + v for w, v in zip(weights, self._momentum)]
        self._releases.append(release)
        if move:
            model.set_augmented_weights(self._minimiser)

    def install(self, ledger_json):
        """Puts the last round's quadratic in the place of the records."""
        self._model.set_release(
            self._curvatures, self._minimiser, ledger_json, self._printed
        )

    def finish(self, ledger):
        """Ends the rounds of a model whose records are elsewhere: from now
        on `fit` trains on the last quadratic and reads nothing.

        Args:
            ledger: the `Ledger` that was charged for all of them.

        Raises:
            ValueError: if rounds are missing, or the ledger does not hold
                them.
        """
        model, rounds = self._model, len(self._releases)
        if rounds != model.rounds:
            raise ValueError(
                f"'{model.name}' has {model.rounds} rounds. Received: "
                f"{rounds} releases"
            )
        check_paid(ledger, self._releases)
        self.install(ledger.to_json())

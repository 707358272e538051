"""Training of a `FunctionalNet` on the releases of its rounds."""

import numpy as np

from keras_fm.core.released import check_paid


class ExpansionDescent:
    """Steps to the minima of released quadratics, one for each round.

    It only post-processes releases, so every process that has them computes
    the same weights. A fit with `PrivateModel` does this by itself. Use this
    class if the records are in several processes
    (`keras_fm.gathered_rounds`).

    Args:
        model: a `FunctionalNet`, at the public weights it begins with.
        ridge_factor: ridge in units of the noise's spectral edge.
        printed: `True` for the published form, whose steps go to the minimum
            of the unchanged released quadratic.

    Example:

    ```python
    descent = ExpansionDescent(model)
    for _ in range(model.rounds):
        descent.learn(one_round(model.augmented_weights()))
    descent.finish(ledger)
    ```
    """

    def __init__(self, model, ridge_factor=0.5, printed=False):
        self._model, self._ridge_factor = model, ridge_factor
        self._printed = printed
        self._momentum = None
        self._releases = []

    def learn(self, release, move=True):
        """Takes the step of one round.

        Args:
            release: a `NetworkExpansionRelease` at the model's weights.
            move: whether the model's weights are set to the result.
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
        """Makes the model train on the last round's quadratic."""
        self._model.set_release(
            self._curvatures, self._minimiser, ledger_json, self._printed
        )

    def finish(self, ledger):
        """Ends the rounds of a model whose records are elsewhere. From then
        on `fit` trains on the last quadratic and uses no records.

        Args:
            ledger: the `Ledger` that was charged for all rounds.

        Raises:
            ValueError: if rounds are missing in the model or in the ledger.
        """
        model, rounds = self._model, len(self._releases)
        if rounds != model.rounds:
            raise ValueError(
                f"'{model.name}' has {model.rounds} rounds. Received: "
                f"{rounds} releases"
            )
        check_paid(ledger, self._releases)
        self.install(ledger.to_json())

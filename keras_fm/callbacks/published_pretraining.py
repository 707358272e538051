"""dPA's perturbation of one auto-encoder: claimed, never proven."""

import numpy as np

from keras_fm import claims
from keras_fm.ledger import LedgerEntry


class PublishedPretraining:
    """Fixes the noise of the topmost encoder of an auto-encoder.

    Laplace(Delta / epsilon) / n with Delta = d (b + b^2 / 4) (dPA Lemma 2)
    on lambda^(1), d x b, and lambda^(2), b x b for each visible unit; or, as
    in the authors' code, on one vector of b codes.

    Args:
        model: a `keras_fm.models.Autoencoder`.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        shares: `None` (equal), or one share for each part of the model that
            the auto-encoder belongs to.
        lot_size: what the noise is divided by.

    Raises:
        ValueError: if the encoder cannot be perturbed in this way.
    """

    adaptive = None

    def __init__(self, model, *, ledger, noise, shares, lot_size):
        self.model, self.ledger, self.noise = model, ledger, noise
        self.lot_size = lot_size
        self.perturbed = model.encoders[-1]
        if not (self.perturbed.trainable and self.perturbed.tied):
            raise ValueError(
                "A published auto-encoder is trained on the records, with "
                "tied weights: build it with "
                '`DeepPrivateAutoencoder(guarantee="published")`, or '
                "`PrivateEncoder(..., trainable=True, tied=True)`."
            )
        parts = sum(model.part_of)
        shares = [1 / parts] * parts if shares is None else shares
        if len(shares) != parts:
            raise ValueError(
                f"`shares` must hold one share for each of the {parts} "
                f"perturbed parts. Received: shares={shares}"
            )
        share = shares[len(model.encoders) - 1]
        self.epsilon = share * ledger.budget.epsilon

    @property
    def in_training(self):
        """Layers whose perturbed objective takes part in training."""
        return [self.perturbed]

    def entries(self):
        return [
            pretraining_entry(
                self.perturbed,
                self.epsilon,
                ledger=self.ledger,
                noise=self.noise,
                lot_size=self.lot_size,
            )
        ]

    def carry_out(self, pretrained, data):
        """Charges the ledger and fixes the noise."""
        entries = self.entries()
        self.ledger.charge(entries)
        layer = self.perturbed
        scale = entries[0].mechanism["laplace_scale"] / self.lot_size
        draw = self.noise.generator().laplace
        units, visible = layer.units, layer.visible_dim
        if layer.noise_on == "hidden":
            layer.fix_noise(hidden_noise=draw(0.0, scale, (units,)))
            return
        layer.fix_noise(
            linear_noise=draw(0.0, scale, (units, visible)),
            quadratic_noise=np.asarray(
                draw(0.0, scale, (visible, units, units)), np.float32
            ),
        )


def pretraining_entry(layer, epsilon, *, ledger, noise, lot_size):
    """The claimed `LedgerEntry` of one published auto-encoder."""
    sensitivity = claims.reconstruction_sensitivity(
        layer.visible_dim, layer.units, neighbours=ledger.neighbours
    )
    where = {
        "coefficients": "the coefficients of the reconstruction",
        "hidden": "the codes (as the authors' code)",
    }[layer.noise_on]
    return LedgerEntry(
        name=layer.name,
        guarantee="claimed",
        neighbours=str(ledger.neighbours),
        mechanism={
            "claimed_epsilon": epsilon,
            "laplace_scale": sensitivity / epsilon,
            "lot_size": lot_size,
        },
        reads=f"every record at every step; fixed noise on {where}",
        proof=claims.RECONSTRUCTION_REASON,
        private=not noise.reproducible,
    )

"""The papers' perturbation of one pre-trained layer: claimed, never proven."""

from keras_fm.callbacks import model_check
from keras_fm.layers.dp_pca import DPPCA
from keras_fm.ledger_entry import LedgerEntry


class PublishedPretraining:
    """Fixes the noise of the topmost layer of a view that pre-trains.

    Laplace(Delta / epsilon) / lot on what the layer's `noise_shapes` name:
    dPA's lambda^(1) and lambda^(2) of a `PrivateEncoder`, or pCDBN's
    coefficients of a `ChebyshevCRBM`, with the paper's Delta of each.

    Args:
        model: a `keras_fm.models.Autoencoder` or `EnergyModel`.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        shares: `None` (equal), or one share for each part of the model that
            the view belongs to.
        lot_size: what the noise is divided by.

    Raises:
        ValueError: if the layer cannot be perturbed in this way.
    """

    adaptive = None

    def __init__(self, model, *, ledger, noise, shares, lot_size):
        self.model, self.ledger, self.noise = model, ledger, noise
        self.lot_size = lot_size
        self.perturbed = model.stack[-1]
        check_published(self.perturbed)
        whole = model.part_of or model.encoding_model
        parts = [layer for layer, _ in model_check.pretrained_layers(whole)]
        head, _ = model_check.output_layer(whole, needed=False)
        count = len(parts) + (head is not None)
        shares = [1 / count] * count if shares is None else shares
        if len(shares) != count:
            raise ValueError(
                f"`shares` must hold one share for each of the {count} "
                f"perturbed parts. Received: shares={shares}"
            )
        share = shares[parts.index(self.perturbed)]
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
        layer.fix_noise(
            **{
                name: layer.noise_of(scale, shape, draw)
                for name, shape in layer.noise_shapes.items()
            }
        )


def check_published(layer):
    """Refuses a layer of the proven form."""
    if isinstance(layer, DPPCA):
        raise ValueError(
            f"DPPCA '{layer.name}' learns from a proven release only. Leave "
            'it out, or use guarantee="proven".'
        )
    if layer.is_released or not layer.is_published:
        raise ValueError(
            f"{type(layer).__name__} '{layer.name}' is of the proven form, or "
            "was pre-trained without PrivateModel. A published one is trained "
            "on the records under noise: build a new model with "
            'guarantee="published", or the layer with `trainable=True` (and, '
            "for a PrivateEncoder, `tied=True`), and pre-train it with the "
            "callback."
        )


def pretraining_entry(layer, epsilon, *, ledger, noise, lot_size):
    """The claimed `LedgerEntry` of one pre-trained layer."""
    sensitivity = layer.claimed_sensitivity(ledger.neighbours)
    return LedgerEntry(
        name=layer.name,
        guarantee="claimed",
        neighbours=str(ledger.neighbours),
        mechanism={
            "claimed_epsilon": epsilon,
            "laplace_scale": sensitivity / epsilon,
            "lot_size": lot_size,
        },
        reads=layer.claim_reads,
        proof=layer.claim_reason,
        private=not noise.reproducible,
    )

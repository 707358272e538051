"""The papers' perturbations of a fit: claimed, never proven."""

import math

import keras
import numpy as np

from keras_fm import claims, records
from keras_fm import relevance as relevance_lib
from keras_fm.callbacks import model_check
from keras_fm.callbacks.published_pretraining import (
    check_published,
    pretraining_entry,
)
from keras_fm.layers.perturbed_input import PerturbedInputLayer
from keras_fm.ledger_entry import LedgerEntry

ORDERS = ("linear", "quadratic")
RELEVANCE_FORMS = ("paper", "code")
# eps1, eps2, eps3 of the authors' code: 0.075, 0.075, 0.15 of 0.3.
ADAPTIVE_SHARES = (0.25, 0.25, 0.5)


class PublishedPlan:
    """AdLM's Algorithm 1, ILM, or dPA's head, by what the model holds.

    * A `PerturbedAffine` or `PerturbedConv2D` with `adaptive=True`: the
      relevance of a pre-trained network with Laplace noise (eps1), noise on
      every input by its relevance and on the bias (eps2), noise on the
      coefficients of the loss (eps3).
    * The same layers with `adaptive=False`: identical noise (ILM), no eps1.
    * Neither: noise on the coefficients only (dPA Lemma 3), after the
      pre-training of the layers below, if any (`PublishedPretraining`).

    Args:
        model: a built model.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        shares: `None`, or one share for each perturbation.
        batch_size: the lot size |L|.
        orders: which coefficients of the loss are perturbed.
        relevance_form, relevance_floor: see `PrivateModel`.

    Raises:
        ValueError: if the model cannot be perturbed in this way.
    """

    def __init__(
        self,
        model,
        *,
        ledger,
        noise,
        shares,
        batch_size,
        orders,
        relevance_form,
        relevance_floor,
    ):
        self.model, self.ledger, self.noise = model, ledger, noise
        self.batch_size, self.orders = batch_size, tuple(orders)
        self.relevance_form = relevance_form
        self.relevance_floor = relevance_floor
        self.head, _ = model_check.output_layer(model)
        if self.head.rounds is not None:
            raise ValueError(
                f"`rounds` of layer '{self.head.name}' belong to "
                'guarantee="proven".'
            )
        self.layers = [
            layer
            for layer in model._flatten_layers(include_self=False)
            if isinstance(layer, PerturbedInputLayer)
        ]
        adaptive = [layer for layer in self.layers if layer.adaptive]
        if len(adaptive) > 1:
            raise ValueError(
                "Only one layer of a model can have `adaptive=True`. "
                f"Received: {[layer.name for layer in adaptive]}"
            )
        self.adaptive = adaptive[0] if adaptive else None
        if self.adaptive and self.adaptive not in model.layers:
            raise ValueError(
                f"Layer '{self.adaptive.name}' has `adaptive=True` and must "
                "be in the model itself, not inside a nested one."
            )
        # These are perturbed while they are pre-trained, before this fit.
        self.pretrained = [
            layer for layer, _ in model_check.pretrained_layers(model)
        ]
        for layer in self.pretrained:
            check_published(layer)
        names = [layer.name for layer in self.pretrained]
        names += [f"{self.adaptive.name} (relevance)"] if self.adaptive else []
        names += [layer.name for layer in self.layers] + [self.head.name]
        if shares is None:
            shares = ADAPTIVE_SHARES
            if not self.adaptive or len(names) != 3:
                shares = [1 / len(names)] * len(names)
        if len(shares) != len(names):
            raise ValueError(
                "`shares` must hold one share for each of the perturbations "
                f"{names}. Received: shares={shares}"
            )
        self.epsilons = dict(
            zip(names, (s * ledger.budget.epsilon for s in shares))
        )
        self.names = names

    @property
    def perturbed(self):
        """The layer that tells whether the noise was fixed."""
        return self.head

    @property
    def in_training(self):
        """Layers whose perturbed objective takes part in training."""
        return [self.head]

    # The ledger ----------------------------------------------------------

    def entries(self):
        """The ledger entries of the plan, all claimed."""
        return [
            *(
                pretraining_entry(
                    layer,
                    self.epsilons[layer.name],
                    ledger=self.ledger,
                    noise=self.noise,
                    lot_size=self.batch_size,
                )
                for layer in self.pretrained
                if not layer.is_perturbed
            ),
            *self._own_entries(),
        ]

    def _own_entries(self, count=None):
        """What this fit itself is charged for.

        Args:
            count: number of records, for the scale of the relevance noise.
        """
        made = []
        if self.adaptive:
            made.append(
                self._entry(
                    f"{self.adaptive.name} (relevance)",
                    self._relevance_scale(count) if count else None,
                    "every record's relevance in a network pre-trained on "
                    "the records, averaged, once",
                    claims.RELEVANCE_REASON,
                    per_lot=False,
                )
            )
        for layer in self.layers:
            drawn_again = layer.noise == "per_step"
            how = "drawn again at every step" if drawn_again else "fixed"
            made.append(
                self._entry(
                    layer.name,
                    self._layer_scale(layer),
                    "every record at every step, shifted by one noise vector "
                    f"({how})",
                    claims.AFFINE_REASON,
                )
            )
        made.append(
            self._entry(
                self.head.name,
                self._loss_scale(),
                "every record at every step; fixed noise on the "
                f"{' and '.join(self.orders)} coefficients of the loss",
                claims.CROSS_ENTROPY_REASON,
            )
        )
        return made

    def _entry(self, name, scale, reads, proof, per_lot=True):
        mechanism = {"claimed_epsilon": self.epsilons[name]}
        if scale is not None:
            mechanism["laplace_scale"] = scale
        if per_lot:
            mechanism["lot_size"] = self.batch_size
        return LedgerEntry(
            name=name,
            guarantee="claimed",
            neighbours=str(self.ledger.neighbours),
            mechanism=mechanism,
            reads=reads,
            proof=proof,
            private=not self.noise.reproducible,
        )

    # The papers' scales --------------------------------------------------

    def _relevance_scale(self, count):
        sensitivity = claims.relevance_sensitivity(
            math.prod(self.adaptive.record_shape),
            count,
            neighbours=self.ledger.neighbours,
        )
        return sensitivity / self.epsilons[f"{self.adaptive.name} (relevance)"]

    def _layer_scale(self, layer):
        """Delta_h0 / eps2, before the division by the lot size."""
        sensitivity = layer.claimed_sensitivity(self.ledger.neighbours)
        return sensitivity / self.epsilons[layer.name]

    def _loss_scale(self):
        sensitivity = claims.cross_entropy_sensitivity(
            self.head.num_features,
            self.head.units,
            neighbours=self.ledger.neighbours,
        )
        return sensitivity / self.epsilons[self.head.name]

    def input_scales(self, relevance):
        """Laplace scales of the inputs of each perturbed layer, divided by
        the lot size: `Delta_h0 / eps_j / |L|` by relevance, or all equal.

        Returns:
            dict from layer name to an array of one record's shape.
        """
        scales = {}
        for layer in self.layers:
            shape = tuple(layer.record_shape)
            epsilons = np.full(shape, self.epsilons[layer.name])
            if layer is self.adaptive:
                epsilons = claims.adaptive_epsilons(
                    relevance,
                    self.epsilons[layer.name],
                    floor=self.relevance_floor,
                ).reshape(shape)
            sensitivity = layer.claimed_sensitivity(self.ledger.neighbours)
            scales[layer.name] = sensitivity / epsilons / self.batch_size
        return scales

    # Carrying out --------------------------------------------------------

    def check_pretrained(self, pretrained):
        """Refuses a network whose inputs are not the model's."""
        if not isinstance(pretrained, keras.Model) or not pretrained.built:
            raise ValueError(
                "`pretrained` must be a built and trained Keras model. "
                f"Received: {type(pretrained).__name__}"
            )
        given, own = pretrained.input_shape[1:], self.model.input_shape[1:]
        if given != own:
            raise ValueError(
                "`pretrained` must have the model's inputs. Received: "
                f"{given}, expected {own}"
            )

    def average_relevance(self, pretrained, data):
        """The exact normalised average relevance, and n.

        `"paper"`: every record min-max normalised, then averaged (Eq. 7).
        `"code"`: averaged, then min-max normalised, fourth power.

        Returns:
            tuple `(average, count)`; the average is `(d,)`, private.
        """
        name = self.adaptive.name
        known = [layer.name for layer in pretrained.layers]
        layer = name if name in known else None
        total, count = 0.0, 0
        for x, _ in records.batches(data):
            found = relevance_lib.layer_wise(pretrained, x, layer=layer)
            rows = found.reshape(len(x), -1).astype(np.float64)
            if self.relevance_form == "paper":
                rows = claims.normalised_relevance(rows)
            total, count = total + rows.sum(axis=0), count + len(x)
        if not count:
            raise ValueError("`data` holds no record.")
        expected = math.prod(self.adaptive.record_shape)
        if np.shape(total) != (expected,):
            raise ValueError(
                f"The relevance at the input of `pretrained` has "
                f"{np.size(total)} entries, but layer '{name}' has {expected} "
                "input features. Pre-train a clone of the model "
                "(`keras.models.clone_model(model)`), and flatten records of "
                "several axes before an adaptive PerturbedAffine."
            )
        if self.relevance_form == "code":
            total = claims.normalised_relevance(total[None])[0] ** 4
            return total, count
        return total / count, count

    def carry_out(self, pretrained, data):
        """Charges the ledger and fixes all noise.

        Returns:
            the noisy average relevance `(d,)`, or `None`.
        """
        relevance, count = None, None
        if self.adaptive:
            # A refused budget reads nothing.
            self.ledger.check(self._own_entries())
            relevance, count = self.average_relevance(pretrained, data)
        self.ledger.charge(self._own_entries(count))
        if self.adaptive:
            relevance = relevance + self._laplace(
                self._relevance_scale(count), relevance.shape
            )
        scales = self.input_scales(relevance)
        for layer in self.layers:
            bias = self._layer_scale(layer) / self.batch_size
            layer.fix_noise(
                *(
                    self._laplace(scale, shape)
                    if layer.noise == "once"
                    else np.broadcast_to(scale, shape).copy()
                    for scale, shape in (
                        (scales[layer.name], tuple(layer.record_shape)),
                        (bias, (layer.bias_units,)),
                    )
                )
            )
        scale = self._loss_scale() / self.batch_size
        m, outputs = self.head.num_features, self.head.units
        linear = np.zeros((m, outputs))
        quadratic = np.zeros((outputs, m, m))
        if "linear" in self.orders:
            linear = self._laplace(scale, linear.shape)
        if "quadratic" in self.orders:
            quadratic = self._laplace(scale, quadratic.shape)
        self.head.fix_noise(linear, quadratic)
        return relevance

    def _laplace(self, scale, shape):
        return self.noise.generator().laplace(0.0, scale, shape)

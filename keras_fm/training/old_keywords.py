"""Keywords of `PrivateModel` in version 0.1.0, as what they are now.

They work with a warning until 0.3.0.
"""

import sys
import warnings

from keras_fm.kernel import checks
from keras_fm.papers.adlm.perturbed_input import check_relevance
from keras_fm.parts.guarantee import Proven, Published, Unit

# Old name to the field of `Proven`; `Unit`; `Published`.
_PROVEN = {
    "neighbours": "neighbours",
    "shares": "shares",
    "planned_releases": "releases",
    "start": "start",
    "ridge_factor": "ridge_factor",
    "n_public": "n_public",
}
_UNIT = {"owners": "owners", "unit": "words", "reach": "reach"}
_PUBLISHED = {
    "neighbours": "neighbours",
    "shares": "shares",
    "published_orders": "orders",
}
_LOT = ("batch_size", "lot")
# Arguments of a paper's model or layer, and who has them.
_OF_MODEL = {
    "planned_steps": "`DPMAC(planned_steps=...)`",
    "noise_multiplier": "`DPMAC(noise_multiplier=...)`",
    "pretrained": "`layer.relevance_of(pretrained)` of the adaptive layer",
    "relevance_form": "`PerturbedAffine(relevance_form=...)`",
    "relevance_floor": "`PerturbedAffine(relevance_floor=...)`",
}
_CALLBACK = {"new_release": "`private.new_release = True`"}


def translated(guarantee, old):
    """A guarantee from a name and old keywords.

    Args:
        guarantee: `Proven`, `Published`, or a name.
        old: dict of old keywords; consumed are those of the guarantee.

    Returns:
        tuple of the guarantee and a dict of what belongs to the model.

    Raises:
        TypeError: if a keyword is none.
        ValueError: if the guarantee is none, or values are outside their
            range.
    """
    known = {*_PROVEN, *_UNIT, *_PUBLISHED, *_LOT, *_OF_MODEL, *_CALLBACK}
    for name in old:
        if name not in known:
            raise TypeError(
                f"PrivateModel got an unexpected keyword argument {name!r}"
            )
    given = {k: v for k, v in old.items() if k not in _CALLBACK}
    of_model = {k: given.pop(k) for k in _OF_MODEL if k in given}
    of_model = {k: v for k, v in of_model.items() if v is not None}
    check_relevance(
        of_model.get("relevance_form", "paper"),
        of_model.get("relevance_floor", 1e-5),
    )
    if isinstance(guarantee, (Proven, Published)):
        if given:
            raise ValueError(
                f"`{next(iter(given))}` belongs into `guarantee`: "
                f"{type(guarantee).__name__}(...). Received both."
            )
    elif isinstance(guarantee, str) and guarantee == "proven":
        guarantee = _proven(given)
    elif isinstance(guarantee, str) and guarantee == "published":
        guarantee = _published(given)
    else:
        # Not shown: labels stand here where `data=(x, y)` was meant.
        raise ValueError(
            '`guarantee` must be "proven", keras_fm.Proven(...) or '
            "keras_fm.Published(...), and records one argument, "
            f"`data=(x, y)`. Received: guarantee of {type(guarantee).__name__}"
        )
    if old:
        _warn(old, guarantee)
    return guarantee, of_model


def _proven(given):
    for name in _LOT:
        given.pop(name, None)
    given.pop("published_orders", None)
    fields = {_PROVEN[k]: v for k, v in given.items() if k in _PROVEN}
    unit = {_UNIT[k]: v for k, v in given.items() if k in _UNIT}
    return Proven(**fields, **({"unit": Unit(**unit)} if unit else {}))


def _published(given):
    if given.get("owners") is not None or given.get("reach"):
        raise ValueError('`owners` and `reach` belong to guarantee="proven".')
    lot = given.get("lot", "batch")
    checks.one_of("lot", lot, ("batch", "data"))
    if lot == "batch":
        lot = given.get("batch_size")
        if not (isinstance(lot, int) and lot > 0):
            raise ValueError(
                'guarantee="published" divides its noise by the lot size: '
                "pass the `batch_size` of fit, "
                "`guarantee=keras_fm.Published(lot=batch_size)`. Received: "
                f"batch_size={lot}"
            )
    fields = {_PUBLISHED[k]: v for k, v in given.items() if k in _PUBLISHED}
    return Published(lot=lot, **fields)


def _warn(old, guarantee):
    places = [f"{name}: {_place(name, guarantee.kind)}" for name in old]
    warnings.warn(
        "These keywords of PrivateModel go with version 0.3.0; write "
        f"{'; '.join(places)}",
        DeprecationWarning,
        stacklevel=_outside(),
    )


def _place(name, kind):
    """Where a keyword is now."""
    known = {**_OF_MODEL, **_CALLBACK}
    if name in known:
        return known[name]
    if kind == "published" and name in _LOT:
        return "Published(lot=...)"
    if kind == "published" and name in _PUBLISHED:
        return f"Published({_PUBLISHED[name]}=...)"
    if kind == "proven" and name in _PROVEN:
        return f"Proven({_PROVEN[name]}=...)"
    if kind == "proven" and name in _UNIT:
        return f"Proven(unit=Unit({_UNIT[name]}=...))"
    return f'nothing, it has no effect with guarantee="{kind}"'


def _outside():
    """How many frames up the caller's line is."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        "keras_fm.training"
    ):
        frame, level = frame.f_back, level + 1
    return level


def give(of_model, model):
    """Gives a model what old keywords said of it.

    Raises:
        ValueError: if it is not for this model.
    """
    steps = [k for k in ("planned_steps", "noise_multiplier") if k in of_model]
    if steps:
        if not getattr(model, "reads_every_step", False):
            raise ValueError(
                "`planned_steps` and `noise_multiplier` belong to a DPMAC. "
                f"Received a {type(model).__name__}"
            )
        model.plan_steps(**{name: of_model[name] for name in steps})
    for layer in model._flatten_layers(include_self=False):
        if not getattr(layer, "adaptive", False):
            continue
        if "pretrained" in of_model:
            layer.relevance_of(of_model["pretrained"])
        for name in ("relevance_form", "relevance_floor"):
            if name in of_model:
                setattr(layer, name, of_model[name])

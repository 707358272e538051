"""Names that commands are given, known without Keras: a wrong one is
answered in a moment."""

import difflib
import functools
import json
import os
import pathlib

# Tests compare these with what they name.
IMAGES = ("digits", "mnist", "fashion_mnist", "usps", "cifar10")
NETWORKS = ("health_network", "health_network_weekly")
FEATURES = ("pixels", "scattering", "scattering_strokes", "patches")
_BOTH = ("published", "proven")
# Models that are audited, and which guarantees each has.
AUDITED = {
    "ilm": ("published",),
    "head": _BOTH,
    "adlm": _BOTH,
    "dpa": _BOTH,
    "pcdbn": _BOTH,
    "dpmac": _BOTH,
    "functional": _BOTH,
}
# What a comparison says.
COMPARED = (
    "dataset",
    "features",
    "hidden",
    "methods",
    "epsilons",
    "delta",
    "neighbours",
    "seeds",
    "epochs",
    "batch_size",
    "learning_rate",
    "dp_sgd",
    "train_records",
)


@functools.cache
def methods():
    """Dict from the methods of a comparison to what is said of each."""
    return _json("compare/methods.json")


@functools.cache
def experiments():
    """Dict from the experiments of the papers to what declares them."""
    return _json("reproduce/experiments.json")


def _json(path):
    path = pathlib.Path(__file__).parent / path
    return json.loads(path.read_text(encoding="utf-8"))


def check_dataset(name):
    """Refuses what is neither a data set of images nor a file.

    Raises:
        ValueError: with the words of `keras_fm.datasets.load`.
    """
    if name in IMAGES or not isinstance(name, str):
        return
    if name in NETWORKS:
        raise ValueError(
            f"{name!r} is no data set of images. Behaviour prediction is "
            "compared by `keras-fm reproduce`; see docs/dpa.md."
        )
    if not name.endswith(".npz"):
        raise ValueError(
            f"Unknown data set {name!r}. Known are {sorted(IMAGES)}, or the "
            "path of an .npz file."
        )
    if not os.path.isfile(name):
        raise ValueError(
            f"Cannot load {name!r} as a data set: there is no such file."
        )


def check_compared(config):
    """Refuses what is no table of a comparison's settings.

    Raises:
        ValueError: naming the settings that there are.
    """
    if not isinstance(config, dict):
        raise ValueError("A comparison must be a table of settings.")
    unknown = sorted(set(config) - set(COMPARED))
    if unknown:
        raise ValueError(
            f"A comparison has no {', '.join(map(repr, unknown))}; it may "
            f"have {', '.join(COMPARED)}."
        )


def check_comparison(config):
    """Refuses settings of a comparison, as far as no model says more.

    Args:
        config: dict, some fields of a `Comparison`.

    Raises:
        ValueError: if a value is unknown or outside its range.
    """
    # NumPy, too, only where something is to be checked.
    from keras_fm.kernel import checks
    from keras_fm.kernel.budget import Neighbours, PrivacyBudget

    check_compared(config)
    check_dataset(config.get("dataset", IMAGES[0]))
    checks.one_of("features", config.get("features", FEATURES[0]), FEATURES)
    # What is no list of names is for `Comparison` to refuse.
    for name in _listed(config, "methods"):
        if isinstance(name, str) and name not in methods():
            checks.refuse("methods", name, f"some of {tuple(methods())}")
    if config.get("epsilons", True) in ([], ()):
        raise ValueError("`epsilons` must name at least one budget.")
    for epsilon in _listed(config, "epsilons") or (1.0,):
        PrivacyBudget(epsilon, config.get("delta", 0.0))
    Neighbours.of(config.get("neighbours", Neighbours.ADD_REMOVE))
    for name in ("seeds", "epochs", "batch_size"):
        checks.count(name, config.get(name, 1))
    for name in ("hidden", "train_records"):
        checks.natural(name, config.get(name, 0))


def check_audited(config):
    """Refuses what no model can be audited with.

    Args:
        config: dict, some fields of a `Subject`.

    Raises:
        ValueError: if a value is unknown or outside its range.
    """
    from keras_fm.kernel import checks
    from keras_fm.kernel.budget import PrivacyBudget

    checks.one_of("model", config["model"], AUDITED)
    if config["guarantee"] not in AUDITED[config["model"]]:
        raise ValueError(
            f"`guarantee` of {config['model']} must be one of "
            f"{AUDITED[config['model']]}. Received: "
            f"guarantee={config['guarantee']!r}"
        )
    PrivacyBudget(config["epsilon"], config["delta"])
    for name in ("hidden", "epochs", "control_epochs"):
        checks.count(name, config[name])
    checks.natural("batch_size", config["batch_size"])
    checks.norm_bound("learning_rate", config["learning_rate"])
    checks.one_of(
        "normalization", config["normalization"], ("batch", "minmax", "none")
    )
    checks.one_of("noise", config["noise"], ("once", "per_step"))
    if config["model"] == "dpmac" and config["delta"] == 0:
        raise ValueError("The steps of a DPMAC need a `delta` greater than 0.")


def audited_neighbours(model):
    """The relation of an audited model's claim."""
    return "add_remove" if model == "dpmac" else "replace_one"


def check_design(model, design):
    """Refuses canaries that say nothing about a model's statement.

    Raises:
        ValueError: for `"include"` under replace_one.
    """
    if design == "include" and audited_neighbours(model) == "replace_one":
        raise ValueError(
            f'design="include" says nothing about {model}, whose statement '
            'is for replace_one. Use design="swap".'
        )


def _listed(config, name):
    found = config.get(name)
    return found if isinstance(found, (list, tuple)) else ()


class UnknownExperimentError(ValueError):
    """A name that is neither a paper, an experiment nor an alias."""


def find_experiments(names):
    """The experiments that papers, experiments or figures of papers name.

    Returns:
        tuple of str, each once, in the order of the catalogue.

    Raises:
        UnknownExperimentError: naming what comes near.
    """
    called = {
        name: (name, name.split(":")[0], *declared.get("aliases", ()))
        for name, declared in experiments().items()
    }
    found = set()
    for name in names:
        wanted = str(name).strip().lower()
        mine = {e for e, words in called.items() if wanted in words}
        if not mine:
            raise UnknownExperimentError(_unknown(name, wanted, called))
        found |= mine
    return tuple(e for e in called if e in found)


def check_reproduction(names, epsilons, data):
    """Refuses choices that one of the experiments named does not have.

    Raises:
        ValueError: naming it.
    """
    for name in find_experiments(names):
        declared = experiments()[name]
        sized = declared.get("both", {}) | declared.get("small", {})
        check_choices(
            name, "epsilons" in sized, "load" in declared, epsilons, data
        )


def check_choices(name, has_budgets, has_data, epsilons, data):
    """`check_reproduction` of one experiment."""
    from keras_fm.kernel import checks

    if epsilons is not None:
        if not has_budgets:
            raise ValueError(f"{name} has no epsilons to choose.")
        if not epsilons:
            raise ValueError("`epsilons` must name at least one budget.")
        for epsilon in epsilons:
            checks.positive("epsilons", epsilon)
    if data is not None and not has_data:
        raise ValueError(f"{name} reads no data set.")


def _unknown(name, wanted, called):
    papers = [*dict.fromkeys(words[1] for words in called.values())]
    known = [*papers, *called, *(w for c in called.values() for w in c[2:])]
    near = difflib.get_close_matches(wanted, known, n=6, cutoff=0.5)
    near += [k for k in known if k.split(":")[0] == wanted.split(":")[0]]
    near = list(dict.fromkeys(near)) or papers
    return f"Unknown experiment {name!r}. Near it are: {', '.join(near)}."

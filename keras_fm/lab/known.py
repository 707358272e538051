"""Names that commands are given, known without Keras: a wrong one is
answered in a moment."""

import difflib
import functools
import json
import os
import pathlib

from keras_fm.lab import environment

# Tests compare these with what they name.
IMAGES = ("digits", "mnist", "fashion_mnist", "usps", "cifar10")
NETWORKS = ("health_network", "health_network_weekly")
FEATURES = (
    "pixels",
    "scattering",
    "scattering_strokes",
    "scattering_patches",
    "strokes_patches",
    "patches",
)
_BOTH = ("published", "proven")
# Models that are audited, and which guarantees each has.
AUDITED = {
    "ilm": ("published",),
    "head": _BOTH,
    "adlm": _BOTH,
    "dpa": _BOTH,
    "dpah": _BOTH,
    "pcdbn": _BOTH,
    "pcdbn_te": ("published",),
    "pcdbn_pw": ("published",),
    "dpmac": _BOTH,
    "functional": _BOTH,
    "dp_sgd": _BOTH,
    "jax_privacy": _BOTH,
}
# Those that read samples at every step: their claim has a delta.
_SAMPLED = ("dpmac", "dp_sgd", "jax_privacy")
# Those whose weights have a gradient for a record.
_WITH_GRADIENTS = {(model, "published") for model in AUDITED} - {
    ("adlm", "published"),
    ("functional", "published"),
} | {(model, "proven") for model in ("functional", *_SAMPLED)}
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
# Of these the flags of the command.
FLAGS = tuple(n for n in COMPARED if n not in ("learning_rate", "dp_sgd"))


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


def runs_here(packages, backend=None):
    """Whether what a method needs is installed, told without importing it."""
    return backend in (None, environment.backend()[0]) and all(
        map(environment.has, packages)
    )


def check_dataset(name):
    """Refuses what is neither a data set of images nor a file of one.

    Raises:
        ValueError: with the words of `keras_fm.datasets.load`.
    """
    if name in IMAGES:
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
    from keras_fm.kernel.ledger import stored_arrays

    if not os.path.isfile(name):
        raise ValueError(
            f"Cannot load {name!r} as a data set: there is no such file."
        )
    try:
        with stored_arrays.opened(name) as data:
            data.require(stored_arrays.IMAGES)
    except (OSError, ValueError) as e:
        raise ValueError(f"Cannot load {name!r} as a data set: {e}") from e


def check_comparison(config, names=None):
    """Refuses settings of a comparison.

    Args:
        config: dict, some fields of a `Comparison`.
        names: dict from the methods that there are to their needs; `None`
            for those of the package.

    Raises:
        ValueError: if it is no table of such fields, or a value is unknown,
            outside its range or given twice.
    """
    # NumPy, too, only where something is to be checked.
    from keras_fm.kernel import checks
    from keras_fm.kernel.budget import Neighbours

    if not isinstance(config, dict):
        raise ValueError("A comparison must be a table of settings.")
    unknown = sorted(set(config) - set(COMPARED))
    if unknown:
        raise ValueError(
            f"A comparison has no {', '.join(map(repr, unknown))}; it may "
            f"have {', '.join(COMPARED)}."
        )
    checks.text(
        "dataset",
        config.get("dataset", IMAGES[0]),
        "a name or the path of an .npz file",
    )
    checks.one_of("features", config.get("features", FEATURES[0]), FEATURES)
    delta = config.get("delta", 1e-5)
    check_budgets(config.get("epsilons", (1.0,)), delta)
    if "methods" in config:
        _check_methods(config["methods"], delta, names or methods())
    Neighbours.of(config.get("neighbours", Neighbours.ADD_REMOVE))
    rivals = checks.instance(
        "dp_sgd", config.get("dp_sgd", ()), (list, tuple), "a list of tables"
    )
    if not all(isinstance(settings, dict) for settings in rivals):
        raise ValueError("`dp_sgd` must be a list of tables.")
    # Every run is listed before the first begins.
    _whole("seeds", config.get("seeds", 1), 10_000)
    for name in ("epochs", "batch_size"):
        _whole(name, config.get(name, 1))
    for name in ("hidden", "train_records"):
        _whole(name, config.get(name, 0), least=0)
    checks.positive("learning_rate", config.get("learning_rate", 1.0))


def _whole(name, value, most=1_000_000, least=1):
    """A number of things, no more than a machine could ever list."""
    from keras_fm.kernel import checks

    wanted = "a positive integer" if least else "a positive integer or 0"
    checks.integer(
        name,
        value,
        at_least=least,
        at_most=most,
        wanted=f"{wanted} (at most {most:,})",
    )


def check_budgets(epsilons, delta=0.0):
    """Refuses what is no list of budgets, each once.

    Raises:
        ValueError: naming `epsilons`, or the value that is no budget.
    """
    from keras_fm.kernel import checks
    from keras_fm.kernel.budget import PrivacyBudget

    checks.instance("epsilons", epsilons, (list, tuple), "a list")
    if not epsilons:
        raise ValueError("`epsilons` must name at least one budget.")
    # Beyond these some method finds no noise, after others have trained.
    found = [
        checks.number("epsilon", e, at_least=1e-4, at_most=100)
        for e in epsilons
    ]
    _check_once("epsilons", found)
    delta = PrivacyBudget(1.0, delta).delta
    if delta:
        wanted = "0, or between 1e-12 and 0.5"
        checks.number(
            "delta", delta, at_least=1e-12, at_most=0.5, wanted=wanted
        )


def _check_methods(asked, delta, names):
    from keras_fm.kernel import checks

    checks.instance("methods", asked, (list, tuple), "a list")
    if not asked or any(name not in list(names) for name in asked):
        checks.refuse("methods", asked, f"some of {tuple(names)}")
    _check_once("methods", asked)
    needy = [name for name in asked if _need(names[name], "needs_delta")]
    if needy and delta == 0:
        raise ValueError(
            f"Of `methods` {', '.join(needy)} cannot run with delta = 0. Give "
            "a `delta` greater than 0, or leave them out."
        )


def _check_once(name, values):
    twice = [v for i, v in enumerate(values) if v in values[:i]]
    if twice:
        raise ValueError(
            f"`{name}` must name each of them once. Received twice: {twice[0]}"
        )


def _need(method, name):
    """Of a method as the package's file tells of it, or of one's own."""
    if isinstance(method, dict):
        return method.get(name)
    return getattr(method, name)


def check_runnable(asked, names=None, jax_python=None):
    """Refuses methods whose packages or backend are not here.

    Args:
        asked: names of methods.
        names: as of `check_comparison`.
        jax_python: `None`, or the Python that trains what needs JAX.

    Raises:
        ImportError: naming what is missing.
    """
    names = names or methods()
    for name in asked:
        packages = _need(names[name], "packages") or ()
        backend = _need(names[name], "backend")
        if runs_here(packages, backend) or (backend == "jax" and jax_python):
            continue
        where = ""
        if backend:
            where = f" on the backend {backend!r}"
        if backend == "jax":
            where += " (or `jax_python=`, an environment that has them)"
        raise ImportError(f"{name!r} needs {', '.join(packages)}{where}.")


def check_processes(processes, isolated):
    """Refuses processes that cannot be.

    Raises:
        ValueError: if they are fewer than 0, or 0 with `isolated`.
    """
    _whole("processes", processes, 10_000, least=0)
    if isolated and not processes:
        raise ValueError("`isolated=True` needs `processes` of at least 1.")


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
        _whole(name, config[name])
    checks.natural("batch_size", config["batch_size"])
    checks.norm_bound("learning_rate", config["learning_rate"])
    checks.one_of(
        "normalization", config["normalization"], ("batch", "minmax", "none")
    )
    checks.one_of("noise", config["noise"], ("once", "per_step"))
    if config["model"] != "ilm":
        for name, default in (("normalization", "batch"), ("noise", "once")):
            if config[name] != default:
                raise ValueError(
                    f"`{name}` belongs to the model ilm. Received: "
                    f"{name}={config[name]!r}, model={config['model']!r}"
                )
    if config["model"] in _SAMPLED and config["delta"] == 0:
        raise ValueError(
            f"The steps of {config['model']} need a `delta` greater than 0."
        )


def audited_neighbours(model):
    """The relation of an audited model's claim."""
    return "add_remove" if model in _SAMPLED else "replace_one"


def check_attack(model, guarantee, design, score):
    """Refuses attacks that say nothing about a model.

    Raises:
        ValueError: for `"include"` under replace_one, and for gradients where
            there are none.
    """
    if design == "include" and audited_neighbours(model) == "replace_one":
        raise ValueError(
            f'design="include" says nothing about {model}, whose statement '
            'is for replace_one. Use design="swap".'
        )
    if score == "gradient" and (model, guarantee) not in _WITH_GRADIENTS:
        raise ValueError(
            f'score="gradient" needs weights that records move: {model}, '
            f"{guarantee}, has none that an audit sees. Use "
            'score="loss" or score="margin".'
        )


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
        reads = data_of(declared.get("load"))
        check_choices(name, "epsilons" in sized, reads, epsilons, data)


def data_of(load):
    """What a loader of `reproduce.sources` gives: `"images"`, `"network"`,
    `None` without one."""
    if load is None:
        return None
    return "network" if load in ("recent_windows", "windows") else "images"


def check_choices(name, has_budgets, reads, epsilons, data):
    """`check_reproduction` of one experiment; `reads` as of `data_of`."""
    if epsilons is not None:
        if not has_budgets:
            raise ValueError(f"{name} has no epsilons to choose.")
        check_budgets(epsilons)
    if data is None:
        return
    if reads is None:
        raise ValueError(f"{name} reads no data set.")
    if reads == "network" and data not in NETWORKS:
        raise ValueError(
            f"{name} needs a health network ({', '.join(NETWORKS)}); {data!r} "
            "holds images."
        )
    if reads == "images" and data in NETWORKS:
        raise ValueError(f"{name} needs images; {data!r} is a health network.")


def _unknown(name, wanted, called):
    papers = [*dict.fromkeys(words[1] for words in called.values())]
    known = [*papers, *called, *(w for c in called.values() for w in c[2:])]
    near = difflib.get_close_matches(wanted, known, n=6, cutoff=0.5)
    near += [k for k in known if k.split(":")[0] == wanted.split(":")[0]]
    near = list(dict.fromkeys(near)) or papers
    return f"Unknown experiment {name!r}. Near it are: {', '.join(near)}."

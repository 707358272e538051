"""The public names, and the modules in which their code is.

`keras_fm.mechanisms` and `import keras_fm.mechanisms` give
`keras_fm.kernel.mechanisms`. Folders may change; these names do not.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys

NAMES = {
    "BallsInBins": "keras_fm.per_example.participation",
    "BudgetExceededError": "keras_fm.kernel.ledger.ledger",
    "Ledger": "keras_fm.kernel.ledger.ledger",
    "LedgerEntry": "keras_fm.kernel.ledger.ledger_entry",
    "Participation": "keras_fm.per_example.participation",
    "PrivacyBudget": "keras_fm.kernel.budget",
    "Proven": "keras_fm.core.guarantee",
    "Published": "keras_fm.core.guarantee",
    "Release": "keras_fm.queries",
    "Rounds": "keras_fm.heads.rounds",
    "Unit": "keras_fm.core.guarantee",
    "audit": "keras_fm.lab.auditing.training_audit",
    "compare": "keras_fm.lab.compare",
    "check": "keras_fm.per_example.layer_table",
    "make_private": "keras_fm.per_example.private_network",
    "suggest": "keras_fm.lab.suggestion",
}
MODULES = {
    "auditing": "lab.auditing",
    "baselines": "lab.baselines",
    "callbacks": "callbacks",
    "composition": "lab.composition",
    "datasets": "datasets",
    "estimators": "estimators",
    "evaluation": "evaluation",
    "features": "public.features",
    "filters": "papers.pcdbn.filters",
    "gathered_rounds": "kernel.access.gathered_rounds",
    "layers": "layers",
    "losses": "losses",
    "mechanisms": "kernel.mechanisms",
    "models": "models",
    "partial_statistics": "kernel.partial_statistics",
    "polynomials": "public.polynomials",
    "pretrained": "lab.pretrained",
    "queries": "queries",
    "relevance": "papers.adlm.relevance",
}


def register_layers():
    """Registers the classes of saved models with Keras."""
    for name in ("layers", "losses", "models"):
        importlib.import_module(f"keras_fm.{name}")


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules by their public names, and notices the import of Keras.

    `keras_fm` does not import Keras itself. But Keras loads saved models by
    class name, so the classes are registered as soon as Keras was imported,
    by the user or by a module of ours.
    """

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        head, _, rest = name.partition(".")
        home = MODULES.get(head, head)
        if package == "keras_fm" and home != head:
            actual = f"keras_fm.{home}" + f".{rest}" * bool(rest)
            return importlib.machinery.ModuleSpec(fullname, _Renamed(actual))
        if "keras" not in sys.modules and (
            package == "keras_fm" or fullname == "keras"
        ):
            return self._followed(fullname)
        return None

    def _followed(self, fullname):
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _Renamed(importlib.abc.Loader):
    def __init__(self, actual):
        self._actual = actual

    def create_module(self, spec):
        module = importlib.import_module(self._actual)
        # The import system replaces its spec by the public one.
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec


class _ThenRegister(importlib.abc.Loader):
    # Number of imports under way. Inside an import of ours, which is not
    # finished, the layers could not be imported.
    _under_way = 0

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        # `python -m` and pkgutil use more methods of a loader.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        _ThenRegister._under_way += 1
        try:
            self._loader.exec_module(module)
        finally:
            _ThenRegister._under_way -= 1
        if not _ThenRegister._under_way and "keras" in sys.modules:
            register_layers()

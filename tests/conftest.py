"""Which tests run where, and fixtures that several modules ask for.

Markers:

* `numpy`: nothing that its module imports asks for Keras. One run is enough
  for all backends; `--without-keras` runs these alone, and makes sure.
* `once`: it needs Keras, and says the same on every backend. So does a test
  that is marked so itself: of ledgers, plans, shares, owners and refusals,
  which are Python and NumPy around what a backend computes (the contract has
  private parts spend and refuse on all of them), or of what a method
  learns, which is a matter of its releases (golden values hold those).
* `full`: it takes long, or is one of many cases, and the fast tier leaves it
  out. That tier is what `pytest` runs if no path, marker or `--full` is given.
  CI runs the others on PyTorch, where a test takes the least time.
* `backend`: what it shows is work of the backend: promises that are attacked,
  noise that is drawn, maps, values of layers and losses. CI runs all its cases
  on all three.
* `tensorflow`: it needs TensorFlow, or what CI installs beside it: all cases
  run there, not on PyTorch if they are marked `once`.
* `optimised`: graphs of TensorFlow are optimised before they run once, which
  takes as long as a short fit. The full tier leaves it out but for tests with
  this marker, which show what a reader has, are attacks, or clip in a step.
  The fast tier is as users have it.

A module says by `pytestmark` what is so of all its tests.
"""

import collections
import ctypes
import functools
import gc
import importlib.util
import mmap
import os
import re
import sys
from pathlib import Path

import pytest
import without_keras

# Of XLA. The emitters of fusions took half the time of compiling.
QUICK_COMPILING = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}
# Of TensorFlow: its own allocator for oneDNN gives nothing back.
os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
# Bytes by which tests of one module may grow a worker: giving them back costs
# JAX what it compiled.
MUCH = 300 * 2**20
# Of each process that ran tests: CPU seconds, its children's too, and the most
# MiB it held.
_USED = []
# What was left the last time.
_KEPT = {"bytes": 0}
# Of a test with more cases than this, as many are spread ones.
SPREAD_CASES = 2


def pytest_addoption(parser):
    group = parser.getgroup("keras_fm")
    group.addoption(
        "--full", action="store_true", help="every tier, not the fast one"
    )
    group.addoption(
        "--without-keras",
        action="store_true",
        help="tests that need NumPy only, where Keras cannot be imported",
    )


def pytest_configure(config):
    options = config.option
    if options.without_keras:
        without_keras.refuse()
    _compile_for_jax_once(config)
    chosen = options.full or options.without_keras or options.markexpr
    if not chosen and config.args_source is not config.ArgsSource.ARGS:
        options.markexpr = "not full"


def _compile_for_jax_once(config):
    """Compiling takes most of the time on JAX: it is done without much
    optimisation, and kept for the other tests, workers and runs."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        return
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = " ".join(_known_to_jax(QUICK_COMPILING))
    cache = getattr(config, "cache", None)
    if cache is not None:
        for name, value in (
            ("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax"))),
            ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
            ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"),
        ):
            os.environ.setdefault(name, value)


def _known_to_jax(flags):
    """JAX ends a process that names a flag which it does not know."""
    found = importlib.util.find_spec("jaxlib")
    if found is None:
        return []
    (folder,) = found.submodule_search_locations
    known = set()
    for path in Path(folder).glob("*.so"):
        with open(path, "rb") as f:
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as held:
                known |= {n for n in flags if held.find(n.encode()) >= 0}
    return [f"--{name}={flags[name]}" for name in flags if name in known]


def pytest_ignore_collect(collection_path, config):
    if collection_path.suffix == ".py":
        if config.option.without_keras:
            return not _numpy_only(collection_path) or None
        # None of its tests would run: it need not be imported.
        if "not numpy" in config.option.markexpr:
            return _numpy_only(collection_path) or None
        if config.option.markexpr == "not full":
            return _is_marked(collection_path, "full") or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    cases = {}
    for item in items:
        if _numpy_only(item.path):
            item.add_marker("numpy")
        cases.setdefault((item.path, item.originalname), []).append(item)
    turns = collections.Counter()
    for (path, _), found in cases.items():
        if len(found) > SPREAD_CASES:
            for item in _beyond_the_spread(found, turns[path]):
                item.add_marker("full")
            turns[path] += 1


def _beyond_the_spread(cases, turn):
    """All but evenly spread ones, the next ones in the next test: together
    the tests of a module see every model that they are parametrised by."""
    spread = len(cases) / SPREAD_CASES
    kept = {int(turn + i * spread) % len(cases) for i in range(SPREAD_CASES)}
    return [case for i, case in enumerate(cases) if i not in kept]


def _numpy_only(path):
    return not (
        without_keras.needs_keras(Path(path)) or _is_marked(path, "once")
    )


@functools.cache
def _is_marked(path, name):
    """Whether a module's `pytestmark` has a mark, before it is imported."""
    text = Path(path).read_text(encoding="utf-8")
    marks = re.search(r"^pytestmark = (?:(?!\n\n).)*", text, re.M | re.S)
    return marks is not None and f"pytest.mark.{name}" in marks[0]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Of a worker of xdist, when it ends."""
    _USED.append(getattr(node, "workeroutput", {}).get("used", (0, 0)))


def pytest_sessionfinish(session):
    if sys.platform != "linux":
        return
    import resource

    of = resource.getrusage(resource.RUSAGE_SELF)
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = sum(u.ru_utime + u.ru_stime for u in (of, below))
    used = seconds, of.ru_maxrss / 1024
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["used"] = used
    elif not getattr(session.config.option, "numprocesses", None):
        _USED.append(used)


def pytest_terminal_summary(terminalreporter):
    if _USED:
        seconds, most = (f(v) for f, v in zip((sum, max), zip(*_USED)))
        terminalreporter.write_line(
            f"{seconds:,.0f} CPU seconds, at most {most:,.0f} MiB a process"
        )


def pytest_collection_finish():
    """What was imported stays: later collections need not look at it."""
    gc.collect()
    gc.freeze()
    _give_back()


def pytest_runtest_setup(item):
    full = item.get_closest_marker("full")
    _optimise_graphs(not full or bool(item.get_closest_marker("optimised")))


def _optimise_graphs(wanted):
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": not wanted}
        )


@pytest.fixture(scope="module", autouse=True)
def let_go():
    """What a module compiled, and the models it named, are forgotten."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()
    _give_back()


@pytest.fixture(autouse=True)
def let_go_of_much():
    """The same within a module, if it is much."""
    yield
    if _resident() - _KEPT["bytes"] > MUCH:
        _give_back()


def _give_back():
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    if sys.platform == "linux":
        # What was freed between pieces that were not; of glibc.
        getattr(ctypes.CDLL(None), "malloc_trim", id)(0)
    _KEPT["bytes"] = _resident()


def _resident():
    """Bytes of this process in memory, 0 where nobody says."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


@pytest.fixture
def untraced(request):
    """Eager TensorFlow: tracing costs more than all steps of short fits.

    A test whose name holds the module's `TRACED` is compiled all the same.
    """
    import keras

    traced = getattr(request.module, "TRACED", None)
    if keras.backend.backend() != "tensorflow" or (
        traced and traced in request.node.name
    ):
        yield
        return
    import tensorflow as tf

    _optimise_graphs(False)
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def command(capsys):
    """Runs a command of `keras-fm`: its exit status, and what it printed."""
    from keras_fm.lab import cli

    def run(*args):
        status = cli.main([*map(str, args)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def forgetful(monkeypatch):
    """Models may begin with the same weights, under ledgers of their own."""
    monkeypatch.setattr(
        "keras_fm.per_example.past_weights.check", lambda *arguments: None
    )


@pytest.fixture
def without_noise(monkeypatch):
    """Noisy steps that show their sums."""
    monkeypatch.setattr(
        "keras_fm.per_example.sum_noise.noisy",
        lambda mechanism, sums, keys, symmetric=None: sums,
    )


@pytest.fixture
def fixed_seed(monkeypatch):
    """A noisy layer takes its seed from the operating system."""
    monkeypatch.setattr(
        "keras_fm.core.hidden_state.secrets.randbits", lambda bits: 20170
    )


@pytest.fixture
def small_batches(monkeypatch):
    """Several batches for few records, with rows that are free."""
    for name, rows in (("READ_BATCH", 80), ("PLACES", 32)):
        monkeypatch.setattr(f"keras_fm.training.proven_plan.{name}", rows)

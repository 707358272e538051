"""A model and a table of the user's own, side by side."""

import importlib.util
import json
import math
import sys

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.estimators import table_schema
from keras_fm.lab import cli
from keras_fm.lab import compare as experiments
from keras_fm.lab.compare import own, records, runs, table_file
from keras_fm.lab.compare.methods import WhitenedDPSGD
from keras_fm.lab.compare.task import Task
from keras_fm.lab.engine import rival
from keras_fm.lab.engine.training import Training

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.once,
    pytest.mark.full,
    pytest.mark.tensorflow,
]
layers = keras.layers
FEW = ({"learning_rate": 16.0, "l2_norm_clip": 0.1, "batch_size": 60,
        "steps": 2},)  # fmt: skip


def data(n=240):
    x = np.random.default_rng(0).normal(size=(n, 5)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)


def plain(shape, classes):
    return keras.Sequential(
        [keras.Input(shape), layers.Dense(8, "relu"), layers.Dense(classes)]
    )


def branched(shape):
    inputs = keras.Input(shape)
    h = layers.BatchNormalization()(layers.Dense(8, "relu")(inputs))
    h = layers.Add()([h, layers.Dense(8)(inputs)])
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(h))


def model_of(build, classes=2):
    return own.OwnModel(build, (5,), classes)


# The model ------------------------------------------------------------------


def test_a_model_is_built_anew_and_begins_alike():
    made = model_of(plain)
    one, two, other = made.whole(0), made.whole(0), made.whole(1)
    assert one is not two
    for a, b, c in zip(*(m.get_weights() for m in (one, two, other))):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or np.abs(a - c).max() > 1e-3
    body = made.body(0)
    assert not body.trainable_weights and body.output_shape == (None, 8)
    np.testing.assert_array_equal(body.get_weights()[0], one.get_weights()[0])


def test_what_cannot_train_a_model_says_why():
    made = model_of(branched)
    assert made.why_not("rounds") == "" and made.why_not("non_private") == ""
    assert "not one layer after the other" in made.why_not("dp_sgd_fast")
    assert "model of its own" in made.why_not("pcdbn_proven")
    # Batch normalization mixes records: a copy is trained.
    assert made.why_not("all_layers") == ""
    assert "GroupNormalization" in made.changes[0]
    names = {type(v).__name__ for v in made.for_steps(0).layers}
    assert "GroupNormalization" in names and "BatchNormalization" not in names
    linear = model_of(lambda: keras.Sequential([layers.Dense(2)]))
    assert "no layers below" in linear.why_not("one_release")


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: "a model", "must return a Keras model"),
        (
            lambda: keras.Sequential([fm.layers.PrivateDense(2)]),
            "without private layers",
        ),
        (lambda: plain((4,), 2), "must take records of shape"),
        (lambda shape: plain(shape, 7), "must have 2 outputs"),
    ],
)
def test_another_model_is_refused(build, words):
    with pytest.raises(ValueError, match=words):
        model_of(build)


def test_a_model_in_place_of_its_builder():
    with pytest.raises(ValueError, match="a function that builds a model"):
        model_of(keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)]))


def test_other_weights_are_another_model():
    def scaled(factor):
        def build(shape, classes):
            model = plain(shape, classes)
            model.set_weights([factor * w for w in model.get_weights()])
            return model

        return model_of(build).fingerprint()

    assert scaled(2) == scaled(2) != scaled(3)


# Side by side ---------------------------------------------------------------


def test_every_way_that_fits():
    spec = experiments.Comparison(model="build")
    found, notes = runs._fitting(spec, model_of(branched))
    assert found.methods == (
        "non_private", "all_layers", "one_release", "rounds",
        "features_release", "features_rounds", "dp_sgd_head",
        "dp_sgd_whitened",
    )  # fmt: skip
    left_out, copied = notes
    assert left_out.startswith("Left out: DP-SGD, tensorflow-privacy: ")
    assert "GroupNormalization" in copied


def test_side_by_side(tmp_path, capsys):
    out = str(tmp_path / "out")
    kwargs = {
        "methods": ("non_private", "all_layers", "rounds", "features_release"),
        "epsilons": (50,),
        "epochs": 3,
        "batch_size": 16,
        "dp_sgd": FEW,
        "out": out,
    }
    found = fm.compare(branched, data(), **kwargs)
    by_method = {o.method: o for o in found}
    assert list(by_method) == list(kwargs["methods"])
    assert by_method.pop("non_private").proven == math.inf
    for o in by_method.values():
        assert 49 < o.proven <= 50
    steps = by_method.pop("all_layers")
    assert steps.settings == FEW[0]
    assert min(o.accuracy for o in by_method.values()) > 0.6
    shown = capsys.readouterr().err
    for text in (str(found), shown):
        assert "Noisy steps train a copy" in text
    with open(f"{out}/summary.json") as f:
        assert json.load(f)["notes"] == found.notes
    again = fm.compare(branched, data(), progress=False, **kwargs)
    assert again == found


def test_a_method_that_was_named_must_fit():
    with pytest.raises(ValueError, match="not one layer after the other"):
        fm.compare(branched, data(), methods=("dp_sgd_fast",))
    with pytest.raises(ValueError, match="model of its own"):
        fm.compare(plain, data(), methods=("dpa_proven",))


# Records --------------------------------------------------------------------


def test_a_fifth_is_held_out_by_place_alone():
    x = np.arange(50.0)[:, None]
    made = records.of_arrays((x, np.arange(50) % 2))
    other = records.of_arrays((-x, np.zeros(50, int)))
    assert len(made.x_test) == 10
    np.testing.assert_array_equal(made.x_test, -other.x_test)
    both = np.concatenate([made.x, made.x_test])
    np.testing.assert_array_equal(np.sort(both, axis=0), x)


def test_labels_of_any_kind():
    x, text = np.zeros((4, 1)), np.array(["b", "a", "b", "c"])
    made = records.of_arrays((x, text), (x, text), classes=["c", "b", "a"])
    assert made.y.tolist() == [1, 2, 1, 0] and made.classes == 3
    assert records.of_arrays((x, text), (x, text)).y.tolist() == [1, 0, 1, 2]
    numbers = records.of_arrays((x, [0, 4, 4, 0]), (x, [0, 0, 0, 0]))
    assert numbers.classes == 5 and numbers.y.tolist() == [0, 4, 4, 0]
    with pytest.raises(ValueError) as caught:
        records.of_arrays((x, text), (x, text), classes=["a", "b"])
    assert "'c'" not in str(caught.value)
    with pytest.raises(ValueError, match="must hold classes"):
        x = np.zeros((300, 1))
        records.of_arrays((x, np.linspace(0, 1, 300)))
    with pytest.raises(ValueError, match="as many records as labels"):
        records.of_arrays((x, [0, 1]))
    with pytest.raises(ValueError) as caught:
        records.of_arrays((np.array([["secret"]]), [0]), (x, [0] * 300))
    assert "secret" not in str(caught.value)


SCHEMA = """
age = {numbers = [0, 100]}
work = {words = ["NA", "office"]}
smokes = {words = [true, false]}
income = {classes = ["low", "high"]}
"""


@pytest.fixture
def table(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    lines = ["note,income, work,age,smokes"]
    for i in range(60):
        high, age = i % 2, "" if i == 3 else f" {50 + 40 * (i % 2)}"
        work = ("NA", "office")[high]
        lines.append(f"secret,{('low', 'high')[high]},{work},{age},True")
    path = tmp_path / "people.csv"
    path.write_text("\n".join(lines))
    return str(path), str(tmp_path / "schema.toml")


def test_a_table_is_read_by_its_schema(table):
    x, y, classes = table_file.read(*table)
    assert x.shape == (60, 1 + 2 + 2) and classes == ["low", "high"]
    np.testing.assert_allclose(x[0], [0, 1, 0, 1, 0])
    np.testing.assert_allclose(x[1], [0.8, 0, 1, 1, 0], atol=1e-6)
    assert x[3, 0] == 0 and list(y[:2]) == ["low", "high"]


@pytest.mark.parametrize(
    "change, words",
    [
        (("work", "wurk"), "columns of the schema once.*'work'"),
        (("age", "work"), "columns of the schema once"),
        (("secret,low,NA, 50", "secret,low,NA, many"), "'age' must hold"),
        (
            ("secret,low,NA, 50,True", "secret"),
            "At least one line is shorter",
        ),
    ],
)
def test_what_a_table_lacks_shows_no_value(table, change, words):
    path, schema = table
    with open(path) as f:
        text = f.read().replace(*change, 1)
    with open(path, "w") as f:
        f.write(text)
    with pytest.raises(ValueError, match=words) as caught:
        table_file.read(path, schema)
    assert "many" not in str(caught.value) and "low" not in str(caught.value)


def test_a_table_without_a_schema_is_refused(table):
    spec = experiments.Comparison(dataset=table[0])
    with pytest.raises(
        ValueError, match="keras-fm schema .*people.csv` writes"
    ):
        experiments.run(spec, progress=False)


def test_the_part_that_is_tested_on_may_be_a_table(table):
    path, schema = table
    spec = experiments.Comparison(dataset=path, columns=schema, test=path)
    made = records.load(spec)
    np.testing.assert_array_equal(made.x, made.x_test)
    assert len(made.x) == 60 and made.classes == 2


def test_the_command_line(table, tmp_path, capsys):
    """A worker imports the script by itself."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import keras\n\n\ndef build(shape, classes):\n"
        "    last = keras.layers.Dense(classes, 'softmax')\n"
        "    return keras.Sequential([keras.Input(shape), "
        "keras.layers.Dense(4, 'tanh'), last])\n"
    )
    out = tmp_path / "out"
    argv = [
        "compare",
        f"--model={script}:build",
        f"--dataset={table[0]}",
        f"--columns={table[1]}",
        "--methods=one_release,features_release",
        "--epsilons=100",
        "--processes=1",
        f"--out={out}",
        "--noprogress",
    ]
    assert cli.main(argv) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"keras-fm compare: writes {out}\n")
    assert "public features, one release" in shown.out
    assert "secret" not in (out / "summary.json").read_text()


def test_parquet_needs_its_reader(monkeypatch, table, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(
        table[0], skipinitialspace=True, keep_default_na=False
    )
    frame["age"] = pandas.to_numeric(frame["age"])
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(ImportError, match="pip install pandas pyarrow"):
            table_file.read("people.parquet", table[1])
        with pytest.raises(ImportError, match="pip install pandas pyarrow"):
            table_file.template("people.parquet")
        monkeypatch.setitem(sys.modules, "pyarrow", pandas)
    monkeypatch.setattr(
        pandas, "read_parquet", lambda path, columns: frame[columns]
    )
    x, _, _ = table_file.read("people.parquet", table[1])
    np.testing.assert_allclose(x, table_file.read(*table)[0])


def test_a_template_holds_no_value(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text('\ufeffage, "a ""name"""\n1234,secret\n')
    text = table_file.template(str(table))
    assert "1234" not in text and "secret" not in text
    assert '"age" = {}\n' in text and '"a \\"name\\"" = {}\n' in text
    made = tmp_path / "schema.toml"
    made.write_text(text)
    with pytest.raises(ValueError, match="Column 'age'"):
        table_schema.load(made)


def test_a_template_of_a_frame_knows_its_types():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1234], "work": ["secret"]})
    text = table_file.template(frame)
    assert "1234" not in text and "secret" not in text
    assert '"age" = {numbers = []}  # int64' in text
    assert '"work" = {words = []}' in text


# Whitening ------------------------------------------------------------------


def test_whitening_is_released_for_a_tenth_of_the_budget():
    """DP-SGD after it has what rounds have, and no more budget."""
    spec = experiments.Comparison(methods=("non_private",), epsilons=(2.0,))
    x, y = data()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    task = Task(spec, x, y, x, y, x, x, 2)
    pytest.importorskip("tf_keras")
    fit = experiments.METHODS["dp_sgd_whitened"].train(task, 0, 2.0)
    made = fit(FEW[0], x, y)
    whitening, steps = made.ledger.entries
    assert 1.98 < made.ledger.epsilon() <= 2
    assert "second moment" in whitening.name and steps.name == "DP-SGD"
    rounds = experiments.METHODS["rounds"]
    ours = rounds.train(task, 0, Training(epsilon=2.0)).ledger.entries[0]
    assert ours.mechanism["noise_multiplier"] == pytest.approx(
        whitening.mechanism["noise_multiplier"], rel=1e-3
    )
    assert made.predict(x).shape == (len(x), 2)


def test_products_leave_the_whole_budget_to_training():
    spec = experiments.Comparison(methods=("non_private",), hidden=0)
    x, y = data()
    task = Task(spec, x, y, x, y, x, x, 2)
    ours = experiments.METHODS["rounds_products"]
    found = ours.train(task, 0, Training(epsilon=2.0))
    (rounds,) = found.ledger.entries
    assert "second moment" not in rounds.name
    width = x.shape[1] + x.shape[1] * (x.shape[1] + 1) // 2
    assert found.model.layers[-1].kernel.shape == (width, 2)
    pytest.importorskip("tf_keras")
    made = experiments.METHODS["dp_sgd_products"].train(task, 0, 2.0)(
        FEW[0], x, y
    )
    (steps,) = made.ledger.entries
    assert 1.98 < made.ledger.epsilon() <= 2 and steps.name == "DP-SGD"
    assert made.predict(x).shape == (len(x), 2)


def test_trials_of_a_choice_share_one_whitening(monkeypatch):
    """Each has the budget that the reported run has, and no more."""
    pytest.importorskip("tf_keras")
    x, y = data()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    whitened, trials = [], []

    def head(shape):
        return keras.Sequential([keras.Input(shape), keras.layers.Dense(2)])

    class Watched(WhitenedDPSGD):
        def _whiten(self, x):
            whitened.append(len(x))
            return super()._whiten(x)

        def _train(self, *args):
            trials.append(super()._train(*args))
            return trials[-1]

    fit = Watched(head, 2.0, 1e-5)
    choices = [{**FEW[0], "learning_rate": rate} for rate in (0.5, 1.0)]
    rival.tune(fit, x, y, choices=choices)
    assert whitened == [len(x) * 4 // 5] and len(trials) == 2
    assert trials[0].ledger is not trials[1].ledger
    fit(choices[0], x, y)
    assert whitened[1:] == [len(x)]
    for trial in trials:
        assert ["second moment" in e.name for e in trial.ledger.entries] == [
            True,
            False,
        ]
        assert 1.98 < trial.ledger.epsilon() <= 2

"""Every file of a fit is searched for noise, raw statistics and records."""

import dataclasses
import faulthandler
import re
import secrets as secrets_module
import traceback

import keras
import numpy as np
import pytest
import secret_scan
from private_forms import FORMS, LABELS, RECORDS, N, compiled, records_of

import keras_fm as fm
from keras_fm.core import event_file
from keras_fm.kernel import mechanisms
from keras_fm.kernel import release as release_lib

pytestmark = [pytest.mark.full, pytest.mark.backend, pytest.mark.optimised]


@pytest.fixture
def secrets(monkeypatch):
    """Noise and statistics, as they were drawn and as they are unpacked."""
    found, objectives = {}, []
    perturb, release = mechanisms.Mechanism.perturb, release_lib.release
    generator = mechanisms.NoiseSource.generator

    def keep(name, array):
        found[f"{name} {len(found)}"] = np.array(array)

    def watched(self, exact, *arguments, **keywords):
        noisy = perturb(self, exact, *arguments, **keywords)
        # A sum below its noise's last digit, such as zero, is released as
        # that noise, whatever is done.
        noise = np.where(noisy - exact == noisy, 0, noisy - exact)
        for name, vector in (("statistic", exact), ("noise", noise)):
            keep(name, vector)
            keep(name, np.asarray(vector) / N)
            if objectives and np.ndim(vector) == 1:
                for part in objectives[-1].unpack(vector.copy(), self.norm):
                    keep(name, part)
        return noisy

    def watched_release(objective, *arguments, **keywords):
        objectives.append(objective)
        try:
            return release(objective, *arguments, **keywords)
        finally:
            objectives.pop()

    class Watched:
        def __init__(self, made):
            self._made = made

        def __getattr__(self, name):
            draw = getattr(self._made, name)

            def watched_draw(*arguments, **keywords):
                drawn = draw(*arguments, **keywords)
                keep(f"published {name}", drawn)
                return drawn

            return watched_draw

    monkeypatch.setattr(mechanisms.Mechanism, "perturb", watched)
    monkeypatch.setattr(release_lib, "release", watched_release)
    monkeypatch.setattr(
        mechanisms.NoiseSource,
        "generator",
        lambda self: Watched(generator(self)),
    )
    return found


@pytest.fixture
def seeds(monkeypatch):
    """Seeds of noise that is drawn within steps, as bytes and digits."""
    found = []

    def watched(draw):
        def watched_draw(bound):
            drawn = draw(bound)
            size = next(n for n in (4, 16, 32) if drawn < 2 ** (8 * n))
            # Few digits are anywhere.
            if drawn > 10**7:
                found.append(drawn.to_bytes(size, "little"))
                found.append(str(drawn).encode())
            return drawn

        return watched_draw

    for name in ("randbelow", "randbits"):
        original = getattr(secrets_module, name)
        monkeypatch.setattr(secrets_module, name, watched(original))
    return found


class Exports(keras.callbacks.Callback):
    """Writes the model as programs without Keras read it."""

    def __init__(self, path):
        super().__init__()
        self._path = str(path)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and keras.backend.backend() == "tensorflow":
            self.model.export(self._path, verbose=False)


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise ZeroDivisionError("on purpose")


def own_frames(error):
    """Text of a crash report: frames with their variables, and of those of
    the package alone."""
    report = traceback.TracebackException.from_exception(
        error, capture_locals=True
    )
    own = [f for f in report.stack if "/keras_fm/" in f.filename]
    assert report.stack
    return (
        "".join(report.format()).encode(),
        repr([f.locals for f in own]).encode(),
    )


def everything(form, folder):
    """A fit with all that writes, an error, and a fit that goes on."""
    make, arguments = FORMS[form]
    arguments = dict(arguments)
    records = records_of(form)
    budget = arguments.pop("budget", fm.PrivacyBudget(4.0, 1e-5))
    model = make()
    data = (records, LABELS)
    if form == "AdLM published":
        # The network whose relevance is perturbed.
        twin = compiled(
            fm.models.unprotected_twin(model), fm.losses.TaylorCrossEntropy()
        )
        twin.fit(*data, verbose=0)
        arguments["guarantee"] = dataclasses.replace(
            arguments["guarantee"],
            settings=fm.models.PublishedAdLM(relevance_of=twin),
        )
    private = fm.callbacks.PrivateModel(
        budget,
        data=(records, LABELS),
        ledger=folder / "privacy.json",
        **arguments,
    )
    public = np.random.default_rng(8).random(records.shape)
    public = public.astype("float32")
    callbacks = [
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
        private,
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras")),
        keras.callbacks.ModelCheckpoint(
            str(folder / "{epoch}.weights.h5"), save_weights_only=True
        ),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        Exports(folder / "exported"),
    ]
    if event_file.can_be_written():
        callbacks.append(
            fm.callbacks.PrivacyTensorBoard(private, str(folder / "board"))
        )
        if keras.backend.backend() == "tensorflow":
            callbacks.append(
                keras.callbacks.TensorBoard(
                    str(folder / "kerasboard"), histogram_freq=1
                )
            )
    labels = LABELS.copy()
    dumped = dict(epochs=3, verbose=0, validation_data=(public, labels))
    if hasattr(model, "pretrain"):
        model.pretrain(records, private, epochs=1, verbose=0)
    with pytest.raises(ZeroDivisionError) as e:
        model.fit(*data, callbacks=[*callbacks, Fails()], **dumped)
    whole, own = own_frames(e.value)
    with open(folder / "fault", "w") as f:
        faulthandler.dump_traceback(f)
    model.fit(*data, callbacks=[private], epochs=1, verbose=0)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    (folder / "statement.txt").write_text(private.report())
    (folder / "repr.txt").write_text(
        repr((private.__dict__, model.__dict__, private.releases))
    )
    for name, release in private.releases.items():
        release.save(folder / f"{name.replace('/', '_')}.npz")
    return private, model, whole, own


def found(form, folder, secrets, seeds):
    """Names of files, and of texts of a crash, that hold what is watched for.
    `repr` of the callback, and a crash report with variables, show the
    arguments of `fit`, the records among them."""
    folder.mkdir()
    _, _, whole, own = everything(form, folder)
    assert len(secrets) >= 2
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert len(files) >= 10
    watch = secret_scan.Secrets(secrets, {"records": records_of(form)})
    assert len(watch) > 100
    found = watch.found_under(folder)
    found["crash report"] = watch.found_in(whole)
    found["own frames"] = watch.found_in(own)
    for shown in ("repr.txt", "crash report"):
        found[shown] = found.get(shown, set()) - {"records"}
    texts = [("crash report", whole)]
    for path in files:
        texts += secret_scan.unpacked(path.name, path.read_bytes())
    for name, raw in texts:
        assert not any(seed in raw for seed in seeds), name
    # Names of some files have the hour in them.
    return {re.sub(r"\d+", "", name) for name, held in found.items() if held}


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("form", FORMS)
def test_no_secret_is_in_a_file(tmp_path, secrets, seeds, form):
    """Numbers meet by chance: of 500 that a crash report or a log shows, one
    lies within 1e-8 of one of 4,000 records and sums in 4 % of all runs. What
    a file holds it holds in every run, so a finding is what three runs have
    at the same place: 6e-5 by chance."""
    places = found(form, tmp_path / "0", secrets, seeds)
    for run in (1, 2):
        if places:
            secrets.clear()
            places &= found(form, tmp_path / str(run), secrets, seeds)
    assert places == set()


@pytest.mark.parametrize(
    "kind, ordered",
    [
        (fm.models.GradientNet, None),
        (fm.models.GradientNet, fm.Participation(bands=4)),
        (fm.models.DPMAC, None),
    ],
)
@pytest.mark.usefixtures("untraced")
def test_no_record_is_in_a_file_of_a_private_network(
    tmp_path, seeds, kind, ordered
):
    """Samples of its records, and the keys of its noise, are batches like any
    other to Keras and its callbacks."""
    more = {"z_steps": 1} if kind is fm.models.DPMAC else {}
    private = kind(RECORDS.shape[1:], [keras.layers.Dense(3)], **more)
    private.compile("adam", metrics=["accuracy"])
    budget = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(4.0, 1e-5), ledger=tmp_path / "privacy.json"
    )
    callbacks = [
        budget,
        keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras")),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        Fails(),
    ]
    if keras.backend.backend() == "tensorflow":
        board = keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)
        callbacks.insert(1, board)
    with pytest.raises(ZeroDivisionError):
        private.fit(
            RECORDS,
            LABELS,
            batch_size=20,
            epochs=3,
            verbose=0,
            callbacks=callbacks,
            participation=ordered,
        )
    private.save(tmp_path / "model.keras")
    (tmp_path / "statement.txt").write_text(budget.report())
    (tmp_path / "repr.txt").write_text(repr(vars(private)))
    watch = secret_scan.Secrets({}, {"records": RECORDS})
    found = watch.found_under(tmp_path)
    assert not {name for name, held in found.items() if held}
    assert len(seeds) >= 2
    for path in (p for p in tmp_path.rglob("*") if p.is_file()):
        for name, raw in secret_scan.unpacked(path.name, path.read_bytes()):
            assert not any(seed in raw for seed in seeds), name


@pytest.mark.usefixtures("untraced")
def test_the_scan_finds_what_is_there(tmp_path, secrets):
    """The releases themselves, and secrets that are put into files."""
    private, *_ = everything("dense", tmp_path)
    released = private.release.statistics["quadratic"]
    known = secret_scan.Secrets({"release": released}, {})
    assert "release" in set().union(*known.found_under(tmp_path).values())
    watch = secret_scan.Secrets(secrets, {"records": RECORDS})
    noise = next(v for k, v in secrets.items() if k.startswith("noise"))
    planted = tmp_path / "planted"
    planted.mkdir()
    np.savez_compressed(planted / "a.npz", noise=noise)
    (planted / "b.json").write_text(str(noise.tolist()))
    (planted / "c.txt").write_text(repr(RECORDS[:3]))
    import h5py

    with h5py.File(planted / "d.h5", "w") as f:
        f.create_dataset("x", data=noise.astype("f4"), compression="gzip")
    (planted / "e.bin").write_bytes(b"abc" + RECORDS[5].tobytes())
    (planted / "f.bin").write_bytes(
        b"abc" + RECORDS.max().astype("f8").tobytes()
    )
    found = watch.found_under(planted)
    assert {name.split("/")[0] for name in found} == {
        "a.npz", "b.json", "c.txt", "d.h5", "e.bin", "f.bin",
    }  # fmt: skip
    if event_file.can_be_written():
        file = event_file.EventFile(planted / "board")
        file.text("x", str(noise.tolist()))
        file.close()
        assert any("events" in name for name in watch.found_under(planted))

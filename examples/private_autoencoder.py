"""dPA on unlabelled records: one release, then any auto-encoder.

python examples/private_autoencoder.py
"""

import keras
import numpy as np

import keras_fm as fm


def main(epsilon=4.0, epochs=20, picture=None):
    (x, _), (x_test, _) = fm.datasets.load("digits")

    model = fm.models.DeepPrivateAutoencoder(x.shape[1:], hidden=(32,))
    private = fm.callbacks.PrivateModel(epsilon=epsilon, delta=1e-4, data=x)
    print(private.plan(model.autoencoder()))
    model.pretrain(x, private)
    print(private.report())

    found = model.reconstruct(x_test)
    error = float(np.mean((found - x_test) ** 2))
    mean_error = float(np.mean((x.mean(axis=0) - x_test) ** 2))
    print(f"mean squared error {error:.4f} (mean image: {mean_error:.4f})")

    # The release is public: train something else on it, for as long as you
    # like, at no further cost.
    layer = model.encoders[0]
    records = private.releases[layer.name].gaussian_records(
        2000, layer.bias_feature
    )
    other = keras.Sequential(
        [
            keras.Input(records.shape[1:]),
            keras.layers.Dense(16, "tanh"),
            keras.layers.Dense(records.shape[1]),
        ]
    )
    other.compile("adam", "mse")
    other.fit(records, records, epochs=epochs, verbose=0)
    rows = x_test.reshape(len(x_test), -1)
    other_error = float(np.mean((other.predict(rows, verbose=0) - rows) ** 2))
    print(f"16 tanh units trained on the release: {other_error:.4f}")
    if picture:
        save(picture, x_test[:10], found[:10])
    return error, mean_error, other_error


def save(path, images, found):
    """Test images above their reconstructions, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.2), layout="constrained")
    for row, shown in zip(figure.subplots(2, len(images)), (images, found)):
        for axes, image in zip(row, shown):
            axes.imshow(image[..., 0], cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(picture="private_autoencoder.png")

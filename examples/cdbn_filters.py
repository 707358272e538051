"""pCDBN: convolutional filters from a release, and digits through them.

python examples/cdbn_filters.py
"""

import keras
import numpy as np

import keras_fm as fm


def main(epsilon=8.0, picture=None):
    (x, y), (x_test, y_test) = fm.datasets.load("digits")

    model = fm.models.PrivateCDBN(
        x.shape[1:], 10, maps=((16, 3), (32, 3)), dense=128
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    private = fm.callbacks.PrivateModel(
        epsilon=epsilon, delta=1e-4, data=(x, y)
    )
    print(private.plan(model))
    model.fit(x, y, epochs=5, callbacks=[private], verbose=0)
    print(private.report())
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"test accuracy {accuracy:.3f}")

    # The release is public: filters of another energy cost nothing more.
    layer = model.rbms[0]
    kernel, _ = fm.filters.learn(
        private.releases[layer.name], **{**layer.learning, "sparsity": 0.0}
    )
    print("filters learned again from the same release:", kernel.shape)
    if picture:
        save(picture, keras.ops.convert_to_numpy(layer.kernel))
    return accuracy


def save(path, kernel):
    """The filters as images, PNG."""
    from matplotlib.figure import Figure

    count = kernel.shape[-1]
    figure = Figure(figsize=(8, 8 * count / 64), layout="constrained")
    for axes, image in zip(
        figure.subplots(-(-count // 8), 8).ravel(), np.moveaxis(kernel, -1, 0)
    ):
        largest = np.abs(image).max()
        axes.imshow(image[..., 0], cmap="RdBu", vmin=-largest, vmax=largest)
        axes.set_axis_off()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(picture="cdbn_filters.png")

"""AdLM on digits: what a private model finds relevant, as a picture.

python examples/adlm_relevance.py

One budget pays for three releases: a first model, the relevance of its
pixels, and the model that is kept. Then the same model is trained as
published, for comparison: its epsilon is claimed, not proven.
"""

import keras_fm as fm


def proven(train, test):
    x, y = train
    model = fm.models.AdaptiveLaplace(x.shape[1:], 10)
    model.compile(
        "adam", loss=fm.losses.TaylorCrossEntropy(), metrics=["accuracy"]
    )
    private = fm.callbacks.PrivateModel(epsilon=4.0, delta=1e-5, data=train)
    print(private.plan(model))  # before anything is used or spent
    model.fit(x, y, epochs=2, callbacks=[private], verbose=0)
    relevance = private.relevance.reshape(x.shape[1:])
    fm.relevance.plot(relevance, "relevance.png")
    print(private.report())
    print("proven, test:", model.evaluate(*test, verbose=0))


def published(train, test):
    x, y = train
    model = fm.models.AdaptiveLaplace(
        x.shape[1:], 10, guarantee="published", hidden=32
    )
    loss = fm.losses.TaylorCrossEntropy()
    model.compile("adam", loss=loss, metrics=["accuracy"])
    # Step 1 of the paper: the relevance of a network trained before.
    twin = fm.models.unprotected_twin(model)
    twin.compile("adam", loss=loss)
    twin.fit(x, y, batch_size=128, epochs=5, verbose=0)
    guarantee = model.guarantee(lot=128, relevance_of=twin)
    private = fm.callbacks.PrivateModel(
        epsilon=4.0, delta=0, data=train, guarantee=guarantee
    )
    model.fit(x, y, batch_size=128, epochs=5, callbacks=[private], verbose=0)
    print(private.report())
    print("published, test:", model.evaluate(*test, batch_size=360, verbose=0))


def main():
    train, test = fm.datasets.load("digits")
    proven(train, test)
    published(train, test)


if __name__ == "__main__":
    main()

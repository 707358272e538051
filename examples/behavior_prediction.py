"""dPAH: does a user move more at the next step? With the user as the unit.

The network is synthetic; your own is made of arrays (docs/health_network.md).

    python examples/behavior_prediction.py
"""

import keras_fm as fm
from keras_fm.datasets import health_simulator


def main(steps=120, epsilon=8.0):
    network = health_simulator.simulate("daily", steps=steps)
    train, test = network.windows(history=3).split(0.8)

    model = fm.models.BehaviorAutoencoder.of(train)
    user = fm.Unit(
        owners=train.users,
        reach=train.reach,
        words="one user with all windows",
    )
    private = fm.callbacks.PrivateModel(
        epsilon=epsilon,
        delta=1e-4,
        data=(train.x, train.y),
        guarantee=fm.Proven(unit=user),
        notes=(train.note,),
    )
    print(private.plan(model))  # before anything is spent

    model.compile(
        "adam",
        fm.losses.TaylorCrossEntropy(),
        metrics=["binary_accuracy"],
    )
    model.fit(train.x, train.y, batch_size=1024, callbacks=[private], verbose=0)

    z = model.predict(test.x, batch_size=4096, verbose=0)[:, 0]
    accuracy = float(((z > 0) == test.y).mean())
    print(private.report())
    print(f"accuracy on the last fifth of the days: {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()

"""A `DataLoader` of PyTorch is read once, or refused with the way out."""

import numpy as np
import pytest

from keras_fm.kernel import records

torch = pytest.importorskip("torch")
data = torch.utils.data

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10)
PAIRS = data.TensorDataset(torch.tensor(X), torch.tensor(Y))


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_record_once(shuffle):
    loader = data.DataLoader(PAIRS, batch_size=4, shuffle=shuffle)
    found = list(records.batches(loader))
    assert [len(y) for _, y in found] == [4, 4, 2]
    x, y = (np.concatenate(parts) for parts in zip(*found))
    np.testing.assert_array_equal(x[np.argsort(y)], X)
    assert sorted(y) == list(Y)


def test_without_labels():
    loader = data.DataLoader(torch.tensor(X), batch_size=4)
    found = list(records.batches(loader, labelled=False))
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), X)


WEIGHTED = data.WeightedRandomSampler(np.ones(10), 10)


@pytest.mark.parametrize(
    "dataset, arguments, message",
    [
        (PAIRS, {"sampler": WEIGHTED}, "with replacement"),
        # The loader then says that its own sampler is sequential.
        (
            PAIRS,
            {"batch_sampler": data.BatchSampler(WEIGHTED, 4, False)},
            "WeightedRandomSampler",
        ),
        (
            PAIRS,
            {"sampler": data.RandomSampler(PAIRS, replacement=True)},
            "with replacement",
        ),
        (
            PAIRS,
            {"sampler": data.RandomSampler(PAIRS, num_samples=25)},
            "more or fewer records than there are",
        ),
        (PAIRS, {"batch_size": None}, "first axis"),
        (PAIRS, {"batch_size": 4, "drop_last": True}, "drop_last=False"),
    ],
)
def test_what_may_repeat_records_is_refused(dataset, arguments, message):
    loader = data.DataLoader(dataset, **arguments)
    with pytest.raises(ValueError, match=message):
        next(records.batches(loader))

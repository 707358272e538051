"""Steps of Opacus on the networks of `record_alone.py`, written in PyTorch."""

import functools
import itertools

import torch
from opacus import GradSampleModule
from opacus.accountants.utils import get_noise_multiplier
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
)
from private_steps import DELTA, EPOCHS, EPSILON, RATE
from torch import nn
from torch.nn import functional

TOKENS, LENGTH, WIDTH = 2000, 64, 64


def dense():
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))


def cnn():
    return nn.Sequential(
        nn.ZeroPad2d(3),
        nn.Conv2d(1, 16, 8, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class Block(nn.Module):
    def __init__(self, before, filters, strides):
        super().__init__()
        self.one = nn.Conv2d(before, filters, 3, strides, 1, bias=False)
        self.two = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, filters) for _ in range(2))
        self.short = nn.Identity()
        if strides > 1:
            self.short = nn.Conv2d(before, filters, 1, strides, bias=False)

    def forward(self, x):
        y = functional.relu(self.norms[0](self.one(x)))
        y = self.norms[1](self.two(y))
        return functional.relu(self.short(x) + y)


def stage(before, filters, strides, blocks):
    later = (Block(filters, filters, 1) for _ in range(blocks - 1))
    return Block(before, filters, strides), *later


def resnet(blocks=1):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        *stage(16, 16, 1, blocks),
        *stage(16, 32, 2, blocks),
        *stage(32, 64, 2, blocks),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = DPMultiheadAttention(WIDTH, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH)
        )

    def forward(self, x):
        x = self.norms[0](x + self.attention(x, x, x, need_weights=False)[0])
        return self.norms[1](x + self.mlp(x))


class Transformer(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Encoder() for _ in range(blocks)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)).mean(1))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.lstm = DPLSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


_NETWORKS = {
    "dense": dense,
    "cnn": cnn,
    "resnet": resnet,
    "transformer": Transformer,
    "lstm": LSTM,
    "ResNet-20": functools.partial(resnet, 3),
    "transformer, 4 blocks": functools.partial(Transformer, 4),
}
_SHAPES = {
    "dense": (784,),
    "cnn": (1, 28, 28),
    "resnet": (3, 32, 32),
    "ResNet-20": (3, 32, 32),
}


def private(network, ghost, batch):
    """A step of Opacus of some records."""
    sgd = torch.optim.SGD(network.parameters(), 0.1)
    loss = nn.CrossEntropyLoss()
    given = {
        # As `make_private_with_epsilon` finds it.
        "noise_multiplier": get_noise_multiplier(
            target_epsilon=EPSILON,
            target_delta=DELTA,
            sample_rate=RATE,
            steps=round(EPOCHS / RATE),
            accountant="prv",
        ),
        "max_grad_norm": 1.0,
        "expected_batch_size": batch,
    }
    if ghost:
        module = GradSampleModuleFastGradientClipping(
            network, batch_first=True, loss_reduction="mean", max_grad_norm=1.0
        )
        optimizer = DPOptimizerFastGradientClipping(sgd, **given)
        loss = DPLossFastGradientClipping(module, optimizer, loss, "mean")
    else:
        module = GradSampleModule(network, batch_first=True)
        optimizer = DPOptimizer(sgd, **given)

    def step(x, y):
        optimizer.zero_grad()
        loss(module(x), y).backward()
        optimizer.step()

    return step


def plain(network):
    sgd, loss = (
        torch.optim.SGD(network.parameters(), 0.1),
        nn.CrossEntropyLoss(),
    )

    def step(x, y):
        sgd.zero_grad()
        loss(network(x), y).backward()
        sgd.step()

    return step


def steps(method, name, batch):
    """A plain step, and what makes a private one and says its way; samples
    are drawn by Poisson's rule, and not padded."""
    torch.set_num_threads(1)
    base = plain(_NETWORKS[name]())
    n = 8 * batch
    if name in _SHAPES:
        x = torch.rand((n, *_SHAPES[name]))
    else:
        x = torch.randint(0, TOKENS, (n, LENGTH))
    y = torch.arange(n) % 10
    batches = itertools.cycle(torch.randperm(n).split(batch))

    def begun():
        taken = private(_NETWORKS[name](), "ghost" in method, batch)

        def step():
            rows = torch.rand(n) < 1 / 8
            taken(x[rows], y[rows])

        return step, method

    def plain_step():
        rows = next(batches)
        base(x[rows], y[rows])

    return plain_step, begun

"""Integer noise of an exact law, from the operating system's random words.

Discrete Laplace and Gaussian samples (after Canonne, Kamath and Steinke 2020,
with a table of blocks). Given uniform random bits, every sample has exactly
the stated law: no floating point number decides one. Proofs:
docs/proofs/lattice_noise.md.

Example:

>>> import numpy as np
>>> noise = DiscreteGaussian(9).sample(4, OSWords())
>>> noise.dtype
dtype('int64')
"""

import bisect
import math
import numbers
import os
from fractions import Fraction

import numpy as np

# The bits of a draw's random word: 32 for the block, then sign, acceptance, and
# offset in the block. A wider block takes its offset from a second word.
_ACCEPT_BITS = 15
_OFFSET_BITS = 16
_LARGEST_OFFSET_BITS = 40
# Blocks hold 2^m values, 2^9 to 2^10 blocks per scale. One draw in about 1500
# then needs its exponential. Finer tables do not fit into the cache.
_SCALE_BITS = 9
_COLUMN_BITS = 13
_LARGEST_SCALE = 2 ** (_LARGEST_OFFSET_BITS + _SCALE_BITS + 1)
# exp(-45) < 2^-64: blocks further out have no weight of their own.
_FURTHEST_EXPONENT = 45
# Precision of the table's exponentials, and of the first comparison.
_TABLE_BITS = 128
_ACCEPT_MASK = np.uint64(2**_ACCEPT_BITS - 1)
# Draws handled at once, so that their data stay in the second-level cache.
_CHUNK = 2**14
# No sample is larger: sums with a saturated statistic stay below 2^63.
_NOISE_LIMIT = 2**62


class OSWords:
    """Random 64-bit words of the operating system's generator.

    On Linux this is ChaCha20, keyed from and rekeyed with the kernel's
    entropy. The process keeps nothing: there is no key to leak, and a forked
    process draws different words.
    """

    private = True

    def words(self, count):
        """Returns `count` random words, `(count,)` uint64, read-only."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class SeededWords:
    """Words that a seed determines, for tests and studies: not private.

    Anybody who knows the seed can replay the noise and subtract it.

    Args:
        seed: int or sequence of ints.
    """

    private = False

    def __init__(self, seed):
        self._philox = np.random.Philox(np.random.SeedSequence(seed))

    def generator(self):
        """A NumPy generator of the same seed, whose stream is another."""
        return np.random.Generator(self._philox.jumped())

    def words(self, count):
        """Returns the next `count` words, `(count,)` uint64."""
        return self._philox.random_raw(count)

    def __repr__(self):
        return "<SeededWords (not private)>"

    def __reduce__(self):
        raise TypeError(
            "SeededWords cannot be pickled or copied: its state would "
            "reveal the noise."
        )


def exp_bounds(numerator, denominator, bits):
    """Encloses `2**bits * exp(-numerator / denominator)` by integers.

    It sums a Taylor series at the argument over a power of two and then
    squares the sum, in integers, with every rounding directed outwards.

    Args:
        numerator: int >= 0.
        denominator: int > 0.
        bits: int > 0.

    Returns:
        Integers `(low, high)` with `low <= 2**bits * exp(...) <= high`. They
        are equal or adjacent, except next to a rounding boundary.

    Example:

    >>> exp_bounds(1, 1, 20)  # 2^20 / e = 385749.5...
    (385749, 385750)
    """
    if numerator == 0:
        return 1 << bits, 1 << bits
    if numerator >= bits * denominator:
        return 0, 1
    work = bits + 32
    argument = (numerator << work) // denominator
    halvings = max(0, argument.bit_length() - work + 8)
    # The same integer with more fractional bits is a halved argument.
    places = work + halvings
    one = 1 << places
    total, term, k = one, one, 0
    while term:
        k += 1
        term = (term * argument >> places) // k
        total += -term if k % 2 else term
    # At most two units are lost in each term, less than one in the rest.
    low, high = total - 2 * k - 2, min(total + 2 * k + 2, one)
    for _ in range(halvings):
        low = low * low >> places
        high = (high * high >> places) + 1
    # The argument was rounded down by less than 2^-work.
    low = max(low - (1 << places - work), 0)
    return low >> places - bits, -(-high >> places - bits)


def exp_bounds_in_a_row(first, second, count, bits):
    """Encloses `2**bits * exp(-(k * first + k * (k - 1) / 2 * second))`.

    Each is the last one times a ratio, and so is each ratio. This is some ten
    times faster than a series for each. Every rounding is directed outwards.

    Args:
        first, second: `Fraction`s >= 0: the exponent at 1, and by how much
            each step adds more than the one before.
        count: int >= 0, up to 2^20.
        bits: int > 0.

    Returns:
        List of `(low, high)` for k from 0 to `count - 1`, as of `exp_bounds`.

    Example:

    >>> exp_bounds_in_a_row(Fraction(1), Fraction(0), 2, 20)
    [(1048576, 1048576), (385749, 385750)]
    """
    # Errors add up to 2 k^2 units of these bits, far below one of the result.
    work = bits + 64
    low, high = 1 << work, 1 << work
    least, most = exp_bounds(first.numerator, first.denominator, work)
    less, more = exp_bounds(second.numerator, second.denominator, work)
    found = []
    for _ in range(count):
        found.append((low >> 64, -(-high >> 64)))
        low, high = low * least >> work, -(-high * most >> work)
        least, most = least * less >> work, -(-most * more >> work)
    return found


class SymmetricSampler:
    """Integers x with probability proportional to `exp(-energy(|x|))`.

    |x| is cut into blocks of 2^m values. An alias table of 64-bit integers
    draws a block by its largest weight. A value in it is drawn uniformly, and
    accepted with its weight over that of the block. Nearly all are accepted
    on 15 bits; the others are compared in Python's integers, to as many
    further random bits as it takes. Past the last block, the weights of
    blocks are halved again and again.

    `energy` is a convex, increasing polynomial of degree two at most, 0 at 0.
    """

    def __init__(self, scale):
        """Builds the table, which takes some 10 ms for large scales.

        Args:
            scale: Fraction, the distance over which the energy grows by
                about one.
        """
        whole = max(1, math.floor(scale))
        self._shift = max(0, whole.bit_length() - 1 - _SCALE_BITS)
        self._width = 1 << self._shift
        self._lay_blocks()
        self._fill_table()

    def _energy(self, x):
        """Numerator and denominator of the energy of `x >= 0`."""
        raise NotImplementedError

    def _lay_blocks(self):
        """Weights of blocks, of the tail, and of certain rejection."""

        def exponent(block):
            return Fraction(*self._energy(block * self._width))

        # The first block that needs no weight, if the table reaches it; two
        # columns are left for the tail and for rejection.
        blocks = bisect.bisect_left(
            range(2**_COLUMN_BITS - 2), _FURTHEST_EXPONENT, key=exponent
        )
        # Over this many blocks of the tail a weight falls to less than half:
        # exp(-7/10) < 1/2, and a convex energy never grows slower again.
        self._tail_bits = 0
        while exponent(blocks + 2**self._tail_bits) - exponent(
            blocks
        ) < Fraction(7, 10):
            self._tail_bits += 1
        tail = 2 ** (self._tail_bits + 1)
        first = exponent(1)
        bounds = exp_bounds_in_a_row(
            first, exponent(2) - 2 * first, blocks + 1, _TABLE_BITS
        )
        upper = [high for _, high in bounds]
        total = sum(upper[:-1]) + tail * upper[-1]
        # Integers up to 2^64 in total, after every weight is rounded up.
        self._unit = ((2**64 - blocks - tail) << _TABLE_BITS) // total
        self._weights = [-(-self._unit * high >> _TABLE_BITS) for high in upper]
        self._blocks = blocks
        used = sum(self._weights[:-1]) + tail * self._weights[-1]
        self._masses = self._weights[:-1] + [
            tail * self._weights[-1],
            2**64 - used,
        ]
        # Numbers below these are accepted anywhere in the block: no value in
        # it weighs less than the first value of the next block.
        last = bounds[:-1] if self._shift == 0 else bounds[1:]
        self._sure = [
            (self._unit * low << _ACCEPT_BITS) // (weight << _TABLE_BITS)
            for (low, _), weight in zip(last, self._weights[:-1])
        ]

    def _fill_table(self):
        """Alias table (Walker 1977; Vose 1991), in integers."""
        symbols = len(self._masses)
        self._column_bits = (symbols - 1).bit_length()
        columns = 2**self._column_bits
        capacity = 2**64 // columns
        left = self._masses + [0] * (columns - symbols)
        threshold = [capacity] * columns
        alias = list(range(columns))
        poor = [i for i, mass in enumerate(left) if mass < capacity]
        rich = [i for i, mass in enumerate(left) if mass > capacity]
        while poor:
            i, donor = poor.pop(), rich[-1]
            threshold[i], alias[i] = left[i], donor
            left[donor] -= capacity - left[i]
            if left[donor] <= capacity:
                rich.pop()
                if left[donor] < capacity:
                    poor.append(donor)
        # A 64-bit number below this keeps its column i.
        self._threshold = [i * capacity + t for i, t in enumerate(threshold)]
        self._alias = np.array(alias, np.int64)
        # The upper 32 bits decide, unless they equal those of the threshold.
        self._high = np.array([t >> 32 for t in self._threshold], np.uint64)
        # Draws of the tail or of rejection are never accepted at once.
        sure = self._sure + [0] * (columns - len(self._sure))
        self._sure = np.array(sure, np.uint64)

    def sample(self, size, source):
        """Draws `size` independent integers.

        Args:
            size: int >= 0.
            source: `OSWords`, or `SeededWords` for tests.

        Returns:
            `(size,)` int64.

        Raises:
            OverflowError: if a sample is 2^62 or larger in absolute value,
                which has probability below exp(-4000) at every scale.
        """
        out = np.empty(size, np.int64)
        filled = 0
        while filled < size:
            # A few more than are missing, so that one loop mostly suffices.
            missing = size - filled
            count = min(_CHUNK, missing + missing // 256 + 8)
            drawn = self._draw(count, source)[:missing]
            out[filled : filled + len(drawn)] = drawn
            filled += len(drawn)
        return out

    def _draw(self, count, source):
        """The accepted values of `count` draws."""
        word = source.words(count)
        high = word >> np.uint64(32)
        column = (high >> np.uint64(32 - self._column_bits)).view(np.int64)
        threshold = self._high.take(column)
        alias = self._alias.take(column)
        symbol = np.where(high < threshold, column, alias)
        accept = (word >> np.uint64(_OFFSET_BITS)) & _ACCEPT_MASK
        sure = accept < self._sure.take(symbol)
        sure &= high != threshold
        wide = self._shift > _OFFSET_BITS
        offset = source.words(count) if wide else word
        offset = (offset & np.uint64(self._width - 1)).view(np.int64)
        x = (symbol << self._shift) | offset
        negative = ((word >> np.uint64(31)) & np.uint64(1)).view(np.int64)
        for i in np.flatnonzero(~sure):
            value = self._decide(
                self._symbol(int(high[i]), int(column[i]), source),
                int(offset[i]),
                int(accept[i]),
                source,
            )
            sure[i] = value is not None
            x[i] = value or 0
        # Zero has one sign only; otherwise it would come twice as often.
        sure &= x >= negative
        x = (x ^ -negative) + negative
        return x if sure.all() else x[sure]

    def _symbol(self, high, column, source):
        """The symbol of 32 bits. It draws 32 more if they do not decide."""
        threshold = self._threshold[column]
        if high == threshold >> 32:
            keeps = (high << 32 | _integer(source) >> 32) < threshold
        else:
            keeps = high < threshold >> 32
        return column if keeps else int(self._alias[column])

    def _decide(self, symbol, offset, accept, source):
        """The value of a draw that is not accepted at once, or None.

        Args:
            symbol: int, a block, the tail, or rejection.
            offset: int, position in the block.
            accept: int, the first bits of the uniform number to compare.
        """
        if symbol > self._blocks:
            return None
        unit, block = self._unit, symbol
        if symbol == self._blocks:
            halvings = 0
            while True:
                word = _integer(source)
                halvings += 64 - word.bit_length()
                if word:
                    break
            block += halvings << self._tail_bits
            block += _integer(source) >> 64 - self._tail_bits
            unit <<= halvings
        x = (block << self._shift) | offset
        energy, weight = self._energy(x), self._weights[symbol]
        bits = _ACCEPT_BITS
        while True:
            accept, bits = accept << 64 | _integer(source), bits + 64
            low, high = exp_bounds(*energy, bits + 32)
            if (accept + 1) * weight << 32 <= unit * low:
                break
            if accept * weight << 32 >= unit * high:
                return None
        if x >= _NOISE_LIMIT:
            raise OverflowError(
                f"A sample of {self!r} does not fit 64-bit integers."
            )
        return x


def _integer(source):
    """One random word as a Python integer."""
    return int(source.words(1)[0])


def positive_fraction(name, value):
    """`value` as an exact fraction; it must be finite and greater than 0."""
    exact = None
    if isinstance(value, numbers.Rational) and not isinstance(value, bool):
        # NumPy's integers would overflow inside a Fraction.
        exact = Fraction(int(value.numerator), int(value.denominator))
    elif isinstance(value, (float, np.floating)) and math.isfinite(value):
        exact = Fraction(float(value))
    if exact is None or exact <= 0:
        raise ValueError(
            f"`{name}` must be a finite number greater than 0. "
            f"Received: {name}={value}"
        )
    return exact


class DiscreteLaplace(SymmetricSampler):
    """Integers with probability proportional to `exp(-|x| / scale)`.

    Also called two-sided geometric (Ghosh, Roughgarden and Sundararajan
    2009). Added to integers of L1 sensitivity `D`, it is exactly
    `D / scale`-private.

    Args:
        scale: positive number below 2^50: an int, a `Fraction`, or a float,
            which stands for the rational number that it is.

    Raises:
        ValueError: if `scale` is not such a number.

    Example:

    >>> DiscreteLaplace(3).sample(4, SeededWords(1)).dtype
    dtype('int64')
    """

    def __init__(self, scale):
        self.scale = positive_fraction("scale", scale)
        if self.scale >= _LARGEST_SCALE:
            raise ValueError(
                f"`scale` must be below 2**50 steps of the lattice. "
                f"Received: scale={scale}"
            )
        super().__init__(self.scale)

    def _energy(self, x):
        return x * self.scale.denominator, self.scale.numerator

    def __repr__(self):
        return f"<DiscreteLaplace (scale={float(self.scale):g})>"


class DiscreteGaussian(SymmetricSampler):
    """Integers with probability proportional to `exp(-x^2 / (2 variance))`.

    The discrete Gaussian of Canonne, Kamath and Steinke (2020). Its variance
    is at most the parameter, and equal to it up to a factor
    `1 - O(exp(-19 variance))`.

    Args:
        variance: positive number below 2^100: an int, a `Fraction`, or a
            float, which stands for the rational number that it is.

    Raises:
        ValueError: if `variance` is not such a number.

    Example:

    >>> DiscreteGaussian(9).sample(4, SeededWords(1)).dtype
    dtype('int64')
    """

    def __init__(self, variance):
        self.variance_parameter = positive_fraction("variance", variance)
        if self.variance_parameter >= _LARGEST_SCALE**2:
            raise ValueError(
                f"`variance` must be below 2**100 steps of the lattice "
                f"squared. Received: variance={variance}"
            )
        super().__init__(Fraction(math.isqrt(int(self.variance_parameter))))

    def _energy(self, x):
        parameter = self.variance_parameter
        return x * x * parameter.denominator, 2 * parameter.numerator

    def __repr__(self):
        return (
            f"<DiscreteGaussian (variance={float(self.variance_parameter):g})>"
        )

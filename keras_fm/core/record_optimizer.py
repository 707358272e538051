"""A Keras optimizer that moves variables of records instead of weights."""

import keras
from keras import ops

# Each entry of a variable moves by its own gradient alone, so no record's
# steps depend on another record.
ELEMENTWISE = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.RMSprop,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.Adamax,
    keras.optimizers.Lion,
    keras.optimizers.Ftrl,
)
_REFUSED = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


class _Cell(keras.Variable):
    """A variable for an optimizer: any tensor, with any number of rows.

    A true variable needs a static shape, and a batch has none.
    """

    def __init__(self, tensor, name):
        self._tensor = tensor
        self._name = self._path = name

    @property
    def value(self):
        return self._tensor

    @property
    def shape(self):
        return self._tensor.shape

    @property
    def ndim(self):
        return len(self._tensor.shape)

    @property
    def dtype(self):
        return keras.backend.standardize_dtype(self._tensor.dtype)

    def assign(self, value):
        self._tensor = ops.cast(value, self.dtype)
        return self._tensor

    def __repr__(self):
        return f"<Cell {self._name}>"


class RecordOptimizer:
    """Runs a Keras optimizer on one variable for each record of a batch.

    Args:
        optimizer: name, config or instance of one of `ELEMENTWISE`; it is
            copied, so that its own state never changes.
        count: int, how many tensors it moves at once.

    Raises:
        ValueError: if one record's steps would depend on another record, or
            follow anything but its gradient.
    """

    def __init__(self, optimizer, count):
        optimizer = keras.optimizers.get(optimizer)
        self.optimizer = check_elementwise(optimizer)
        self._cells = [_Cell(ops.zeros((1,)), f"z{i}") for i in range(count)]
        self._slots = []
        self._starts = []
        self._functional = self._make_functional()

    def _make_functional(self):
        """The optimizer with plain assignments and cells for its slots."""

        # By Keras' names: some of its versions call it by keyword.
        def add_slot(_, reference_variable, name=None, initializer="zeros"):
            # Slots of element-wise optimizers start at a constant.
            start = keras.initializers.get(initializer)((), dtype="float32")
            slot = _Cell(ops.zeros((1,)), name)
            self._slots.append(slot)
            found = [cell is reference_variable for cell in self._cells]
            start = float(ops.convert_to_numpy(start))
            self._starts.append((found.index(True), start))
            return slot

        # TensorFlow and PyTorch have their own, for their own variables.
        neutral = {
            "assign": lambda _, variable, value: variable.assign(value),
            "assign_add": lambda _, variable, value: variable.assign_add(value),
            "assign_sub": lambda _, variable, value: variable.assign_sub(value),
            "_var_key": lambda _, variable: id(variable),
            "add_variable_from_reference": add_slot,
        }
        kind = type(self.optimizer)
        functional = type(f"Functional{kind.__name__}", (kind,), neutral)
        made = functional.from_config(self.optimizer.get_config())
        made.build(self._cells)
        return made

    def minimize(self, gradients, values, steps, first=None):
        """Moves tensors by `steps` steps along their gradients.

        Args:
            gradients: function from a list of tensors to one of the same
                shapes.
            values: list of tensors `(rows, ...)`.
            steps: int >= 0.
            first: `None`, or the gradients at `values`, if they are known;
                `steps` is then at least 1.

        Returns:
            list of tensors.
        """
        count = len(values)
        if first is None:
            slots = [
                ops.full_like(values[i], start) for i, start in self._starts
            ]
            carry = [*values, *slots]
        else:
            # Outside the loop, with numbers for slots, less is passed on.
            slots = [
                ops.convert_to_tensor(start, dtype=values[i].dtype)
                for i, start in self._starts
            ]
            carry = self._step(0, first, [*values, *slots])
            if steps == 1:
                return carry[:count]
            for at, (i, _) in enumerate(self._starts, count):
                carry[at] = carry[at] + ops.zeros_like(values[i])

        def step(index, carry):
            found = gradients(carry[:count])
            return self._step(index, found, carry)

        done = 0 if first is None else 1
        return ops.fori_loop(done, steps, step, carry)[:count]

    def _step(self, index, gradients, carry):
        cells = [*self._cells, *self._slots]
        for cell, tensor in zip(cells, carry):
            cell._tensor = tensor
        made = self._functional
        index = ops.cast(index, made.iterations.dtype)
        # No weight may be read in this scope: JAX would read its old value.
        with keras.StatelessScope([(made.iterations, index)]):
            rate = made.learning_rate
            for gradient, cell in zip(gradients, self._cells):
                made.update_step(gradient, cell, rate)
        moved = [cell.value for cell in cells]
        for cell in cells:
            cell._tensor = None
        return moved


def check_elementwise(optimizer):
    """Returns an optimizer that treats every entry on its own.

    Raises:
        ValueError: if it does not, or does more than follow gradients.
    """
    kinds = [kind for kind in ELEMENTWISE if isinstance(optimizer, kind)]
    if not kinds or type(optimizer).update_step is not kinds[0].update_step:
        names = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise ValueError(
            "`z_optimizer` must move every record by its own gradient alone, "
            f"as these do: {names}. Received: {type(optimizer).__name__}"
        )
    for name in _REFUSED:
        value = getattr(optimizer, name, None)
        if value:
            raise ValueError(
                f"`{name}` of `z_optimizer` must be left out: a record's "
                "steps may follow its own gradient only. Received: "
                f"{name}={value}"
            )
    return optimizer

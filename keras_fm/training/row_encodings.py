"""Which encodings of categories, text and numbers keep records apart.

Rules as in `row_layers`: of a call, and of its one tensor where it has one.
"""

from keras_fm.training.symbolic_call import (
    MixesError,
    UnknownError,
    check_axes,
    check_no_arrays,
    check_rank,
)


def encoded(call, tensor):
    """One category in, its code out; codes of axis 1 are added up."""
    if getattr(call.operation, "sparse", False):
        raise UnknownError("its output is sparse")
    if getattr(call.operation, "num_oov_indices", 1) == 0:
        raise UnknownError(
            "it stops at a record that is not in its vocabulary, and at rows "
            "without a record; give it `num_oov_indices=1`"
        )
    if call.operation.output_mode not in ("int", "one_hot"):
        check_rank(tensor, 2)


def text(call, tensor):
    """Text in, the codes of its words out, as many for every record."""
    config = call.operation.get_config()
    split, mode = config["split"], config["output_mode"]
    named = all(
        value is None or isinstance(value, str)
        for value in (config["standardize"], split)
    )
    if not named or config.get("ragged") or config.get("sparse"):
        raise UnknownError("it has code of its own, or no dense output")
    if split is None:
        check_rank(tensor, 1 if mode == "int" else 2)
    elif mode == "int" and config["output_sequence_length"] is None:
        raise MixesError(
            "it pads to the longest record of a batch; give it an "
            "`output_sequence_length`"
        )


def constants(call, tensor):
    """A normalisation by constants of a record's shape."""
    layer, rank = call.operation, len(tensor.shape)
    check_axes(layer.axis, rank)
    built = getattr(layer, "_build_input_shape", None)
    if built is None or len(built) != rank:
        raise UnknownError("it was built for another number of axes")


def crossed(call):
    """Categories of one record, hashed together."""
    check_no_arrays(call)
    for tensor in call.tensors:
        check_rank(tensor, 1, 2)

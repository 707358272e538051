"""TensorFlow, which writes TensorBoard's files."""


def tensorflow(instead):
    """The module.

    Args:
        instead: what to do without it, a sentence.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as e:
        raise ImportError(
            "TensorBoard files are written by TensorFlow, which is not "
            f"installed. {instead}"
        ) from e
    return tf

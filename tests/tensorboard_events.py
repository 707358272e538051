"""What TensorBoard reads in a folder."""


def events(folder):
    """Dict from tag to a list of (step, value as array or bytes)."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    found = event_accumulator.EventAccumulator(
        str(folder), size_guidance={"tensors": 0}
    )
    found.Reload()
    return {
        tag: [
            (e.step, tensor_util.make_ndarray(e.tensor_proto))
            for e in found.Tensors(tag)
        ]
        for tag in found.Tags()["tensors"]
    }

"""The place of a layer in its model's own graph."""


def layer_input(model, name):
    """The symbolic input of a layer in the model's own graph."""
    found = layer_inputs(model, name)
    if len(found) != 1:
        raise ValueError(f"Layer '{name}' must have one input.")
    return found[0]


def layer_inputs(model, name):
    """The symbolic inputs of a layer in the model's own graph, a list."""
    found = [
        node
        for node in nodes(model)
        if node.operation.name == name and not node.is_input
    ]
    if not found:
        raise ValueError(f"The model has no layer '{name}'.")
    if len(found) > 1:
        raise ValueError(f"Layer '{name}' must be used once in the model.")
    return list(found[0].input_tensors)


def nodes(model):
    """Nodes of the graph, inputs first. Each op is called once in it."""
    # A sequential model keeps its graph in a functional one.
    graph = getattr(model, "_functional", None) or model
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from graph._nodes_by_depth[depth]

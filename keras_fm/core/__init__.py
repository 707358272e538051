"""The common parts of all private layers and models.

`private_part` holds the promise (released, perturbed, unprotected, or it does
not train), `sealed` a training step that no record enters or leaves,
`planned_release` the releases of a plan, `hidden_state` hidden variables.
"""

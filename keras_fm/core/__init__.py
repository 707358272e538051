"""What every private layer and model is made of.

`private_part` holds the promise (released, perturbed, unprotected, or it does
not train), `sealed` a training step that no record leaves, `step` what a
release asks for, `hidden_state` variables that are no weights.
"""

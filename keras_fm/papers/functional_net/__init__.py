"""FunctionalNet: a perturbed Taylor expansion of a whole network."""

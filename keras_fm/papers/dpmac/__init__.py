"""DP-MAC: the method of auxiliary coordinates with noisy coefficients."""

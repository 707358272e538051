"""The part to read in a privacy review: bounds, sums, noise, cost, releases.

NumPy only: nothing here imports Keras.
"""

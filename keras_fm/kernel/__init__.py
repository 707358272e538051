"""Read this for a privacy review: bounds, sums, noise, cost, ledger, releases.

NumPy only: nothing here imports Keras.
"""

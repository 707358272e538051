"""What a privacy review reads: bounds, sums, noise, cost, ledger, releases.

NumPy only: nothing here imports Keras.
"""

"""How each paper's model is built and fitted, once.

Comparisons, reproductions and audits choose sizes and data; what is trained
and what is asked of `PrivateModel` is here. `training.py` is what all papers
share.
"""

"""The laboratory: comparisons, reproductions, audits, pages, commands.

Nothing below imports it.
"""

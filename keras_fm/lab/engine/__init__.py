"""One run engine: jobs, what they gave, where they run, what is kept.

`compare` and `reproduce` say what is measured; here it is measured
(`measuring.py`), in this process or beside it (`workers.py`), kept as soon as
it is there (`store.py`), and put into means, tables, pictures and files.
`rival.py` is how DP-SGD is tuned, everywhere.
"""

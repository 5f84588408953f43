"""The two halves of a driver as sources: `ring3 split generate`.

Both come from the driver's unmodified sources: each half leaves out the functions of the other one
(`slices.py`), and a table that both compile (`tables.py`) says what crosses (`border.py`).
"""

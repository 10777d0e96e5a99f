"""Served batches, and how their rows ended. Pure.

- ``row_ends``  what acks say of rows, and how the rows of final batches ended
- ``row_outcomes``  what acks say of rows, and how the rows of final batches ended
- ``served``  a served batch, and what became of examples
"""

"""Served batches, and how their rows ended. Pure.

- ``life``  what becomes of batches, event by event: a table of states and what follows from them
- ``row_ends``  how the rows of final batches ended
- ``row_outcomes``  what acks say of rows
- ``served``  a served batch, and what became of examples
"""

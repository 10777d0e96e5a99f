"""Parquet files whose arrays are stored as they are, without compression.

Map, a line a file:

- ``rows``     columns as such a file, and the arrays of such a file as views
- ``file``     column chunks (pages with their statistics) and the footer around them
- ``encoding`` Thrift's compact protocol, repetition and definition levels, plain values
"""

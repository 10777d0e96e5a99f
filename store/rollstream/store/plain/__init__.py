"""Parquet files, without work a token: levels are runs, values the bytes that they are.

Map, a line a file:

- ``rows``     columns as such a file
- ``file``     column chunks, and the footer around them
- ``encoding`` Thrift's compact protocol, repetition and definition levels, plain values
- ``decoding`` values of a page as ``encoding`` wrote them
- ``sums``     sums over a file's bytes, so that a group is checked without the others
"""

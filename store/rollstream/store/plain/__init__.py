"""Parquet files whose arrays are plain: written without a look at a token, used where they lie.

Map, a line a file:

- ``rows``     columns as such a file
- ``file``     a file around its column chunks: the footer
- ``chunks``   a column as pages with their headers and statistics
- ``values``   values, plain or as distinct ones
- ``levels``   which row a value belongs to, as runs
- ``thrift``   how headers and footers are encoded
- ``in_place`` values of such a file used where they lie
"""

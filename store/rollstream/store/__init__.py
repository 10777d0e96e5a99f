"""Files: the Parquet data set and its manifests. obstore moves bytes, pyarrow encodes and decodes.

Map, a line a file:

- ``blobs``      the interface: atomic durable creates, reads, lists, deletes
- ``local``      the interface on a local disk
- ``memory``     the interface in memory, for tests (public)
- ``layout``     every path below the root
- ``arrow``      columns to Arrow tables and back; the schema, derived from the ``.avsc``
- ``dataset``    rows to Parquet bytes, Parquet bytes to rows; ``open_dataset``
- ``manifests``  a seal event as a JSON file, named by generation, partition and offset
- ``errors``     what a store may answer
"""

"""The end of a file's life: retired once every sampler is done with its groups, then deleted.

Map:

- ``limits``     pure: what is over an age or a cap
- ``plan``       pure: which files are retired, and what holds others back
- ``decisions``  what the registered samplers decided (``DecisionLogs``)
- ``known``      what plans know of flushes, compressed
- ``flushes``    the flushes with files that are not retired, from the store (``plan_partition``)
- ``files``      what readers leave out, and what is deleted
- ``unneeded``   what described files that are deleted, and what killed processes left
- ``owner``      the jobs of a partition's owner (``retention_chores``)
- ``requests``   asks the owners, and plans without them (``rollstream retain``)
"""

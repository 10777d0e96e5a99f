"""How many more groups env workers may begin. Pure, but for memory of what was granted.

- ``capacity``  the groups of each environment that may still be begun
- ``shares``    what each living producer has of them, as a running total
- ``granting``  the records that say so
"""

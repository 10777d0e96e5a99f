"""How many more groups env workers may begin. Pure, but for memory of what was granted.

- ``capacity``  the groups of each environment that may still be begun
- ``shares``    what each living producer has of them, as a running total
- ``records``   which producers' shares are to be written now
- ``granting``  what is written for all of an environment's workers
"""

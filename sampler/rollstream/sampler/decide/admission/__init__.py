"""How many more groups env workers may begin. Pure, but for memory of what was granted.

- ``capacity``  the groups of each environment that may still be begun
- ``granting``  what is written for all of an environment's workers
- ``records``  which producers' shares are to be written now
- ``shares``  what each living producer has of them, as a running total
"""

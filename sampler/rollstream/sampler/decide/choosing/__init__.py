"""Which of the ready groups make a batch, and which are dropped. Pure.

- ``choose``  ``sample_groups``: which of the ready groups make a batch
- ``drawing``  groups drawn by integer weights, without putting any back
- ``dropping``  groups that will never be served, and the events that drop them
- ``requests``  whether a request for groups can be met, and what meets it
- ``row_limits``  which rollouts of a group are too old
"""

"""Work beside the loop of a sealer, which waits for none of it; what seals and what retires use it.

- ``context``   ``OwnerContext``: what the work of a partition's owner needs
- ``threads``   what runs beside the loop; ``InlineExecutor``: no threads
- ``chores``    jobs that nobody waits for, one at a time
- ``asked``     a question to the broker, which nobody waits for
- ``backoff``   growing intervals between attempts, and what is logged meanwhile
- ``lasting``   how long a job lasts
"""

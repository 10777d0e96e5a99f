"""What becomes of groups. Pure.

- ``alive_groups``  sealed groups that have not ended, and why some wait
- ``decided``  what decisions do to groups, in whatever order flushes and decisions are folded
- ``dispatched``  groups that were dispatched and are not back yet, or never came
- ``retired``  groups of retired files, and the recorded cursor
- ``taken``  which groups a decision took: a bit of each, or bounds alone
- ``to_come``  what was decided about groups whose flush is still to be applied
- ``uses``  how often groups were handed out: a table of what changes it, and what that comes to
- ``waiting``  groups that cannot be served as they are, the oldest first
"""

"""What becomes of groups. Pure.

- ``alive_groups``  sealed groups that have not ended, and why some wait
- ``decided``  what decisions do to groups, in whatever order flushes and decisions are folded
- ``dispatched``  groups that were dispatched and are not back yet, or never came
- ``retired``  groups of retired files, and the recorded cursor
- ``taken``  what was decided about groups: taken ones, and those to come
- ``to_come``  what was decided about groups: taken ones, and those to come
- ``uses``  how often groups were handed out, and which are still needed
- ``waiting``  groups that cannot be served as they are, the oldest first
"""

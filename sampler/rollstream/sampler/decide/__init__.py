"""What each command to a sampler decides, and what it returns. Pure.

- ``choosing/``   which of the ready groups make a batch, and which are dropped
- ``batches/``    the commands that decide batches
- ``trainer/``    the commands that record what a trainer did
- ``queries/``    the commands that look and decide nothing
- ``admission/``  how many more groups env workers may begin
- ``capacity``  how many ready groups each environment may have
- ``command``  ``Command``: what all have in common; ``Reply``
- ``ratio``  the sample-to-insert ratio: which side is ahead, and by how much
- ``shortages``  ``Shortage``: too few groups, and the error that says what waits and was dropped
"""

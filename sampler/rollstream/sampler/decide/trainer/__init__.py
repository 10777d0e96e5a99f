"""Commands that record what a trainer did. Pure.

- ``announced``  what env workers are told of a state
- ``commands``  ``Ack``, ``MarkCheckpointed``, ``Resume``, ``PublishPolicy``
- ``pool``  ``ResumePool``, ``AcknowledgeFetch``: of the reader of a ``TrajectoryPool``
"""

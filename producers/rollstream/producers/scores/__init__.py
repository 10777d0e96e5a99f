"""Late scores, from verifiers.

- ``producer``  ``ScoreProducer``
- ``records``   what a verifier says as a record, or ``InvalidRollout`` (pure)
- ``versions``  reads scores, to learn which version one became
"""

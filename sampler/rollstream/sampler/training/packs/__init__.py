"""Examples packed into sequences of one length, balanced over data-parallel ranks. Pure.

- ``plan``    ``plan_packs``: which example stands where, from their lengths alone
- ``placing`` how they are spread over packs and ranks
- ``filled``  ``Packs``: a rank's sequences, filled
"""

"""What others are told of decisions, each from a thread of its own, so that none holds up another.

- ``admission``   tells env workers how many groups they may begin
- ``announcing``  tells env workers of policies
- ``projecting``  writes decisions as JSON files
"""

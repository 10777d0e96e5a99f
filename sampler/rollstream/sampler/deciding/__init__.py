"""What the sampler decides, without doing anything: pure.

- ``commands``   what may be asked
- ``known``      what is known of a sealed group
- ``eligible``   which groups may be served
- ``ready``      those that may, in an order that arrival does not influence
- ``choose``     ``sample_groups``: which of the ready groups make a batch
- ``served``     a served batch, and what became of examples
- ``state``      ``SamplerState``: the fold over seal logs and decision log
- ``decide``     a command and a state to events
- ``answer``     what is replied once the events are confirmed
"""

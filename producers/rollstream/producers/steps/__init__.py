"""Single steps of trajectories, from writers that hold no trajectory open.

- ``producer``      ``StepProducer`` and ``AsyncStepProducer``
- ``entries``       entries of the steps that one writer submits (no I/O)
- ``segments``      a step of a trajectory as a rollout segment (pure)
- ``policies``      which policy sampled a step (pure)
- ``submitted``     what a writer of steps submitted: contradictions, and open prompts (pure)
"""

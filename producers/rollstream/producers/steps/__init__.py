"""Single steps of trajectories, from writers that hold no trajectory open.

- ``producer``      ``StepProducer`` and ``AsyncStepProducer``
- ``entries``       makes entries of steps, once they were checked (no I/O)
- ``segments``      a step of a trajectory as a rollout segment (pure)
- ``policies``      which policy sampled a step (pure)
- ``submitted``     what a writer of steps submitted: contradictions, and open prompts (pure)
"""

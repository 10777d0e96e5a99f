"""Single steps of trajectories, from writers that hold no trajectory open.

- ``producer``      ``StepProducer`` and ``AsyncStepProducer``
- ``segments``      a step of a trajectory as a rollout segment (pure)
- ``policies``      which policy sampled a step (pure)
- ``submitted``     what a writer of steps submitted, so that contradictions are refused (pure)
- ``open_prompts``  bounds the prompts that a writer of steps began and that have not ended (pure)
"""

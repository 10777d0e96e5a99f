"""The demo: a policy that learns two reasoning tasks over a real Kafka.

tokens       the policy's vocabulary
tasks        the two environments: problems and scores of reasoning-gym
policy       a small network that answers token by token
gradient     the loss of GRPO and its gradient
learner      a training step
errors       what can go wrong in these
"""

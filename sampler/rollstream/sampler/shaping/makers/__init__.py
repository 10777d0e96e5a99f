"""Which rollouts are trained on, and with which advantages. Pure.

- ``interface``  ``BatchMaker``, and what goes in and out of one
- ``grpo``       ``GrpoBatchMaker``: the newest policy of each problem, a reservoir of both signs
- ``rloo``       ``RlooBatchMaker``: all groups, leave-one-out advantages
- ``mixture``    ``StableMixtureBatchMaker``: makers by environment, in stable shares
"""

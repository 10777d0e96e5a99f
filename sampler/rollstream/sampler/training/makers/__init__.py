"""Which rollouts are trained on, and with which advantages. Pure.

- ``interface``  ``BatchMaker``, and what goes in and out of one
- ``rollouts``   between batches and makers: ``rollouts_of``, ``make_batch``, ``examples_of``
- ``made``       refuses what a maker made that is no such batch
- ``grpo``       ``GrpoBatchMaker``: the newest policy of each problem, a reservoir of both signs
- ``rloo``       ``RlooBatchMaker``: all groups, leave-one-out advantages
- ``reservoir``  what is kept for later steps, and how signs and order are chosen
- ``mixture``    ``StableMixtureBatchMaker``: makers by environment, in stable shares
"""

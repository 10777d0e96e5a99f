"""An agent of many turns: gymnasium's FrozenLake, step by step into a trajectory pool.

Run from the root of the clone, after ``make install``::

    make multi-turn

lake      the environment, and the agent's tokens for what it sees and does
policy    a softmax policy over them, and its files
worker    an env worker, as a process: follows the policy, submits each step as it happens
learner   a training step: RLOO by trajectory
trainer   finished prompts in, steps, weights out
settings  the run's numbers, each with its reason
run       all of it; processes, folder and curve are the demo's
"""

"""The demo: a policy that learns two reasoning tasks over a real Kafka.

Run from the root of the clone, after ``make install``::

    python -m examples.demo [--chaos] [--folder FOLDER]

tokens       the policy's vocabulary
tasks        the two environments: problems and scores of reasoning-gym
policy       a small network that answers token by token
gradient     the loss of GRPO and its gradient
learner      a training step
settings     the run's numbers, each with its reason
weights      where new weights lie for the replicas
replica      an env replica, as a process; one of a task evaluates too
verifier     scores one task's groups once they are sealed, as a process
trainer      batches in, steps, weights out
folder       emptied before a run
fleet        the processes, kept alive
chaos        kill -9 at set steps
history      what the trainer saw; judges the run
curve        the picture
summary      what is printed at the end
run          all of it
errors       what can go wrong in these
"""

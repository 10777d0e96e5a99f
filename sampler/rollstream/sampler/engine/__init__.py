"""The owner of a sampler: claims its log, decides, confirms, and tells others.

- ``outbox/``  what others are told of decisions: env workers, and files
- ``answers``  what calls are answered with
- ``asked_calls``  asks the broker for calls that append nothing, while others decide
- ``calls``  calls under way, and those that wait for groups
- ``ends``  where logs end, as the broker is asked by any thread
- ``in_process``  an owner whose commands are executed in the threads that ask
- ``logs``  claims the decision log, reads the seal logs, and folds both
- ``lost_logs``  whether the decision log is the one that the files follow from
- ``metrics``  what it shows to Prometheus, and whether it is alive and ready
- ``owner``  the engine: decide, append, wait until it is confirmed, reply
- ``ownership``  whether it owns the decision log, and log time of its decisions
- ``reading``  what one thread reads of the seal logs while others decide
- ``score_pressure``  reads scores no farther ahead of the groups than is held of them
- ``snapshots``  the state as a file, from which a start goes on
"""

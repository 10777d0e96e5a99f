"""The command line. A command reads arguments, calls one function of a room below, and prints.

Map:

- ``entry``      ``main``: where the script starts; names the extra that is missing
- ``app``        finds the commands; errors as one line
- ``options``    what several commands take
- ``outside``    the broker, store, clock and signals that commands reach; tests bring their own
- ``commands/``  one command a file: a new file is a new command
- ``views/``     figures as tables
- ``broker/``    the embedded Kafka of ``rollstream up``
"""

"""The command line. A command reads arguments, calls one function of a package below, and prints.

Map:

- ``entry``      ``main``, which the script calls; names the extra that is missing
- ``app``        registers the commands and prints errors as one line
- ``options``    options that several commands take
- ``services``   the broker, store, clock and stop signal that commands use
- ``commands/``  one command a file: a new file is a new command
- ``views/``     figures as tables
- ``broker/``    the embedded Kafka of ``rollstream up``
"""

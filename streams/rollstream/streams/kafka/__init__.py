"""The broker interfaces over confluent-kafka.

- ``broker``      ``KafkaBroker``
- ``properties``  what librdkafka is configured with, and its log without repeated lines
- ``clients``     librdkafka's clients, which a forked child never frees
- ``answers``     pure: librdkafka's errors as the types of ``streams.errors``
- ``faults``      which broker cannot be reached, and why, as librdkafka's callbacks say
- ``writer``      ``KafkaWriter``
- ``reader``      ``KafkaReader``: named partitions
- ``member``      ``KafkaGroupReader``: a member of a consumer group
- ``admin``       ``KafkaAdmin``
"""

from rollstream.streams.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]

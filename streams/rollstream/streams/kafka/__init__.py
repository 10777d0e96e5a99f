"""The broker interfaces over confluent-kafka.

- ``broker``      ``KafkaBroker``
- ``properties``  what librdkafka is configured with
- ``repeats``     its log without repetitions
- ``answers``     pure: librdkafka's errors as our types
- ``writer``      ``KafkaWriter``
- ``reader``      ``KafkaReader``: named partitions
- ``member``      ``KafkaGroupReader``: a member of a consumer group
- ``admin``       ``KafkaAdmin``
"""

from rollstream.streams.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]

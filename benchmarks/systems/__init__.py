"""The systems that are compared, behind one interface.

interface      what a system looks like to the benchmark
raw            confluent-kafka and nothing else: the ceiling
ray_actor      a plain Ray actor
redis_streams  Redis streams in memory
kafka_broker   the embedded Kafka of a round
ray_cluster    the Ray of a round
packing        joined groups to packed arrays, for systems that leave it to their user
"""

from benchmarks.systems.every import every_system

__all__ = ["every_system"]

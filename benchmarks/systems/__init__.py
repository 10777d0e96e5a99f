"""The systems that are compared, behind one interface.

interface            what a system looks like to the benchmark
raw                  confluent-kafka and nothing else: the ceiling
rollstream           Rollstream end to end; ``rollstream_services`` and ``rollstream_source`` are
                     the parts that an env replica does not load
ray_actor            a plain Ray actor
redis_streams        Redis streams in memory
kafka_broker         the embedded Kafka of a round
ray_cluster          the Ray of a round
packing              joined groups to packed arrays, for systems that leave it to their user
every                all of them, by name
"""

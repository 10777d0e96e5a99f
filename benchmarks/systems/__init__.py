"""The systems that are compared, behind one interface.

interface            the interface of a system
raw                  confluent-kafka alone, as the upper limit; ``raw_value`` is what it sends
rollstream           Rollstream end to end; ``rollstream_services`` and ``rollstream_source`` are
                     the parts that an env replica does not load
ray_actor            a plain Ray actor
redis_streams        Redis streams in memory
kafka_broker         the embedded Kafka of a round
ray_cluster          the Ray of a round
packing              joins groups and packs arrays, for systems that leave that to their user
every                loads a system by name
"""

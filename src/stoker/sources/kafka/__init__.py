"""The records of Kafka topics as a stream."""

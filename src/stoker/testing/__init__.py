"""Test suites for datasets, streams, `gather` and backends, also for classes of users."""

"""Health state of ranks: record, circuit breaker and latency baseline."""

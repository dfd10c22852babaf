"""What of Kubernetes the connector needs: requests, targets as they stand, writes, one lease."""

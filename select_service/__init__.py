"""The selection service: HTTP in front, a pure core behind, edges to engines and other replicas."""

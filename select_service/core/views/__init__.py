"""Views: plain numbers and texts for metrics, reports, dumps and error messages; read-only."""

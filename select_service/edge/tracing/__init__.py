"""Spans of selections, by OpenTelemetry.  Imported only where `--otel` asks for it.

tracing: begins and ends spans;  spans: what is written into one;  exporting: the SDK's exporter and
the bounds around it, which the standard variables OTEL_* choose.
"""

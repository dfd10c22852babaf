"""OpenTelemetry spans of selections.  Imported only with `--otel`.

tracer: start and end of spans
selection_span: attributes of a span
span_exporter: the exporter of the SDK and its limits, configured by the standard OTEL_* variables
"""

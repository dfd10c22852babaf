"""Canaries: small requests sent to every rank periodically, and the evaluation of the responses.

canary_requests, canary_responses: request and response formats of engines
attempt_results: translation of responses to health outcomes
canary_targets, request_formats: destination and request format of a rank
loop_lag: delay of this process's event loop
canary_sender: the sender

`core.health` decides which rank is checked when, and which state follows from a result.
"""

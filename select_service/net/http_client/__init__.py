"""HTTP/1.1 client for untrusted servers, with bounds on time, memory and CPU.

`response_parser` bounds every response; `reading_budget` bounds the event loop time of all
responses together, per iteration and per second.  `http_connection` is one connection,
`connection_opener` opens connections, and `connection_pool` reuses some of them.
"""

"""EDGE: requests of this process to others over HTTP, whoever they are.

What comes back is foreign.  `answer_parser` bounds every answer; `reading_budget` bounds what all
of them together take of the event loop, in each of its turns and in each second.  `http_connection`
is one connection, `connecting` opens it, `connection_pool` keeps some of them.
"""

"""Topics of live messages: a topic that names another pod or model is another engine.

llm-d's topics are `kv@<pod>@<model>`.  An address that a pod leaves can belong to another pod
within seconds, with an engine that has none of the old blocks.  Topics without names, such as
"" and "kv-events", are the same for all engines and prove nothing.
"""

SHOWN_CHARS_MAX = 120
"""Limit of characters shown of a topic."""


class TopicWatch:
    """Topic of a rank's live messages."""

    def __init__(self) -> None:
        self.topic = b""
        self.changes = 0
        """Number of times the topic named another engine."""
        self.last_change: str | None = None
        """Description of the last such time."""

    def take_topic(self, topic: bytes) -> str | None:
        """Take the topic of the next message; return a description if this is another engine's."""
        before, self.topic = self.topic, topic
        if not (_has_names(before) and _has_names(topic)):
            return None
        self.changes += 1
        self.last_change = f"topic {_show(before)} became {_show(topic)}"
        return self.last_change


def _has_names(topic: bytes) -> bool:
    return topic.count(b"@") >= 2


def _show(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")[:SHOWN_CHARS_MAX]

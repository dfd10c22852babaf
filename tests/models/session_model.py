"""Naive twin of the table of sessions: a dictionary of plain records."""

from dataclasses import dataclass, field


@dataclass
class ModelSession:
    rank: tuple[int, int | None]
    version: tuple[int, int]
    idle_since: float
    context: int = 0
    leases: int = 0
    final: bool = False
    turns: int = 0


@dataclass
class SessionModel:
    """Sessions and leases.

    A lease is given back to the session from which it was taken, which may have ended since.
    """

    ttl_s: float
    writer: int
    count_max: int
    sequence: int = 0
    sessions: dict[str, ModelSession] = field(default_factory=dict)
    evicted: int = 0
    refused: int = 0

    def is_over(self, session, now):
        return not session.leases and session.idle_since + self.ttl_s <= now

    def find(self, name, now):
        session = self.sessions.get(name)
        return None if session is None or self.is_over(session, now) else session

    def _room(self, name, now):
        """Drop the session if it is over and make room for a new one.

        Return False if no session can make room.
        """
        if self.find(name, now) is None:
            self.sessions.pop(name, None)
        if name in self.sessions or len(self.sessions) < self.count_max:
            return True
        idle = [(s.idle_since, n) for n, s in self.sessions.items() if not s.leases]
        if not idle:
            self.refused += 1
            return False
        # All idle times differ in these tests, so only one session is the longest idle.
        del self.sessions[min(idle)[1]]
        self.evicted += 1
        return True

    def book(self, name, rank, context, final, now):
        if not self._room(name, now):
            return None
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = ModelSession(rank, (0, 0), now)
            self._own(session)
        elif session.rank[0] != rank[0] or session.rank[1] not in (None, rank[1]):
            self._own(session)
        session.rank, session.context, session.final = rank, context, final
        session.leases, session.turns = session.leases + 1, session.turns + 1
        session.idle_since = max(now, session.idle_since)
        return session

    def _own(self, session):
        self.sequence += 1
        session.version = self.sequence, self.writer

    def give_back(self, session, now):
        session.leases -= 1
        session.idle_since = max(now, session.idle_since)
        if session.leases == 0 and session.final:
            self.sessions = {n: s for n, s in self.sessions.items() if s is not session}

    def apply(self, name, rank, version, idle_since, context, now):
        room = self._room(name, now)
        self.sequence = max(self.sequence, version[0])
        if not room:
            return "full"
        session = self.sessions.get(name)
        if session is None:
            self.sessions[name] = ModelSession(rank, version, idle_since, context)
            return "created"
        is_same = session.rank[0] == rank[0] and session.rank[1] in (None, rank[1])
        if version < session.version or (version == session.version and not is_same):
            return "stale"
        result = "renewed" if is_same else "moved"
        session.context = context if result == "moved" else max(context, session.context)
        session.rank, session.version = rank, version
        session.idle_since = max(idle_since, session.idle_since)
        return result

    def end(self, name):
        self.sessions.pop(name, None)

    def expire(self, now):
        self.sessions = {n: s for n, s in self.sessions.items() if not self.is_over(s, now)}

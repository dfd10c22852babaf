"""Naive twin of the move events: a list of all events, searched for those that are kept."""

KEPT_S = 600.0


class MovesModel:
    """Events of moves, all that ever happened; the number of an event is its place in the list.

    events: lists of reservation, whether there is a target, method and time
    """

    def __init__(self, begin, kept_max):
        self.begin, self.kept_max = begin, kept_max
        self.events, self.confirm_move = [], {}
        self.on_forgotten = 0

    def add(self, name, has_target, method, now):
        self.events.append([name, has_target, method, now])
        self.confirm_move.pop(name, None)
        self.forget(now)

    def forget(self, now):
        while self.on_forgotten < len(self.events):
            is_many = len(self.events) - self.on_forgotten > self.kept_max
            if not is_many and now - self.events[self.on_forgotten][3] <= KEPT_S:
                return
            self.on_forgotten += 1

    def after(self, seq, most):
        """Return numbers, next number and whether there is a gap."""
        last = self.begin + len(self.events)
        asked = seq or self.begin
        is_known = self.begin + self.on_forgotten <= asked <= last
        first = asked if is_known else self.begin + self.on_forgotten
        numbers = list(range(first + 1, last + 1))[:most]
        return numbers, numbers[-1] if numbers else last, not is_known

    def of(self, name):
        """Return [number, has a target, method] of the last kept and unconfirmed event, or None."""
        for at in range(len(self.events) - 1, self.on_forgotten - 1, -1):
            found, has_target, method, _ = self.events[at]
            if found == name:
                state = self.confirm_move.get(name)
                if state == "ended":
                    return None
                return self.begin + at + 1, has_target, state or method
        return None

    def plan_confirmation(self, name, ok):
        """Return the method by which the move ended, or None."""
        last = self.of(name)
        if last is None or not last[1]:
            return None
        if not ok and last[2] == "transfer":
            self.confirm_move[name] = "reprefill"
            return "reprefill"
        self.confirm_move[name] = "ended"
        return last[2]
